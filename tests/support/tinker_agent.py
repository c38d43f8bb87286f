"""A policy on the fake Tinker server, and the deadlines of tests: patient where nothing is injected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fake_tinker import FakeTinker

from trainwright.agent.policy import Completion, Example
from trainwright.agent.tinker import TinkerPolicy
from trainwright.agent.tinker_renderer import ChatRenderer
from trainwright.agent.tinker_settings import TinkerSettings
from trainwright.messages import Message

PATIENT = {"start": 60.0, "sample": 60.0, "train": 60.0, "save": 60.0, "close": 30.0, "patience": 120.0, "pause": 0.05}
LOOP = asyncio.Runner()
"""A policy lives on one event loop."""
END = 1
GOOD = 40
"""A token that is worth a reward."""
BRIEFS: list[list[Message]] = [[{"role": "user", "content": text}] for text in ("sort these", "count those letters")]


class LetterRenderer:
    """A fake renderer: a token a character, and the end token."""

    def render_ids(self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        assert add_generation_prompt
        return [ord(letter) for message in messages for letter in message["content"]] + [END]

    def parse_response(self, tokens: list[int], *, prompt_ids: list[int]) -> Any:
        return type("Parsed", (), {"reasoning_complete": None, "reasoning_content": None})


class LetterTokenizer:
    """A fake tokenizer for it."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in tokens)


def settings_for(fake: FakeTinker, deadlines: dict[str, float] | None = None, **changes: Any) -> TinkerSettings:
    table = {"base_model": fake.model, "base_url": fake.url, "rank": 8, "learning_rate": 0.1}
    return TinkerSettings.model_validate(table | changes | {"deadlines": PATIENT | (deadlines or {})})


def make_policy(fake: FakeTinker, deadlines: dict[str, float] | None = None, **changes: Any) -> TinkerPolicy:
    renderer = ChatRenderer(LetterTokenizer(), LetterRenderer(), [END])
    return TinkerPolicy(settings_for(fake, deadlines, **changes), renderer, max_tokens=24, seed=0)


def sample(policy: TinkerPolicy, seed: int = 1, each: int = 4) -> list[Completion]:
    return LOOP.run(policy.sample([brief for brief in BRIEFS for _ in range(each)], seed))


def update(policy: TinkerPolicy, examples: Sequence[Example]) -> dict[str, float]:
    return LOOP.run(policy.update(examples))


def close(policy: TinkerPolicy) -> None:
    LOOP.run(policy.close())


def rated(answers: Sequence[Completion]) -> list[Example]:
    """Return the answers with the share of `GOOD` tokens, less the mean, as advantage; never all zero."""
    shares = [answer.tokens.count(GOOD) / len(answer.tokens) + 0.001 * row for row, answer in enumerate(answers)]
    mean = sum(shares) / len(shares)
    return [Example(answer, share - mean) for answer, share in zip(answers, shares, strict=True)]


def step(policy: TinkerPolicy, seed: int = 1) -> dict[str, float]:
    """Sample and update once."""
    return update(policy, rated(sample(policy, seed)))
