"""The settings of a pretrained local agent: table `[agent.pretrained]` of a run's TOML file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainwright.section import Section


class PretrainedSettings(Section):
    """How a pretrained model becomes the trainer agent."""

    brief: Literal["compact", "full"] = "compact"
    """What it is told of a task: the few words that the warm start teaches (nano suite), or all of the job format."""
    lora_rank: int = Field(16, ge=1, le=64)
    """Rank of its adapter."""
    lora_alpha: float = Field(32.0, ge=1, le=256)
    """The adapter's output is scaled by alpha / rank."""
    lora_target: Literal["attention", "mlp", "all"] = "all"
    """The linear layers that get an adapter."""
    warm_start_learning_rate: float = Field(1e-3, gt=0, le=1)
    """AdamW learning rate of the warm start."""
    warm_start_batch: int = Field(16, ge=1)
    """Synthetic jobs a step of the warm start."""
