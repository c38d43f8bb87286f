"""How a job trains a student: the protocol that engines implement, and what one returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainwright.environment.environment import Environment
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.student import Student

StepMetrics = dict[str, float]


@dataclass(frozen=True)
class Training:
    """The result of one job: the trained weights as safetensors, one metrics row a step, and this process's CPU
    seconds by phase (`sampling`, `environment`, `learning`)."""

    weights: bytes
    metrics: list[StepMetrics] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Trains a fresh student in place on a job's environment."""

    fingerprint: str
    """What the results of the same job depend on: part of the key under which reference scores are cached."""

    loads_student: bool
    """Whether the engine loads the student itself, elsewhere: then `train` gets a `NamedStudent`, without weights."""

    def check(self, hyperparameters: Hyperparameters) -> None:
        """Raise `JobRejected` for hyperparameters that this engine can't take; the gate asks."""
        ...

    def train(
        self,
        student: Student,
        environment: Environment,
        hyperparameters: Hyperparameters,
        seed: int,
        on_step: Callable[[StepMetrics], None] | None = None,
    ) -> Training:
        """Run the job to its last step.

        Raises `JobFault` for what the job did (no learning signal is not a fault; NaN is), `InfraFault` for the rest.
        """
        ...
