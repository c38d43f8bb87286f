"""What we write for prime-rl: from the job only its hyperparameters, and nothing that upstream's schema refuses."""

from __future__ import annotations

import json
import os
import random
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainwright.engines.prime_rl_config import (
    MAX_INFLIGHT,
    MIN_SEQ_LEN,
    TEMPLATE_TOKENS,
    Place,
    RLConfig,
    rl_config,
    sequence_length,
    server_config,
    toml,
)
from trainwright.errors import JobRejected
from trainwright.job.hyperparameters import Hyperparameters, parse_hyperparameters
from trainwright.students.architecture import QWEN3
from trainwright.suites.family import Offer, Task

SCHEMA = Path(
    os.environ.get(
        "TRAINWRIGHT_PRIME_RL_SCHEMA",
        Path(__file__).parents[2].parent / "shared" / "prime-rl" / "rl-config.schema.json",
    )
)
TASK = Task(
    suite="test",
    family="test",
    seed=0,
    parameters={},
    brief="",
    examples=(),
    offers=(Offer("qwen3-0.6b", 2_000_000), Offer("qwen3-1.7b", 2_000_000)),
    max_completion_tokens=4096,
)


def place(**changes: Any) -> Place:
    base = {
        "output_dir": Path("/data/runs"),
        "run_name": "run",
        "rows": Path("/data/rows.jsonl"),
        "socket": Path("/data/rewards"),
        "first_port": 18000,
        "attention": "flash_attention_2",
        "memory_fraction": 0.4,
        "own_server": False,
    }
    return Place.model_validate(base | changes)


