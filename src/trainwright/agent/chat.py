"""Any model behind an OpenAI-compatible server as the trainer agent, measured and never trained.

Its answers cost what the server's token counts and the price say. The ledger holds each of them with what was asked;
`chat.jsonl` in the run's folder has what the ledger does not: thoughts, token counts, the model that served. An answer
that was paid for before its batch failed is taken from there when the run goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.agent.chat_settings import ChatSettings
from trainwright.agent.policy import BriefStyle, Completion, Example
from trainwright.agent.prices import Tokens, price_of
from trainwright.cache import content_hash
from trainwright.config import RunConfig
from trainwright.errors import ConfigError
from trainwright.messages import Message
from trainwright.seeds import derive_seed

if TYPE_CHECKING:
    from trainwright.agent.chat_client import ChatClient

log = logging.getLogger(__name__)


def preflight(config: RunConfig) -> None:
    """Raise `ConfigError` for a missing or refused key, or a server that can't be reached."""
    import httpx

    settings = _settings(config)
    key = _key(settings)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.get(f"{settings.base_url}/models", headers=headers, timeout=settings.connect_timeout)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"{settings.base_url} can't be reached ({reason}); check agent.chat.base_url") from None
    if answer.status_code in (401, 403):  # what else it says to a list of models does not matter
        asked = f"refuses the key in ${settings.key_variable}" if key else "wants a key; set agent.chat.key_env"
        raise ConfigError(f"{settings.base_url} {asked}")


def chat_policy(config: RunConfig, progress: Callable[[int, int], None]) -> ChatPolicy:
    """Return the agent of a run with `agent.backend = "chat"`; it connects when it is first asked."""
    settings = _settings(config)
    return ChatPolicy(settings, _key(settings), config.folder / "chat.jsonl")


class ChatPolicy:
    """A model on a server. Implements `Policy`; can't be trained."""

    brief: BriefStyle = "full"
    concurrent = True
    trainable = False

    def __init__(self, settings: ChatSettings, key: str, transcript: Path) -> None:
        self.name = settings.model
        self.settings = settings
        self.price = settings.price or price_of(settings.model)
        self.transcript = transcript
        self._key = key
        self._client: ChatClient | None = None
        self._paid: dict[str, Completion] = {}
        self._spent = Tokens()

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        """Return one answer a conversation; whether equal seeds give equal answers is the server's affair."""
        try:
            async with asyncio.TaskGroup() as running:
                tasks = [
                    running.create_task(self._answer(conversation, derive_seed(seed, number)))
                    for number, conversation in enumerate(conversations)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _answer(self, conversation: Sequence[Message], seed: int) -> Completion:
        from trainwright.agent.chat_client import ChatClient, PromptTooLong

        if self._client is None:
            self._client = ChatClient(self.settings, self._key)
            self._paid = _read_paid(self.transcript)
        request = content_hash(list(conversation), seed)
        if request in self._paid:
            return self._paid[request]  # a run that was stopped before its batch was whole: the ledger has it not
        started = time.monotonic()
        try:
            reply = await self._client.ask(self.settings.request(conversation, seed))
        except PromptTooLong as error:
            log.warning("%s: %s; the episode has an empty answer", self.name, error)
            return Completion("", finished=False)
        self._spent += reply.tokens
        usd = reply.tokens.dollars(self.price)
        tokens = {"prompt": reply.tokens.prefill, "cached": reply.tokens.cached, "sampled": reply.tokens.sample}
        told = {"request": request, "written": time.time(), "seconds": time.monotonic() - started, "tokens": tokens}
        told |= {"usd": usd, "finished": reply.finished, **reply.facts, "text": reply.text}
        with self.transcript.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        return Completion(reply.text, finished=reply.finished, usd=usd)

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Train nothing; return the tokens counted since the last call. Their dollars are in the answers."""
        spent, self._spent = self._spent, Tokens()
        return {f"tokens_{kind}": float(getattr(spent, kind)) for kind in ("prefill", "cached", "sample")}

    def save(self, folder: Path) -> None:
        """Nothing to write: there is nothing that changes."""

    def load(self, folder: Path) -> None:
        """Nothing to restore."""

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()


def _read_paid(transcript: Path) -> dict[str, Completion]:
    """Return the answers of a transcript by request; a line that a kill cut is ended, and is no answer."""
    paid: dict[str, Completion] = {}
    text = transcript.read_text(encoding="utf-8") if transcript.exists() else ""
    for line in text.split("\n"):
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            paid[told["request"]] = Completion(told["text"], finished=told["finished"], usd=told["usd"])
    if text and not text.endswith("\n"):
        with transcript.open("a", encoding="utf-8") as file:
            file.write("\n")
    return paid


def _settings(config: RunConfig) -> ChatSettings:
    if config.agent.chat is None:
        raise ConfigError("agent.backend = 'chat' needs a table [agent.chat] with at least model")
    return config.agent.chat


def _key(settings: ChatSettings) -> str:
    """Return the key, empty where none is wanted; raise `ConfigError`."""
    name = settings.key_variable
    key = os.environ.get(name, "").strip() if name else ""
    if name and not key:
        raise ConfigError(f"there is no key for {settings.base_url}: export {name}=... (agent.chat.key_env names it)")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key in ${name} has characters that no key has; copy it again")
    return key
