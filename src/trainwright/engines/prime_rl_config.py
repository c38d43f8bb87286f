"""The configuration of prime-rl, at commit 559b447 (0.8.1.dev67): our base with a job's hyperparameters placed in it.

The models below hold every key that we set and no other, under upstream's names (packages/prime-rl-configs); what is
not here keeps upstream's default. A job reaches only the fields that `rl_config` fills from its hyperparameters:
paths, model, harness and runtime are ours. prime-rl checks a good deal itself, but not what its defaults do to a job:
groups of one (no advantage, ever), no last step, completions longer than the context, a harness that gives the model
a shell, a runtime that rents sandboxes. Those are refused here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainwright.errors import JobRejected
from trainwright.job.answer import TRAIN
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.architecture import QWEN3, TARGETS

COMMIT: Final = "559b447"
"""The commit of prime-rl that all of this is for."""

PACKAGE: Final = "trainwright-job"
"""Id of the verifiers package `job_package`, as taskset and as harness."""

SOURCE: Final = "job"
"""Name of the one training environment in logs and metrics."""

TEMPLATE_TOKENS = 64
"""More than Qwen3's chat template adds to a prompt: role markers, and the empty thinking block."""

MIN_SEQ_LEN, MAX_SEQ_LEN = 2048, 32_768
"""Short samples are packed into sequences of this length, so less saves nothing; Qwen3's context is 40,960."""

MAX_INFLIGHT = 128
"""Rollouts at once. More of them have exhausted vLLM's file handles."""

_SCORING_SECONDS = 900.0  # longer than the package waits for a reward: a timeout here would count as a reward of 0


class Keys(BaseModel):
    """A table of prime-rl's configuration; unknown keys and wrong types are errors, as upstream."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(Keys):
    name: str


class Deployment(Keys):
    type: Literal["single_node"] = "single_node"
    num_train_gpus: Literal[1] = 1
    num_infer_gpus: Literal[1] = 1


class WeightBroadcast(Keys):
    type: Literal["filesystem"] = "filesystem"
    """The only one that carries LoRA adapters."""


class RolloutTransport(Keys):
    type: Literal["zmq"] = "zmq"
    port: int = Field(ge=1024, lt=65535)
    """This one and the next."""


class FileMonitor(Keys):
    path: Literal["metrics.jsonl"] = "metrics.jsonl"


class Monitors(Keys):
    file: FileMonitor = FileMonitor()


class Lora(Keys):
    rank: int = Field(ge=1, le=64)
    alpha: float = Field(gt=0)
    dropout: float = 0.0
    target_modules: list[str]


class TrainerModel(Keys):
    attn: Literal["flash_attention_2", "flash_attention_3", "flash_attention_4"]
    """Per card: upstream's `auto` fails where the package for its choice is missing."""
    fused_lm_head_token_chunk_size: int = 2048
    """Upstream's 8192 takes 5 GB of logits at Qwen3's vocabulary."""
    lora: Lora


class AdamW(Keys):
    type: Literal["adamw"] = "adamw"
    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    max_norm: float = Field(gt=0)


class ConstantScheduler(Keys):
    type: Literal["constant"] = "constant"


class LinearScheduler(Keys):
    type: Literal["linear"] = "linear"
    warmup_steps: int = Field(ge=1)
    decay_steps: Literal[0] = 0
    min_lr: float = Field(gt=0)
    """The rate of the first step; upstream's default of 0 would waste it."""


class Trainer(Keys):
    model: TrainerModel
    optim: AdamW
    scheduler: ConstantScheduler | LinearScheduler


class Grpo(Keys):
    type: Literal["grpo"] = "grpo"


class Concurrency(Keys):
    max_inflight: int = Field(ge=1, le=MAX_INFLIGHT)


class Qwen3Renderer(Keys):
    name: Literal["qwen3"] = "qwen3"
    enable_thinking: Literal[False] = False


class Client(Keys):
    base_url: str


class PolicyModel(Keys):
    client: Client


class Sampling(Keys):
    temperature: float = Field(gt=0, le=2)
    max_completion_tokens: int = Field(ge=1)


class RewardSocket(Keys):
    socket: str


class Taskset(Keys):
    id: Literal["trainwright-job"] = PACKAGE
    rows: str
    task: RewardSocket


class Harness(Keys):
    id: Literal["trainwright-job"] = PACKAGE


class Runtime(Keys):
    type: Literal["subprocess"] = "subprocess"


