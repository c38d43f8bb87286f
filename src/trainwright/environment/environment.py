"""The environment as the trusted side sees it: rows and rewards, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainwright.messages import Message


@dataclass(frozen=True)
class Row:
    """One row of a job's taskset: its index and the prompt as messages (a system prompt first, when it has one).

    `fields` holds the string and number fields that the job's data class adds to `TaskData` (such as `answer`), as
    text: the gate sends them back as replies to see whether the reward tells replies apart.
    """

    index: int
    messages: tuple[Message, ...]
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reward:
    """The reward of one reply: the weighted sum, each named reward, and the seconds that scoring took."""

    total: float
    parts: dict[str, float]
    seconds: float


class Environment(Protocol):
    """A job's running environment. Every call has a deadline and raises `JobFault` or `InfraFault`, never hangs."""

    def rows(self, count: int) -> list[Row]:
        """Return up to `count` further rows in the taskset's order; an empty list once it is exhausted."""
        ...

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        """Return the reward of each `(row index, reply)`, in order."""
        ...
