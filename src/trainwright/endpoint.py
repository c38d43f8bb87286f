"""Evaluation over an OpenAI-compatible server: the same prompts, template, sampling and seeds as through a pool.

An `Endpoint` has the `generate` of a pool, so `measure.score_student` scores through either. Prompts go to
`/v1/completions` as token ids, made here by the student's own chat template: the server's template has no say. Written
for `trainwright serve` and for vLLM's server, adapters of which are served under names of their own.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from asyncio import to_thread
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from trainwright.errors import InfraFault
from trainwright.messages import Message
from trainwright.pools.worker import GENERATE_BATCH
from trainwright.students.registry import base_student

ATTEMPTS = 3
REQUESTS_AT_ONCE = 16
SECONDS = 600.0


class Endpoint:
    """Replies of one served model. `url` ends in `/v1`; `model` is the server's name for the student or its adapter.

    `batch` prompts share a request and its seed. `trainwright serve` then draws the numbers that a pool would: its
    scores are those of the direct path. A server that starts every prompt of a request from the same random numbers,
    as vLLM does, needs `batch=1`: prompt i then has the seed `seed + i`.
    """

    def __init__(self, url: str, model: str, *, batch: int = GENERATE_BATCH, key: str = "") -> None:
        self.url, self.model, self.batch = url.rstrip("/"), model, batch
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    async def generate(
        self,
        student: str,
        weights: bytes | None,
        prompts: Sequence[str],
        *,
        seed: int,
        max_tokens: int,
        temperature: float = 1.0,
    ) -> list[str]:
        """See `Pool.generate`; the weights are the server's, so none can be given. Raises `InfraFault`."""
        if weights is not None:
            raise ValueError("a server has its own weights: name its adapter as the model instead")
        return await to_thread(self._generate, student, prompts, seed, max_tokens, temperature)

    def _generate(
        self, student: str, prompts: Sequence[str], seed: int, max_tokens: int, temperature: float
    ) -> list[str]:
        encode = base_student(student).encode
        messages: list[list[Message]] = [[{"role": "user", "content": prompt}] for prompt in prompts]
        tokens = [encode(one) for one in messages]
        bodies = [
            {
                "model": self.model,
                "prompt": tokens[start : start + self.batch],
                "seed": (seed + start) % 2**63,
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": 1.0,  # a server may have other defaults from the model's generation settings
                "top_k": -1,
                "n": 1,
            }
            for start in range(0, len(tokens), self.batch)
        ]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return [reply for replies in threads.map(self._replies, bodies) for reply in replies]

    def _replies(self, body: dict[str, Any]) -> list[str]:
        return _texts(self._post(json.dumps(body).encode()), len(body["prompt"]))

    def _post(self, data: bytes) -> bytes:
        """Return the body of the answer; what may pass is tried again, with the same seed."""
        request = urllib.request.Request(f"{self.url}/completions", data, self._headers)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=SECONDS) as response:
                    body: bytes = response.read()
                    return body
            except urllib.error.HTTPError as error:
                said = error.read(1000).decode(errors="replace")
                if error.code < 500 or attempt == ATTEMPTS:
                    raise InfraFault("endpoint", f"{self.url} answers {error.code}: {said[:300]}") from None
            except (OSError, HTTPException) as error:
                if attempt == ATTEMPTS:
                    raise InfraFault("endpoint", f"{self.url} can't be reached: {error}") from None
        raise AssertionError("not reached")


def _texts(data: bytes, count: int) -> list[str]:
    """Return the `count` texts of an answer in the order of the prompts; a missing one is an `InfraFault`."""
    try:
        choices = {choice["index"]: choice for choice in json.loads(data)["choices"]}
        texts = [choices[index]["text"] for index in range(count)]
        reasons = {choice["finish_reason"] for choice in choices.values()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InfraFault("endpoint", f"the server's answer lacks completions: {error!r}") from None
    if len(choices) != count or not all(isinstance(text, str) for text in texts) or not reasons <= {"stop", "length"}:
        raise InfraFault("endpoint", f"the server's answer is not {count} finished completions")
    return texts
