"""The settings of the agent `tinker`: table `[agent.tinker]` of a run's TOML file (see docs/tinker.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from trainwright.agent.prices import Price
from trainwright.section import Section

Loss = Literal["importance_sampling", "ppo", "cispo"]
Server = Literal["tinker", "skyrl"]

HOUR = 3600.0


class Deadlines(Section):
    """How long to wait for each kind of answer, in seconds. The SDK itself waits for ever."""

    start: float = Field(900.0, gt=0)
    """A session, a model or a sampler: the server may have to find room for it."""
    sample: float = Field(1800.0, gt=0)
    """One sampling request: all answers to one conversation."""
    train: float = Field(1800.0, gt=0)
    """A forward and backward pass, or an optimizer step."""
    save: float = Field(900.0, gt=0)
    """A state, or a sampler's weights, written on the server."""
    close: float = Field(60.0, gt=0)
    """Saying goodbye; what is left is the server's to clean up."""
    patience: float = Field(6 * HOUR, ge=0)
    """How long to go on trying after the first failure in a row; then the run stops and can be resumed."""
    pause: float = Field(15.0, gt=0)
    """Between two attempts."""


class TinkerSettings(Section):
    """The trainer agent behind a Tinker server."""

    base_model: str = Field(min_length=1)
    """The model's name on the server, such as `Qwen/Qwen3.6-35B-A3B`."""
    base_url: str = ""
    """Another server that speaks the protocol; empty for `$TINKER_BASE_URL`, else Tinker itself."""
    server: Server = "tinker"
    """Whose server it is, where implementations differ (`tinker_data.py` says in what)."""
    rank: int = Field(32, ge=1, le=512)
    """Rank of the LoRA adapter, a power of two."""
    start_from: str = ""
    """Weights to begin with (`tinker://.../weights/...`), the optimizer fresh; empty for the base model."""
    tokenizer: str = ""
    """Hugging Face name or folder of the tokenizer; empty for the base model's name."""
    thinking: bool = False
    """Let the model think before it answers. Thoughts are trained on like the answer, and cost like it."""
    brief: Literal["full", "compact"] = "full"
    """Which brief the agent reads; `compact` is the nano agent's."""
    learning_rate: float = Field(4e-5, gt=0, le=1)
    """AdamW's learning rate."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which it rises to its value."""
    loss: Loss = "importance_sampling"
    """The policy loss, over the answers' tokens, with the sampler's log-probabilities as old ones."""
    clip_low: float = Field(0.8, gt=0, lt=1)
    """Lower end of the importance ratio's range, for `ppo` and `cispo`."""
    clip_high: float = Field(1.2, gt=1)
    """Upper end of it."""
    num_substeps: int = Field(1, ge=1, le=64)
    """Optimizer steps a policy update: the batch is cut into so many parts. More than one calls for `ppo`."""
    grad_clip_norm: float = Field(0.0, ge=0)
    """Longest gradient of an optimizer step; 0 for any."""
    mismatch_warning: float = Field(0.01, gt=0)
    """Mean difference between the sampler's and the trainer's log-probabilities above which to warn."""
    mismatch_limit: float = Field(0.2, gt=0)
    """The same, above which the run stops before the step is taken: its gradient would be of another policy."""
    ttl_days: float = Field(14.0, ge=1 / 24, le=3650)
    """How long the server keeps the state of each step. The last one is made permanent when the run ends."""
    price: Price | None = None
    """USD a million tokens, where the built-in table (`prices.toml`) has no price or an old one."""
    deadlines: Deadlines = Deadlines()

    @field_validator("rank")
    @classmethod
    def _power_of_two(cls, rank: int) -> int:
        if rank & (rank - 1):
            raise ValueError("must be a power of two, such as 8")
        return rank

    @model_validator(mode="after")
    def _names_a_state(self) -> TinkerSettings:
        from trainwright.agent.tinker_state import state_path_problem

        problem = state_path_problem(self.start_from) if self.start_from else ""
        if problem:
            raise ValueError(f"start_from = {self.start_from!r}: {problem}")
        return self