def random_job(rng: random.Random) -> Hyperparameters:
    """Return the hyperparameters of a random `train.toml` that this engine accepts, read as the gate reads it."""
    group = rng.randint(2, 64)
    batch = group * rng.randint(-(-8 // group), 1024 // group)
    steps = rng.randint(1, 2000)
    keys: dict[str, Any] = {
        "student": rng.choice(list(QWEN3)),
        "learning_rate": 10 ** rng.uniform(-6, -1),
        "max_steps": min(steps, 2_000_000 // batch),
        "batch_size": batch,
        "group_size": group,
        "temperature": rng.uniform(0.1, 2.0),
        "max_completion_tokens": rng.randint(1, 4096),
        "weight_decay": rng.choice([0.0, rng.random()]),
        "max_grad_norm": rng.uniform(0.01, 100),
        "lora_rank": rng.randint(1, 64),
        "lora_alpha": rng.uniform(1, 256),
        "lora_target": rng.choice(["attention", "mlp", "all"]),
    }
    keys["warmup_steps"] = rng.randint(0, min(1000, keys["max_steps"]))
    chosen = [key for key in keys if key in ("max_steps", "batch_size", "group_size") or rng.random() < 0.8]
    if "warmup_steps" in chosen and keys["warmup_steps"] > keys["max_steps"]:
        chosen.remove("warmup_steps")
    return parse_hyperparameters(tomli_w.dumps({key: keys[key] for key in chosen}), TASK)


def written(seed: int) -> tuple[Hyperparameters, dict[str, Any]]:
    """Return a random job's hyperparameters, and what its TOML says."""
    rng = random.Random(seed)
    hyperparameters = random_job(rng)
    attention = f"flash_attention_{rng.randint(2, 4)}"
    where = place(attention=attention, own_server=rng.random() < 0.5, first_port=rng.randint(1024, 60_000))
    length = sequence_length(rng.randint(0, 20_000), hyperparameters.max_completion_tokens)
    return hyperparameters, tomllib.loads(toml(rl_config(hyperparameters, where, length, seed)))


@cache
def schema() -> Any:
    """Return the validator of upstream's schema; skip where it isn't at hand."""
    if not SCHEMA.exists():
        pytest.skip(f"prime-rl's configuration schema is not at {SCHEMA}; TRAINWRIGHT_PRIME_RL_SCHEMA may name it")
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def as_upstream_sees_it(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content after what happens upstream before the schema applies.

    The string "None" is null, and `env` is validated by the types of the taskset and the environment that it names,
    which the schema can't know: the package's own keys and the agent's table are taken out. `test_job_package` and
    `scripts/check_prime_rl_config.py` cover those.
    """
    content = json.loads(json.dumps(content).replace('"None"', "null"))
    [source] = content["orchestrator"]["train"]["source"]
    del source["env"]["agent"]
    del source["env"]["taskset"]["rows"], source["env"]["taskset"]["task"]["socket"]
    return content


def test_500_random_jobs_satisfy_upstream_s_schema() -> None:
    validator = schema()
    for seed in range(500):
        hyperparameters, content = written(seed)
        errors = list(validator.iter_errors(as_upstream_sees_it(content)))
        assert not errors, (hyperparameters, [f"{error.json_path}: {error.message}" for error in errors])


def test_the_agent_s_table_has_only_keys_that_upstream_has() -> None:
    defaults = schema().schema["$defs"]["TrainSourceConfig"]["properties"]["env"]["default"]["agent"]
    [source] = written(0)[1]["orchestrator"]["train"]["source"]
    agent = source["env"]["agent"]
    assert agent.keys() <= defaults.keys()
    assert agent["timeout"].keys() <= defaults["timeout"].keys()


def test_the_schema_test_can_fail() -> None:
    _, content = written(0)
    for change in ({"rollouts_per_example": 8}, {"batch_size": "64"}, {"group_size": 0}):
        wrong = as_upstream_sees_it(content)
        wrong["orchestrator"] |= change
        assert list(schema().iter_errors(wrong)), change


@given(seed=st.integers(0, 10**9))
def test_the_known_traps_are_avoided(seed: int) -> None:
    hyperparameters, content = written(seed)
    orchestrator = content["orchestrator"]
    [source] = orchestrator["train"]["source"]
    assert orchestrator["group_size"] >= 2
    assert content["max_steps"] == hyperparameters.max_steps
    assert source["env"]["agent"]["harness"] == {"id": "trainwright-job"}
    assert source["env"]["agent"]["runtime"] == {"type": "subprocess"}
    assert orchestrator["renderer"] == {"name": "qwen3", "enable_thinking": False}
    assert orchestrator["group_size"] <= orchestrator["concurrency"]["max_inflight"] <= MAX_INFLIGHT
    assert orchestrator["train"]["sampling"]["max_completion_tokens"] + TEMPLATE_TOKENS < content["seq_len"]
    if "inference" in content:
        assert content["inference"]["vllm"]["max_model_len"] >= content["seq_len"]
        assert content["inference"]["router"] == "None"


@given(seed=st.integers(0, 10**9))
def test_the_job_sets_what_its_table_has_and_nothing_else(seed: int) -> None:
    hp, content = written(seed)
    base = written_with(Hyperparameters(student=hp.student), content)
    expected = {
        "max_steps": hp.max_steps,
        "orchestrator.batch_size": hp.batch_size,
        "orchestrator.group_size": hp.group_size,
        "orchestrator.train.sampling.temperature": hp.temperature,
        "orchestrator.train.sampling.max_completion_tokens": hp.max_completion_tokens,
        "trainer.optim.lr": hp.learning_rate,
        "trainer.optim.weight_decay": hp.weight_decay,
        "trainer.optim.max_norm": hp.max_grad_norm,
        "trainer.model.lora.rank": hp.lora_rank,
        "trainer.model.lora.alpha": hp.lora_alpha,
    }
    found = flat(content)
    assert {key: found[key] for key in expected} == expected
    derived = {"seq_len", "orchestrator.concurrency.max_inflight", "trainer.model.lora.target_modules"}
    derived |= {f"inference.vllm.{key}" for key in ("max_model_len", "max_num_seqs", "max_lora_rank", "seed")}
    derived |= {f"trainer.scheduler.{key}" for key in ("type", "warmup_steps", "decay_steps", "min_lr")}
    changed = {key for key in found.keys() | base.keys() if found.get(key) != base.get(key)}
    assert changed <= expected.keys() | derived


def written_with(hyperparameters: Hyperparameters, content: dict[str, Any]) -> dict[str, Any]:
    """Return the flat content for other hyperparameters at the same place."""
    port = content["rollout_transport"]["port"] - 1
    where = place(attention=content["trainer"]["model"]["attn"], own_server="inference" not in content, first_port=port)
    return flat(tomllib.loads(toml(rl_config(hyperparameters, where, content["seq_len"], 0))))


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        return {prefix: content}
    return {k: v for key, value in content.items() for k, v in flat(value, f"{prefix}.{key}".lstrip(".")).items()}


def test_every_hyperparameter_has_a_place() -> None:
    """A new knob must not be dropped in silence."""
    placed = {"student", "learning_rate", "max_steps", "batch_size", "group_size", "temperature", "weight_decay"}
    placed |= {"max_completion_tokens", "max_grad_norm", "warmup_steps", "lora_rank", "lora_alpha", "lora_target"}
    refused = {"advantage"}  # other than the mean
    assert set(Hyperparameters.__dataclass_fields__) == placed | refused


@pytest.mark.parametrize(
    "changes", [{"student": "nano-64"}, {"lora_rank": 0}, {"advantage": "mean_std"}], ids=lambda c: next(iter(c))
)
def test_what_the_engine_can_not_do_is_refused_with_a_way_out(changes: dict[str, Any]) -> None:
    hyperparameters = Hyperparameters(**{"student": "qwen3-0.6b"} | changes)
    with pytest.raises(JobRejected, match=r"use|choose") as caught:
        rl_config(hyperparameters, place(), MIN_SEQ_LEN, 0)
    assert caught.value.file == "train.toml"


def test_warm_up_has_the_rates_of_the_torch_engine() -> None:
    hp = Hyperparameters(student="qwen3-0.6b", learning_rate=1e-3, warmup_steps=4)
    scheduler = rl_config(hp, place(), MIN_SEQ_LEN, 0).trainer.scheduler.model_dump()
    # upstream: torch's LinearLR from min_lr / lr to 1 in warmup_steps steps
    start, steps = scheduler["min_lr"] / hp.learning_rate, scheduler["warmup_steps"]
    theirs = [start + (1 - start) * min(k / steps, 1) for k in range(7)]
    ours = [min(1.0, (k + 1) / (hp.warmup_steps + 1)) for k in range(7)]
    assert theirs == pytest.approx(ours)


BREAK = [
    ("orchestrator.group_size", 1, "greater_than_equal"),
    ("orchestrator.group_size", 3, "divide"),
    ("max_steps", None, "int"),
    ("max_steps", 0, "greater_than_equal"),
    ("seq_len", 80, "no room"),
    ("orchestrator.train.sampling.max_completion_tokens", 4096, "no room"),
    ("orchestrator.concurrency.max_inflight", 4, "max_inflight"),
    ("orchestrator.renderer.enable_thinking", True, "literal"),
    ("inference.vllm.max_model_len", 1024, "max_model_len"),
    ("inference.vllm.model", "Qwen/Qwen3-1.7B", "same model"),
    ("inference.vllm.enforce_eagre", True, "extra_forbidden"),
    ("inference.server.port", 18005, "port"),
    ("model.name", "Qwen/Qwen3-0.6B-Base", "Qwen3 students"),
    ("deployment.num_infer_gpus", 2, "literal"),
    ("orchestrator.rollouts_per_example", 8, "extra_forbidden"),
    ("trainer.optim.lr", "1e-4", "float"),
    ("trainer.model.attn", "auto", "literal"),
]


@pytest.mark.parametrize(("key", "value", "why"), BREAK, ids=lambda value: str(value)[:40])
def test_our_model_refuses(key: str, value: Any, why: str) -> None:
    content = rl_config(Hyperparameters(student="qwen3-0.6b"), place(), MIN_SEQ_LEN, 0).model_dump()
    assert RLConfig.model_validate(content)
    *path, last = key.split(".")
    table = content
    for part in path:
        table = table[part]
    table[last] = value
    with pytest.raises(ValidationError) as caught:
        RLConfig.model_validate(content)
    assert why in str(caught.value)


@pytest.mark.parametrize("part", ["harness", "runtime"])
def test_harness_and_runtime_can_not_be_other_than_ours(part: str) -> None:
    content = rl_config(Hyperparameters(student="qwen3-0.6b"), place(), MIN_SEQ_LEN, 0).model_dump()
    agent = content["orchestrator"]["train"]["source"][0]["env"]["agent"]
    agent[part] = {"id": "bash"} if part == "harness" else {"type": "prime"}
    with pytest.raises(ValidationError):
        RLConfig.model_validate(content)


@given(prompt=st.integers(0, 30_000), completion=st.integers(1, 4096))
def test_the_longest_prompt_and_its_completion_fit(prompt: int, completion: int) -> None:
    length = sequence_length(prompt, completion)
    assert length >= max(MIN_SEQ_LEN, prompt + TEMPLATE_TOKENS + completion)
    assert length % 64 == 0


def test_a_server_of_our_own_has_the_same_settings() -> None:
    hp = Hyperparameters(student="qwen3-1.7b", lora_rank=8)
    shared = rl_config(hp, place(), 4096, 7).inference
    assert rl_config(hp, place(own_server=True), 4096, 7).inference is None
    assert server_config(hp, place(own_server=True), 4096, 7) == shared


def test_the_documented_configuration_is_the_one_we_write() -> None:
    text = (Path(__file__).parents[2] / "docs" / "prime-rl.md").read_text()
    shown = text.split("## The configuration")[1].split("```toml\n")[1].split("```")[0]
    hp = Hyperparameters(
        student="qwen3-0.6b",
        learning_rate=1e-4,
        max_steps=100,
        batch_size=128,
        group_size=16,
        max_completion_tokens=512,
    )
    content = tomllib.loads(shown)
    [source] = content["orchestrator"]["train"]["source"]
    where = place(
        output_dir=Path(content["output_dir"]),
        rows=Path(source["env"]["taskset"]["rows"]),
        socket=Path(source["env"]["taskset"]["task"]["socket"]),
    )
    assert shown == toml(rl_config(hp, where, sequence_length(1000, hp.max_completion_tokens), 0))