class AgentTimeout(Keys):
    setup: float = 60.0
    rollout: float = 600.0
    finalize: float = 60.0
    scoring: float = _SCORING_SECONDS


class Agent(Keys):
    max_turns: Literal[1] = 1
    harness: Harness = Harness()
    runtime: Runtime = Runtime()
    timeout: AgentTimeout = AgentTimeout()


class Environment(Keys):
    taskset: Taskset
    agent: Agent = Agent()


class StaticPool(Keys):
    type: Literal["static"] = "static"
    num_workers: Literal[1] = 1


class Serve(Keys):
    pool: StaticPool = StaticPool()


class Source(Keys):
    name: Literal["job"] = SOURCE
    env: Environment
    serve: Serve = Serve()


class Train(Keys):
    sampling: Sampling
    source: list[Source] = Field(min_length=1, max_length=1)


class Orchestrator(Keys):
    batch_size: int = Field(ge=2)
    group_size: int = Field(ge=2)
    max_off_policy_steps: int = 8
    env_server_base_port: int = Field(ge=1024, le=65535)
    algo: Grpo = Grpo()
    concurrency: Concurrency
    renderer: Qwen3Renderer = Qwen3Renderer()
    model: PolicyModel
    train: Train


class Server(Keys):
    host: Literal["127.0.0.1"] = "127.0.0.1"
    port: int = Field(ge=1024, le=65535)


class Vllm(Keys):
    model: str
    gpu_memory_utilization: float = Field(gt=0, lt=1)
    max_model_len: int
    max_num_seqs: int
    enable_lora: Literal[True] = True
    max_lora_rank: int
    seed: int = Field(ge=0)


class Inference(Keys):
    """`[inference]` of the launcher, and the whole configuration of a server that we start ourselves."""

    router: Literal["None"] = "None"
    """Upstream's spelling of null: the router is a program of its own, from an extra package."""
    server: Server
    vllm: Vllm
    weight_broadcast: WeightBroadcast = WeightBroadcast()


class RLConfig(Keys):
    """The configuration of prime-rl's launcher `rl`."""

    output_dir: str
    clean: Literal[True] = True
    """An earlier attempt of the same job is no reason to stop; the folder is ours."""
    max_steps: int = Field(ge=1)
    seq_len: int = Field(ge=64, le=MAX_SEQ_LEN)
    run: Named
    model: Named
    deployment: Deployment = Deployment()
    weight_broadcast: WeightBroadcast = WeightBroadcast()
    rollout_transport: RolloutTransport
    monitors: Monitors = Monitors()
    trainer: Trainer
    orchestrator: Orchestrator
    inference: Inference | None = None

    @model_validator(mode="after")
    def _check_traps(self) -> Self:
        """Refuse what prime-rl would accept and never recover from."""
        orchestrator, sampling = self.orchestrator, self.orchestrator.train.sampling
        if orchestrator.batch_size % orchestrator.group_size:
            raise ValueError("group_size must divide batch_size")
        if orchestrator.concurrency.max_inflight < orchestrator.group_size:
            raise ValueError("max_inflight must be at least group_size")
        if sampling.max_completion_tokens + TEMPLATE_TOKENS >= self.seq_len:
            raise ValueError("max_completion_tokens leaves no room for a prompt in seq_len")
        if self.model.name not in {student.model for student in QWEN3.values()}:
            raise ValueError("the qwen3 renderer is for Qwen3 students only")
        if self.inference is not None:
            if self.inference.vllm.max_model_len < self.seq_len:
                raise ValueError("max_model_len must be at least seq_len")
            if self.inference.vllm.model != self.model.name:
                raise ValueError("inference and trainer must have the same model")
            if f":{self.inference.server.port}/" not in orchestrator.model.client.base_url:
                raise ValueError("the client's port must be the server's")
        return self


class Place(BaseModel):
    """Everything of a run that a job has no say in."""

    model_config = ConfigDict(frozen=True)

    output_dir: Path
    run_name: str
    rows: Path
    socket: Path
    first_port: int
    """The first of four ports: model server, rollouts (two), environment server."""
    attention: Literal["flash_attention_2", "flash_attention_3", "flash_attention_4"]
    memory_fraction: float
    """Share of the card's memory that vLLM takes; the trainer has the rest."""
    own_server: bool
    """Whether we start the model server, or prime-rl's launcher does."""


