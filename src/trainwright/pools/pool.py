"""Where jobs run: the protocol that pools implement, and the outcome classes (design page, section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.suites.family import Task


class OutcomeClass(StrEnum):
    """What became of a job."""

    TRAINED = "TRAINED"
    REJECTED = "REJECTED"
    JOB_FAULT = "JOB_FAULT"
    FLAGGED = "FLAGGED"
    INFRA = "INFRA"


@dataclass(frozen=True)
class Outcome:
    """What became of a job: the class, a short reason code, and one sentence (empty for TRAINED)."""

    kind: OutcomeClass
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the gate said: accepted with resolved hyperparameters, or the reason, place and sentence of the refusal."""

    accepted: bool
    code: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    hyperparameters: Hyperparameters | None = None

    def __str__(self) -> str:
        if self.accepted:
            return "accepted"
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.message} [{self.code}]"


@dataclass(frozen=True)
class TrainResult:
    """One finished job: its outcome and, when TRAINED, the weights and metrics; times and cost either way."""

    outcome: Outcome
    weights: bytes = b""
    metrics: list[dict[str, float]] = field(default_factory=list)
    rollouts: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    worker: str = ""
    usd: float = 0.0


@dataclass(frozen=True)
class Started:
    """What a pool says once it is ready: the sandbox level that job code gets, and a line for the user."""

    sandbox: str
    note: str


class Pool(Protocol):
    """Runs jobs and answers benchmark prompts. All methods but `start` may be called concurrently."""

    fingerprint: str
    """That of its engine: what the result of a job depends on besides job and student."""

    async def start(self) -> Started:
        """Get ready before the first request; raise `SandboxError`, `ConfigError` or `InfraFault`."""
        ...

    async def gate(self, job: Job, task: Task) -> Verdict:
        """Return the gate's verdict; raise `InfraFault` after retries elsewhere."""
        ...

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        """Train one job. `key` is the episode's id and idempotent: the same key is the same job."""
        ...

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
        """Return one reply a prompt from the base student or, with weights, from the trained one.

        The same seed gives the same random numbers to the same prompt index, so that base and trained are paired.
        Runs where no job code ever ran. A missing reply is an `InfraFault`, never an empty string.
        """
        ...

    async def close(self) -> None:
        """Release every worker; safe to call twice."""
        ...
