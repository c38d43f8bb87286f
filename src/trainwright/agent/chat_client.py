"""Requests to `/chat/completions` of an OpenAI-compatible server (httpx 0.28.1), tried again while that makes sense.

What passes is tried again with growing pauses: no connection, no answer in time, 408, 409, 425, 429 and 5xx; how long
to pause is the server's to say (`Retry-After`). What may be an accident is tried three times: an answer that is no
completion. What does not pass is one line: a wrong key or model, an empty account, a redirect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from trainwright.agent.chat_settings import ChatSettings
from trainwright.agent.prices import Tokens
from trainwright.errors import TrainwrightError

log = logging.getLogger(__name__)

REPLY_LIMIT = 16 * 1024 * 1024
LONGEST_PAUSE = 60.0
STUBBORN = 3
PASSING = frozenset({408, 409, 425, 429})
NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
TOO_LONG = re.compile(r"context[ _](length|window|size)|prompt is too long|maximum (number of )?tokens", re.IGNORECASE)


@dataclass(frozen=True)
class Reply:
    """One answer. `text` is without thoughts, `finished` false when it was cut, `facts` are for the transcript."""

    text: str
    finished: bool
    tokens: Tokens
    facts: dict[str, Any]


class PromptTooLong(Exception):
    """The model can't hold the conversation."""


class Trouble(Exception):
    """What may pass: `after` are the seconds that the server asks to wait; not `passing` is worth few attempts."""

    def __init__(self, message: str, *, after: float = 0.0, passing: bool = True) -> None:
        super().__init__(message)
        self.after, self.passing = after, passing


class ChatClient:
    """Asks one model; at most `in_flight` requests at once, none while the server wants a pause."""

    def __init__(self, settings: ChatSettings, key: str) -> None:
        self._settings = settings
        self._key = key
        self._places = asyncio.Semaphore(settings.in_flight)
        self._pause_until = 0.0
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Timeout(settings.timeout, connect=settings.connect_timeout)
        pool = httpx.Limits(max_connections=settings.in_flight, max_keepalive_connections=settings.in_flight)
        self._http = httpx.AsyncClient(headers=headers, timeout=limits, limits=pool, follow_redirects=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """Return the answer to one request body; raise `PromptTooLong`, or `TrainwrightError` when trying ends."""
        settings, first, stubborn, pause = self._settings, 0.0, 0, self._settings.pause
        while True:
            try:
                async with self._places:
                    await asyncio.sleep(max(0.0, self._pause_until - time.monotonic()))
                    return await self._ask_once(body)
            except Trouble as trouble:
                now = time.monotonic()
                first = first or now
                stubborn += not trouble.passing
                wait = max(trouble.after, pause * random.uniform(0.5, 1.0))  # apart, so that they don't return as one
                if stubborn >= STUBBORN or now + wait - first > settings.patience:
                    raise TrainwrightError(
                        f"{settings.model} at {settings.base_url}: {trouble} (after {now - first:.0f} s of trying). "
                        "Nothing is lost: the same command goes on from here"
                    ) from None
                log.warning("%s: %s; trying again in %.1f s", settings.model, trouble, wait)
                if trouble.after:
                    self._pause_until = max(self._pause_until, now + trouble.after)
            await asyncio.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _ask_once(self, body: Mapping[str, Any]) -> Reply:
        settings = self._settings
        try:
            async with (
                asyncio.timeout(settings.timeout),  # httpx would wait for the next byte as often as one comes
                self._http.stream("POST", f"{settings.base_url}/chat/completions", json=body) as response,
            ):
                content = await _read(response)
        except TimeoutError:
            raise Trouble(f"no answer in {settings.timeout:g} s") from None
        except httpx.RequestError as error:
            raise Trouble(f"no answer ({str(error) or type(error).__name__})") from None
        if response.status_code != 200:
            raise self._refusal(response, content)
        try:
            return read_reply(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise Trouble(f"the answer is no chat completion ({error})", passing=False) from None

    def _refusal(self, response: httpx.Response, content: bytes) -> Exception:
        """Return what an answer without a completion means."""
        status, settings = response.status_code, self._settings
        code, message = _error_of(content)
        shown = message.replace(self._key, "***") if self._key else message
        told = f"{status} {response.reason_phrase}{': ' if shown else ''}{shown}"
        if (status in PASSING or status >= 500) and code not in NO_MONEY:
            after = retry_after(response.headers)
            return Trouble(told + (f", and it asks to wait {after:.0f} s" if after else ""), after=after)
        if status in (400, 413) and (code == "context_length_exceeded" or TOO_LONG.search(message)):
            return PromptTooLong(told)
        hint = ""
        if 300 <= status < 400:
            hint = f"; it points to {response.headers.get('location', 'nowhere')}: set base_url to the server itself"
        elif status in (401, 403):
            hint = f"; the key comes from ${settings.key_variable}" if settings.key_variable else "; set key_env"
        elif status == 404:
            hint = "; check model and base_url"
        return TrainwrightError(f"{settings.model} at {settings.base_url} refuses the request: {told}{hint}")


async def _read(response: httpx.Response) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > REPLY_LIMIT:
            raise Trouble(f"the answer is longer than {REPLY_LIMIT >> 20} MiB", passing=False)
        parts.append(part)
    return b"".join(parts)


def _error_of(content: bytes) -> tuple[str, str]:
    """Return code and message of an error, as far as it has the usual form; one line, not too long."""
    try:
        error = json.loads(content)
        error = error.get("error", error)
        code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    except (ValueError, AttributeError, RecursionError):
        code, message = None, content[:1000].decode(errors="replace")
    return str(code or ""), " ".join(str(message or "").split())[:300]


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """Return the seconds that a server asks to wait, by `Retry-After` as a number or date (RFC 9110); 0 for no word."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def read_reply(answer: Any) -> Reply:
    """Return the first choice of a chat completion; raise `ValueError` for what is none."""
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list) or not answer["choices"]:
        raise ValueError("it has no choices")
    choice = answer["choices"][0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise ValueError("its choice has no message")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str | None):
        raise ValueError("its message is no text")
    text = content or ""
    thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
    if text.lstrip().startswith("<think>"):  # from a server that does not take them apart; unfinished ones are all
        thoughts, _, text = text.partition("</think>")
    reason = choice.get("finish_reason")
    facts = {"id": answer.get("id"), "model": answer.get("model"), "finish_reason": reason, "reasoning": thoughts}
    return Reply(text, reason in (None, "stop"), _usage(answer.get("usage")), facts)


def _usage(usage: Any) -> Tokens:
    """Return the tokens that a server says it counted, 0 where it says none."""

    def count(table: Any, name: str) -> int:
        value = table.get(name) if isinstance(table, dict) else None
        return value if isinstance(value, int) and value > 0 else 0

    prompt, sampled = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = min(prompt, count(details, "cached_tokens"))
    return Tokens(prefill=prompt - cached, cached=cached, sample=sampled)
