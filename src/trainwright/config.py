"""The configuration of a run: one TOML file, one pydantic model, a docstring under every field."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from trainwright.agent.chat_settings import ChatSettings
from trainwright.agent.huggingface_settings import PretrainedSettings
from trainwright.agent.tinker_settings import TinkerSettings
from trainwright.engines.prime_rl_settings import PrimeRLSettings
from trainwright.errors import ConfigError
from trainwright.pools.runpod.config import RunpodConfig
from trainwright.section import Section


class TasksConfig(Section):
    """Which tasks the agent is trained on."""

    suite: str = "nano"
    """The suite of task families."""
    held_out: str = "shift"
    """The family that is never trained on and probes generalisation; empty for none."""
    students: dict[str, Annotated[int, Field(ge=8, le=10_000_000)]] = {}
    """Students to offer in place of the suite's own, each with the rollouts that a job may spend on it."""


class AgentConfig(Section):
    """The trainer agent."""

    backend: str = "local"
    """Which policy: `local` is a torch model on this machine, `tinker` a large one on a server (docs/tinker.md), `chat`
    any model on an OpenAI-compatible server, untrained (docs/chat.md); others come through entry points."""
    options: dict[str, Any] = {}
    """Settings of a backend from another package; the built-in ones have tables of their own."""
    model: str = "nano-agent"
    """The model of the backend `local`: the nano agent, or a pretrained one by name (docs/students.md), with LoRA."""
    pretrained: PretrainedSettings = PretrainedSettings()
    """Settings of a pretrained model of the backend `local`."""
    tinker: TinkerSettings | None = None
    """Settings of the agent `tinker`, which needs them. Its update has its own; of those here it reads `max_tokens` and
    `max_attempts`."""
    chat: ChatSettings | None = None
    """Settings of the agent `chat`, which needs them; of those here it reads `max_attempts`."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling temperature of the agent."""
    max_tokens: int = Field(320, ge=16, le=32768)
    """Longest answer in tokens; a longer one is cut and then rejected by the gate."""
    max_attempts: int = Field(1, ge=1, le=8)
    """Answers an episode may take; the gate's verdict on each goes back as the next message."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """AdamW learning rate of the policy update."""
    warmup_steps: int = Field(4, ge=0)
    """Optimizer steps over which the learning rate rises to its value; AdamW's first steps are its wildest."""
    decay_steps: int = Field(0, ge=0)
    """Optimizer steps (`epochs` a policy update) over which it then falls to a fifth; 0 keeps it constant."""
    epochs: int = Field(2, ge=1, le=16)
    """Passes over the batch of a step; the importance ratio is clipped from the second one on."""
    clip: float = Field(0.2, gt=0, lt=1)
    """Clip range of the importance ratio."""
    reference_kl: float = Field(0.01, ge=0, le=10)
    """Weight of the divergence from the warm-started policy in the loss."""
    warm_start_steps: int = Field(600, ge=0)
    """Supervised steps on synthetic jobs before reinforcement learning (cached)."""


class EngineConfig(Section):
    """How jobs train students."""

    backend: str = "torch"
    """Which engine: `torch` is GRPO on this machine's cores or GPU, `prime-rl` drives prime-rl on one GPU
    (docs/prime-rl.md); others come through entry points."""
    options: dict[str, Any] = {}
    """Settings of an engine from another package; the built-in ones have tables of their own."""
    prime_rl: PrimeRLSettings | None = None
    """Settings of the engine `prime-rl`; its defaults when left out."""


class PoolConfig(Section):
    """Where jobs run."""

    backend: str = "local"
    """Which pool: `local` is worker processes on this machine, `runpod` rents pods (docs/runpod.md); others come
    through entry points."""
    options: dict[str, Any] = {}
    """Settings of a pool from another package; the built-in ones have tables of their own."""
    runpod: RunpodConfig | None = None
    """Settings of the pool `runpod`, which needs them. The other settings here are then those of the gate's workers."""
    workers: int = Field(0, ge=0, le=256)
    """Worker processes; 0 means one a core."""
    threads: int = Field(1, ge=1, le=256)
    """Torch threads a worker: one for nano students, more for pretrained ones on a CPU, with fewer workers."""
    job_seconds: float = Field(120.0, gt=0)
    """Wall-clock limit of one job; a job over it is a job fault."""
    retries: int = Field(2, ge=0)
    """How often an infrastructure fault is retried on another worker before the episode is dropped."""
    unsafe_no_sandbox: bool = False
    """Run job code without a sandbox where none can be built. For throw-away machines only."""


