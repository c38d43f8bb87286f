"""The warm start: built once, the same each time, and it makes job texts likely."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainwright.agent import warm_start
from trainwright.agent.brief import compact_brief
from trainwright.agent.corpus import synthetic_job, synthetic_task
from trainwright.agent.local import LocalPolicy
from trainwright.agent.tokenizer import END
from trainwright.agent.warm_start import warm_started
from trainwright.config import AgentConfig
from trainwright.errors import ConfigError

CONFIG = AgentConfig(warm_start_steps=6, max_tokens=24)


@pytest.fixture(autouse=True)
def quick_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "TOKENIZER_TEXTS", 60)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    base = tmp_path_factory.mktemp("caches")
    return lambda name: base / name


@pytest.fixture
def cache(folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that switches to a cache folder that the tests of this file share by name."""
    return lambda name: monkeypatch.setenv("TRAINWRIGHT_CACHE", str(folders(name)))


def never(done: int, total: int) -> None:
    pytest.fail("it was in the cache already")


def surprise(policy: LocalPolicy) -> float:
    """Return the mean surprise of a token of synthetic jobs, in nats."""
    rng, total, count = random.Random(77), 0.0, 0
    for _ in range(4):
        task = synthetic_task(rng)
        tokens = [*policy.tokenizer.encode(synthetic_job(task, rng)).ids, END]
        with torch.no_grad():
            logprobs, _ = policy.model.logprobs(
                [policy.encode(compact_brief(task))], torch.tensor([tokens]), temperature=1.0
            )
        total, count = total - float(logprobs.sum()), count + len(tokens)
    return total / count


def test_it_is_built_once_and_then_read(cache: Callable[[str], None]) -> None:
    cache("one")
    seen: list[tuple[int, int]] = []
    built = warm_started(CONFIG, 0, lambda done, total: seen.append((done, total)))
    assert seen == [(step, 6) for step in range(1, 7)]
    read = warm_started(CONFIG, 0, never)
    assert read.model.save() == built.model.save()
    assert read.tokenizer.to_str() == built.tokenizer.to_str()


def test_two_machines_build_the_same_and_seeds_differ(cache: Callable[[str], None]) -> None:
    cache("one")
    one = warm_started(CONFIG, 0)
    cache("two")
    assert warm_started(CONFIG, 0).model.save() == one.model.save()
    assert warm_started(CONFIG, 1).model.save() != one.model.save()


def test_settings_that_do_not_matter_share_it(cache: Callable[[str], None]) -> None:
    cache("one")
    warm_started(CONFIG, 0)
    warm_started(CONFIG.model_copy(update={"learning_rate": 0.5, "temperature": 0.3}), 0, never)


def test_it_makes_job_texts_likelier(cache: Callable[[str], None]) -> None:
    cache("one")
    untrained = warm_started(CONFIG.model_copy(update={"warm_start_steps": 0}), 0)
    assert surprise(warm_started(CONFIG, 0)) < surprise(untrained) - 0.5


def test_the_policy_can_sample_at_once(cache: Callable[[str], None]) -> None:
    cache("one")
    policy = warm_started(CONFIG, 0)
    (answer,) = asyncio.run(policy.sample([compact_brief(synthetic_task(random.Random(0)))], 1))
    assert answer.tokens


def test_a_damaged_file_is_named(cache: Callable[[str], None], folders: Callable[[str], Path]) -> None:
    cache("three")
    warm_started(CONFIG.model_copy(update={"warm_start_steps": 0}), 0)
    (weights,) = folders("three").glob("agents/*/model.safetensors")
    weights.write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"model\.safetensors: .*delete this folder") as caught:
        warm_started(CONFIG.model_copy(update={"warm_start_steps": 0}), 0)
    assert "\n" not in str(caught.value)


def test_what_the_progress_raises_stops_the_build(cache: Callable[[str], None], folders: Callable[[str], Path]) -> None:
    cache("four")

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        warm_started(CONFIG, 0, stop)
    assert not list(folders("four").glob("agents/*/model.safetensors"))
