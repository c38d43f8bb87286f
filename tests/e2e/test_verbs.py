"""`gate` and `train` on real jobs, as a user works with one job by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainwright.job.job import Job
from trainwright.students.registry import base_student

Trainwright = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[[Sequence[object], Path], subprocess.Popen[str]]
TASK = "sort:3"


@pytest.fixture(scope="module")
def reference(trainwright: Trainwright, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the task's reference job, as `families` prints it."""
    path = tmp_path_factory.mktemp("jobs") / "reference.md"
    path.write_text(trainwright("families", "--reference", TASK).stdout)
    return path


def changed(reference: Path, folder: Path, old: str, new: str) -> Path:
    """Return a folder with the reference job, changed."""
    text = reference.read_text()
    assert text.count(old) == 1
    Job.parse(text.replace(old, new)).write(folder / "job")
    return folder / "job"


def test_the_gate_accepts_and_refuses(trainwright: Trainwright, reference: Path, tmp_path: Path) -> None:
    accepted = trainwright("gate", reference, "--task", TASK)
    assert (accepted.returncode, accepted.stdout, accepted.stderr) == (0, "accepted\n", "")
    job = changed(reference, tmp_path, "max_steps = 15", "max_steps = 1000")
    refused = trainwright("gate", job, "--task", TASK)
    assert (refused.returncode, refused.stderr) == (1, "")
    (line,) = refused.stdout.splitlines()
    assert line.startswith("train.toml:3: ")
    assert line.endswith("[budget]")


def test_a_job_is_trained_measured_and_saved(trainwright: Trainwright, reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights" / "sort.safetensors"
    done = trainwright("train", reference, "--task", TASK, "--items", 64, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("gate: accepted", "the job's own reward a step", "student nano-64: ", "uplift ", "gain ", "rollouts"):
        assert part in done.stdout
    assert f"trained weights: {out}" in done.stdout
    base_student("nano-64").fresh().load(out.read_bytes())


def test_ctrl_c_ends_a_training_quietly(start: Start, reference: Path, processes: Any, tmp_path: Path) -> None:
    process = start(["train", reference, "--task", TASK], tmp_path / "log")
    while not processes.descendants(process.pid):
        assert process.poll() is None
        time.sleep(0.02)
    below = processes.descendants(process.pid)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert "Traceback" not in (tmp_path / "log.err").read_text()
    assert processes.eventually(lambda: not any(map(processes.alive, below)))
