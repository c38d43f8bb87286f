"""The policy: the language model that writes jobs, as the outer loop sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from trainwright.messages import Message

BriefStyle = Literal["compact", "full"]
"""The nano agent's few words, or the brief for large models, job format included."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer: its text, its tokens (end token included when finished) and their log-probabilities.

    `prompt_tokens` and the two token lists are what `update` trains on; a policy that can't be trained leaves them
    empty. `usd` and the token counts are for the ledger.
    """

    text: str
    prompt_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = True
    usd: float = 0.0
    weights: int | None = None
    """Optimizer steps behind the weights that wrote it, from a policy that counts them."""


@dataclass(frozen=True)
class Example:
    """One completion with its advantage: the unit of a policy update. An episode with retries gives several."""

    completion: Completion
    advantage: float


class Policy(Protocol):
    """A trainer agent's weights. `sample` never touches state that `update` depends on.

    Two more attributes are optional. `concurrent = True`: `sample` may be called while `update` runs; else an update
    has the policy to itself. `trainable = False`: `update` changes nothing and is called for its metrics alone, with
    or without examples; nothing is saved or loaded, and no answer is ever stale.
    """

    name: str
    brief: BriefStyle
    """Which brief it reads."""

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        """Return one answer a conversation; the same weights, conversations and seed give the same answers."""
        ...

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take one policy-gradient step and return its metrics (loss, grad_norm, entropy, kl, ...)."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state to a folder, whole or not at all."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; the next update is then the one that would have followed."""
        ...

    async def close(self) -> None:
        """Release connections and processes."""
        ...


def is_concurrent(policy: Policy) -> bool:
    """Return whether answers may be sampled while the policy updates."""
    return bool(getattr(policy, "concurrent", False))


def is_trainable(policy: Policy) -> bool:
    """Return whether an update changes the policy."""
    return bool(getattr(policy, "trainable", True))