def check_supported(hyperparameters: Hyperparameters) -> None:
    """Raise `JobRejected` for what other engines can and this one can't."""
    if hyperparameters.student not in QWEN3:
        known = ", ".join(QWEN3)
        raise JobRejected("student", f"{hyperparameters.student} can't be trained by prime-rl; choose {known}.", TRAIN)
    if hyperparameters.lora_rank == 0:
        raise JobRejected("toml_range", "lora_rank = 0 is not allowed here; use 1 to 64.", TRAIN)
    if hyperparameters.advantage != "mean":
        raise JobRejected("toml_range", 'advantage = "mean_std" is not allowed here; use "mean".', TRAIN)


def sequence_length(prompt_bytes: int, max_completion_tokens: int) -> int:
    """Return a `seq_len` in which the longest prompt and its completion fit, by the bytes of the prompt.

    Qwen3's tokens are byte pairs: a text has at most as many tokens as bytes. May exceed `MAX_SEQ_LEN`.
    """
    needed = prompt_bytes + TEMPLATE_TOKENS + max_completion_tokens + 1
    return max(MIN_SEQ_LEN, -(-needed // 64) * 64)


def rl_config(hyperparameters: Hyperparameters, place: Place, seq_len: int, seed: int) -> RLConfig:
    """Return the launcher's configuration of one job; raise `JobRejected` (see `check_supported`)."""
    check_supported(hyperparameters)
    hp, port = hyperparameters, place.first_port
    inflight = max(hp.group_size, min(hp.batch_size, MAX_INFLIGHT))
    taskset = Taskset(rows=str(place.rows), task=RewardSocket(socket=str(place.socket)))
    return RLConfig(
        output_dir=str(place.output_dir),
        run=Named(name=place.run_name),
        max_steps=hp.max_steps,
        seq_len=seq_len,
        model=Named(name=QWEN3[hp.student].model),
        rollout_transport=RolloutTransport(port=port + 1),
        trainer=Trainer(
            model=TrainerModel(
                attn=place.attention,
                lora=Lora(rank=hp.lora_rank, alpha=hp.lora_alpha, target_modules=list(TARGETS[hp.lora_target])),
            ),
            optim=AdamW(lr=hp.learning_rate, weight_decay=hp.weight_decay, max_norm=hp.max_grad_norm),
            scheduler=_scheduler(hp),
        ),
        orchestrator=Orchestrator(
            batch_size=hp.batch_size,
            group_size=hp.group_size,
            env_server_base_port=port + 3,
            concurrency=Concurrency(max_inflight=inflight),
            model=PolicyModel(client=Client(base_url=f"http://127.0.0.1:{port}/v1")),
            train=Train(
                sampling=Sampling(temperature=hp.temperature, max_completion_tokens=hp.max_completion_tokens),
                source=[Source(env=Environment(taskset=taskset))],
            ),
        ),
        inference=None if place.own_server else _inference(hp, place, seq_len, inflight, seed),
    )


def server_config(hyperparameters: Hyperparameters, place: Place, seq_len: int, seed: int) -> Inference:
    """Return the configuration of prime-rl's `inference` for a model server that we start ourselves."""
    inflight = max(hyperparameters.group_size, min(hyperparameters.batch_size, MAX_INFLIGHT))
    return _inference(hyperparameters, place, seq_len, inflight, seed)


def toml(config: Keys) -> str:
    """Return a configuration as TOML; keys that are null are left out."""
    content: dict[str, Any] = config.model_dump(exclude_none=True)
    return tomli_w.dumps(content)


def _scheduler(hp: Hyperparameters) -> ConstantScheduler | LinearScheduler:
    """Return the schedule of the torch engine: step k of the warm-up (from 0) has (k + 1) / (warmup_steps + 1) of the
    rate. prime-rl's line starts at `min_lr` and reaches the full rate `warmup_steps` steps later."""
    if hp.warmup_steps == 0:
        return ConstantScheduler()
    return LinearScheduler(warmup_steps=hp.warmup_steps, min_lr=hp.learning_rate / (hp.warmup_steps + 1))


def _inference(hp: Hyperparameters, place: Place, seq_len: int, inflight: int, seed: int) -> Inference:
    return Inference(
        server=Server(port=place.first_port),
        vllm=Vllm(
            model=QWEN3[hp.student].model,
            gpu_memory_utilization=place.memory_fraction,
            max_model_len=seq_len,
            max_num_seqs=inflight,
            max_lora_rank=hp.lora_rank,
            seed=seed % 2**31,
        ),
    )
