"""One job by hand, over a pool that trains nothing: what is printed, and which exit code says what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import INFRA, JOB_FAULT, InstantPool

from trainwright.cli import main
from trainwright.job.job import Job
from trainwright.suites.family import Task, family_named

FAMILY = family_named("sort")
TASK: Task = FAMILY.draw(3)
OWN = ("import random\n", "import random\n# not the reference job\n")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstantPool:
    """Put a fake pool in the place of the local one, and a cache of its own behind it."""
    pool = InstantPool()

    async def built(*_: Any) -> dict[str, str]:
        return {}

    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("trainwright.backends.make_pool", lambda _: pool)
    monkeypatch.setattr("trainwright.run.prepare_students", built)
    return pool


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """Return a file with the task's reference job, changed."""
    text = FAMILY.reference_job(TASK, "nano-64").render()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "job.md").write_text(text)
    return folder / "job.md"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["trainwright", *map(str, arguments), "--task", "sort:3"])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_a_trained_job_has_scores_and_weights(
    pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "weights"
    assert call(monkeypatch, "train", written(tmp_path, OWN), "--items", 200, "--out", out) == 0
    shown = capsys.readouterr().out
    for part in (TASK.brief, "gate: accepted", "student nano-64: 0.", "uplift 0.", "gain +", "960 rollouts"):
        assert part in shown
    assert float(out.read_bytes()) > 0.8


def test_the_scores_follow_the_seed_alone(
    pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def numbers(*arguments: object) -> list[str]:
        assert call(monkeypatch, "train", written(tmp_path), *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith(("student", "uplift", "gain"))]

    assert numbers("--seed", 1) == numbers("--seed", 1)
    assert numbers("--seed", 1) != numbers("--seed", 2)


def test_a_job_that_fails_says_why_and_ends_with_1(
    pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = written(tmp_path, ("import random\n", f"import random\n{JOB_FAULT}\n"))
    assert call(monkeypatch, "train", job) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "JOB_FAULT: it died [killed]"
    assert err == ""


def test_a_machine_that_fails_is_not_the_jobs_fault_and_ends_with_3(
    pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = written(tmp_path, ("import random\n", f"import random\n{INFRA}\n"))
    assert call(monkeypatch, "train", job) == 3
    assert capsys.readouterr().err == "trainwright: this machine failed, not the job: it was lost [worker_lost]\n"


@pytest.mark.parametrize("verb", ["gate", "train"])
def test_a_refused_job_costs_no_worker(
    verb: str, pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = written(tmp_path, ("max_steps = 15", "max_steps = 1000"))
    assert call(monkeypatch, verb, job) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("[budget]")
    assert (pool.gated, pool.trained) == ([], [])


def test_a_folder_and_an_answer_are_the_same_job(
    pool: InstantPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    Job.parse(path.read_text()).write(tmp_path / "job")
    for one in (path, tmp_path / "job"):
        assert call(monkeypatch, "gate", one) == 0
        assert capsys.readouterr().out == "accepted\n"
    assert len(set(pool.gated)) == 1
