"""A ledger of a small run, written by hand so that every number of a report can be checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import reference_answer

from trainwright.agent.brief import compact_brief
from trainwright.agent.policy import Completion
from trainwright.config import RunConfig
from trainwright.ledger import Attempt, Episode, Ledger, Step
from trainwright.suites.family import family_named


def write_episode(ledger: Ledger, id: str, arm: str, step: int, family: str, **facts: Any) -> None:
    """Write a trained episode of its own group; facts change it."""
    task = family_named(family).draw(step)
    group = id.rpartition("-")[0]
    ledger.add_group(group, arm, step, 0, family, {"seed": step})
    brief = compact_brief(task)
    ledger.add_attempts([(id, Attempt(0, brief, Completion(reference_answer(brief))))])
    values: dict[str, Any] = {
        "outcome": "TRAINED", "valid": True, "pre": 0.2, "post": 0.5, "gain": 0.5, "reward": 0.5,
        "cpu_seconds": {"learning": 0.5, "other": 0.25},
    }  # fmt: skip
    ledger.finish(Episode(id, group, arm, step, family, **(values | facts)))


def fill(ledger: Ledger, config: RunConfig) -> None:
    """Write two steps of one episode a family, and probes whose pairs differ by 0.2 and 0.4."""
    ledger.set("config", json.loads(config.model_dump_json()))
    ledger.set("wall_seconds", 60.0)
    ledger.set("sandbox", "full")
    ledger.set("versions", {"trainwright": "0.1.0"})
    ledger.set("students", {"nano-64": "abc"})
    for step in range(2):
        write_episode(ledger, f"train-{step:04d}-0-0", "train", step, "sort", gain=0.5 + step / 4)
        rejected = {"outcome": "REJECTED", "reason": "syntax", "pre": None, "post": None, "gain": 0.0, "reward": 0.0}
        write_episode(ledger, f"train-{step:04d}-1-0", "train", step, "count", **rejected)
        metrics = {"reward": 0.25 + step / 4, "gain": 0.2, "validity": 0.5, "job_faults": 0.0, "infra_dropped": 0}
        ledger.commit_step(Step(step, 0.3, metrics, f"checkpoints/step-{step + 1:04d}", 10.0))
    for number, (before, after) in enumerate([(0.1, 0.3), (0.2, 0.6)]):
        write_episode(ledger, f"probe-before-0000-{number:03d}-0", "probe-before", 0, "shift", gain=before)
        write_episode(ledger, f"probe-after-0002-{number:03d}-0", "probe-after", 2, "shift", gain=after)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(folder=tmp_path / "run", steps=2, probe={"episodes": 2})  # type: ignore[arg-type]


@pytest.fixture
def make_ledger(config: RunConfig) -> Callable[..., Ledger]:
    """Return a function that makes the run's ledger, filled or empty."""

    def make(filled: bool = True) -> Ledger:
        config.folder.mkdir()
        ledger = Ledger(config.folder / "ledger.sqlite")
        if filled:
            fill(ledger, config)
        return ledger

    return make


@pytest.fixture
def add_episode() -> Callable[..., None]:
    return write_episode
