"""The student: the small model that a job trains. Engines and measurement see only this protocol.

Letters for shapes: B sequences, P prompt tokens, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trainwright.messages import Message

if TYPE_CHECKING:
    import torch


class UnreadablePrompt(ValueError):
    """A prompt that the student can't read: unknown characters, too long, an unsupported role. Says which."""


@dataclass(frozen=True)
class Completions:
    """What a student sampled, right-padded.

    `tokens_BT` holds the completions up to and including the end token, then padding. `mask_BT` is 1.0 on completion
    tokens, the end token included. `logprobs_BT` holds the log-probability of each token under the distribution it
    was drawn from (temperature applied), 0 where masked. `finished_B` is false where the token limit cut the sequence.
    """

    tokens_BT: torch.Tensor
    mask_BT: torch.Tensor
    logprobs_BT: torch.Tensor
    finished_B: torch.Tensor


@dataclass(frozen=True)
class NamedStudent:
    """A student by its name alone, for engines that load the weights themselves (`Engine.loads_student`)."""

    name: str


class Student(Protocol):
    """One model instance with its tokenizer. Not shared between jobs: `fresh` gives each job its own copy."""

    name: str

    def fresh(self) -> Student:
        """Return an independent copy with the base weights and no adapter."""
        ...

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt tokens; raise `UnreadablePrompt`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of completion tokens, without the end token and padding."""
        ...

    def add_adapter(self, rank: int, alpha: float, target: str, seed: int) -> None:
        """Add a LoRA adapter to `attention`, `mlp` or `all` linear layers and freeze the rest (arXiv:2106.09685).

        Rank 0 adds nothing and leaves every weight trainable.
        """
        ...

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, generator: torch.Generator
    ) -> Completions:
        """Sample one completion a prompt, without gradients."""
        ...

    def logprobs(
        self, prompts: Sequence[Sequence[int]], tokens_BT: torch.Tensor, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of completion tokens, both (B, T), differentiable in the first."""
        ...

    def save(self) -> bytes:
        """Return the trained part (adapter, or all weights) as safetensors."""
        ...

    def load(self, data: bytes) -> None:
        """Load what `save` returned into a fresh copy; raise `ValueError` when it does not fit."""
        ...


@runtime_checkable
class LargeStudent(Protocol):
    """A student for whom the backward pass of a whole batch may be too much for the memory."""

    def parts(self, prompts: Sequence[Sequence[int]], tokens_BT: torch.Tensor) -> list[range]:
        """Return the batch in consecutive ranges, each small enough for one backward pass through `logprobs`."""
        ...


def parts_of(student: Student, prompts: Sequence[Sequence[int]], tokens_BT: torch.Tensor) -> list[range]:
    """Return the ranges of a batch whose gradients are to be accumulated: one, unless the student says otherwise."""
    return student.parts(prompts, tokens_BT) if isinstance(student, LargeStudent) else [range(len(prompts))]
