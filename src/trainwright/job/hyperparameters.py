"""The table `train.toml`: every knob a job may set. To be completed by the job package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Hyperparameters:
    """Resolved and valid hyperparameters of one job (defaults filled in)."""

    student: str
    learning_rate: float = 5e-4
    max_steps: int = 15
    batch_size: int = 64
    group_size: int = 8
    temperature: float = 1.0
    max_completion_tokens: int = 16
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_target: Literal["attention", "mlp", "all"] = "all"
    advantage: Literal["mean", "mean_std"] = "mean"

    @property
    def rollouts(self) -> int:
        """Return the completions the job samples in all: steps x rollouts a step."""
        return self.max_steps * self.batch_size
