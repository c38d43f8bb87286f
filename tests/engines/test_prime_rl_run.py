"""A run folder that grows: rows that come in pieces, steps that come in parts."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.engines.prime_rl_run import RunFolder, tail

TRAINER = [{"optim/lr": 1e-4, "optim/grad_norm": 0.5}, {"loss/mean": 0.1}, {"time/forward_backward": 2.0}]
ORCHESTRATOR = [{"progress/rollouts": 64, "train/agg/effective/agent/reward/mean": 0.25}]


def lines(step: int, *parts: dict[str, float]) -> str:
    return "".join(json.dumps({"step": step, "time": 0.0, **part}) + "\n" for part in parts)


def add(run: RunFolder, text: str) -> None:
    run.path.mkdir(exist_ok=True)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run", max_steps=2)


def test_a_step_is_reported_once_and_only_when_both_sides_have(run: RunFolder) -> None:
    assert run.new_steps() == []
    add(run, lines(1, *TRAINER))
    assert run.new_steps() == []
    add(run, lines(2, *TRAINER, *ORCHESTRATOR))
    assert run.new_steps() == []  # in order
    add(run, lines(1, *ORCHESTRATOR))
    first, second = run.new_steps()
    assert (first["step"], second["step"]) == (1.0, 2.0)
    assert first == {
        "step": 1.0,
        "reward_mean": 0.25,
        "rollouts": 64.0,
        "loss": 0.1,
        "grad_norm": 0.5,
        "learning_rate": 1e-4,
    }
    assert run.new_steps() == []


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_it_does_not_matter_in_which_pieces_the_file_is_written(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    run = RunFolder(tmp_path_factory.mktemp("pieces"), max_steps=2)
    text = lines(1, *TRAINER, *ORCHESTRATOR) + lines(2, *ORCHESTRATOR, *TRAINER)
    found = []
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, stop in itertools.pairwise(places):
        add(run, text[start:stop])
        found += run.new_steps()
    assert [row["step"] for row in found] == [1.0, 2.0]


def test_lines_that_are_no_rows_are_passed_over(run: RunFolder) -> None:
    add(run, 'nonsense\n[]\n{"step": "x"}\n{"time": 1}\n' + lines(1, *TRAINER, *ORCHESTRATOR))
    assert len(run.new_steps()) == 1


@pytest.mark.parametrize("lost", ["loss/mean", "optim/grad_norm"])
def test_a_missing_number_is_one_that_was_not_finite(run: RunFolder, lost: str) -> None:
    good = {key: value for part in TRAINER for key, value in part.items()}
    add(run, lines(1, good) + lines(2, {key: value for key, value in good.items() if key != "time/forward_backward"}))
    run.new_steps()
    assert run.not_finite() == 0
    add(run, lines(3, {key: value for key, value in good.items() if key != lost}))
    run.new_steps()
    assert run.not_finite() == 3


def test_an_adapter_is_there_once_it_is_stable(run: RunFolder) -> None:
    folder = run.path / "broadcasts" / "step_2"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").touch()
    (run.path / "broadcasts" / "step_1").mkdir()
    (run.path / "broadcasts" / "step_1" / "STABLE").touch()
    assert run.adapter() is None
    (folder / "STABLE").touch()
    assert run.adapter() == folder


def test_the_last_change_is_that_of_the_newest_file(run: RunFolder) -> None:
    assert run.last_change() == 0.0
    add(run, "")
    logs = run.path / "logs" / "attempt_1" / "envs" / "train"
    logs.mkdir(parents=True)
    (run.path / "logs" / "latest").symlink_to("attempt_1")
    os.utime(run.path / "metrics.jsonl", (1000, 1000))
    assert run.last_change() == 1000
    (logs / "job.log").write_text("hello")
    os.utime(logs / "job.log", (2000, 2000))
    assert run.last_change() == 2000


def test_a_log_s_end_comes_without_colours(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log") == ""
    (tmp_path / "a.log").write_bytes(b"x" * (1 << 20) + b"\n\x1b[31mERROR\x1b[0m \xff bad\n")
    text = tail(tmp_path / "a.log")
    assert len(text) <= 1 << 16
    assert text.endswith("\nERROR \ufffd bad\n")