class MeasureConfig(Section):
    """How much is measured."""

    items: int = Field(256, ge=8, le=100_000)
    """Hidden items a group, fresh for each group and shared by its members."""
    reference_items: int = Field(512, ge=8, le=100_000)
    """Hidden items on which a reference job is scored."""
    reference_seeds: int = Field(3, ge=1, le=100)
    """Training seeds over which a reference score is averaged."""


class ProbeConfig(Section):
    """The held-out probe."""

    episodes: int = Field(64, ge=0)
    """Paired episodes an arm at the start and at the end; 0 turns the probe off."""
    every: int = Field(8, ge=0)
    """Steps between the small probes on the way; 0 for none."""
    episodes_between: int = Field(8, ge=1)
    """Episodes of a small probe."""


class RunConfig(Section):
    """One outer training run. `trainwright run FILE` reads it from TOML; `--set table.key=value` changes a value."""

    folder: Path = Path("runs/run")
    """Where the ledger, metrics, checkpoints and report go; relative to the current folder."""
    seed: int = Field(0, ge=0)
    """Everything random in the run derives from this number."""
    steps: int = Field(24, ge=0)
    """Policy updates."""
    groups: int = Field(4, ge=1)
    """Tasks a step."""
    group_size: int = Field(8, ge=2)
    """Episodes that share a task; the baseline of each is the mean of its group."""
    max_off_policy_steps: int = Field(0, ge=0, le=64)
    """Updates that the policy may have taken since a group's oldest answer when a step learns from the group. At 0 a
    step waits for its own groups. From 1 on the next step's groups run meanwhile, a step takes the first `groups` that
    are complete, and one that is too old by then is dropped; above 1 slow jobs have time before that happens."""
    ask_above_usd: float = Field(1.0, ge=0)
    """Ask before starting a run that is expected to spend more than this (`trainwright estimate` says how much)."""
    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    engine: EngineConfig = EngineConfig()
    pool: PoolConfig = PoolConfig()
    measure: MeasureConfig = MeasureConfig()
    probe: ProbeConfig = ProbeConfig()

    @model_validator(mode="after")
    def _held_out_is_in_the_suite(self) -> RunConfig:
        from trainwright.suites.family import suite_families

        try:
            names = [family.name for family in suite_families(self.tasks.suite)]
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.tasks.held_out and self.tasks.held_out not in names:
            known = ", ".join(names)
            raise ValueError(f"tasks.held_out = {self.tasks.held_out!r} is not a family of the suite; known: {known}")
        if len(names) < 2 and self.tasks.held_out:
            raise ValueError("a suite of one family can't hold one out; set tasks.held_out to an empty string")
        return self


def load_config(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """Return the configuration in a TOML file with `table.key=value` overrides applied.

    Override values are read as TOML and, where that fails, as text. Raises `ConfigError` that names file, key and the
    values allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; the examples are in examples/") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name the TOML file in it") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    for override in overrides or []:
        _apply(table, override)
    return parse_config(table, str(path))


def parse_config(table: dict[str, Any], source: str) -> RunConfig:
    """Return the validated configuration; raise `ConfigError` with one line a wrong key."""
    try:
        return RunConfig.model_validate(table)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            message = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
            message = message.removeprefix("Value error, ")
            lines.append(f"{source}: {key + ': ' if key else ''}{message}")
        raise ConfigError("\n".join(lines)) from None


def _apply(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override}: write it as table.key=value, for example --set agent.learning_rate=0.001")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, last = key.strip().split(".")
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {name} is a value, not a table")
    table[last] = value
