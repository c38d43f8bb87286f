"""`trainwright run`, the real thing: what it leaves, how it is stopped and killed, and that it ends the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainwright.config import load_config
from trainwright.errors import TrainwrightError
from trainwright.job.job import Job
from trainwright.ledger import Ledger

Trainwright = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[[Sequence[object], Path], subprocess.Popen[str]]
EPISODES = 2 * 2 * 3 + 2 + 1 + 2  # training, and the probes before, between and after


def fingerprint(folder: Path) -> str:
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    try:
        return ledger.fingerprint()
    finally:
        ledger.close()


def episodes_done(folder: Path) -> int:
    """Return how many episodes are in the ledger of a run that works, or has not begun."""
    try:
        ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    except TrainwrightError:
        return 0
    try:
        return len(ledger.all_episodes())
    finally:
        ledger.close()


# What a run leaves


def test_the_summary_has_every_field(finished: Any) -> None:
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert (summary["seed"], summary["steps"], summary["infra_dropped"]) == (0, 2, 0)
    for name in ("first_step_reward", "last5_reward", "last5_gain", "validity"):
        assert isinstance(summary[name], float)
    held_out = summary["held_out"]
    assert (held_out["family"], held_out["episodes_per_arm"]) == ("shift", 2)
    assert held_out["difference"] == pytest.approx(held_out["after"] - held_out["before"])
    assert len(held_out["ci95"]) == 2
    assert summary["jobs"] > 0
    assert 0 < summary["cpu_seconds_per_job"] < 60
    assert summary["jobs_per_minute"] == pytest.approx(60 * summary["jobs"] / summary["wall_seconds"])
    assert summary["sandbox"] in ("full", "reduced")
    assert {"trainwright", "torch", "verifiers", "python"} <= summary["versions"].keys()
    assert summary["students"].keys() == {"nano-48", "nano-64"}
    assert summary["ledger_sha256"] == fingerprint(finished.folder)


def test_the_folder_holds_what_the_readme_says(finished: Any, tiny: Path) -> None:
    names = {path.name for path in finished.folder.iterdir() if not path.name.startswith(".")}
    assert {"run.toml", "ledger.sqlite", "metrics.jsonl", "summary.json", "curve.png", "checkpoints"} <= names
    rows = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert {"reward", "gain", "uplift", "validity", "job_faults", "groups_without_spread", "seconds"} <= rows[0].keys()
    assert sorted(path.name for path in (finished.folder / "checkpoints").iterdir()) == ["step-0001", "step-0002"]
    assert (finished.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert set(Job.load(finished.folder / "best-job").files) == {"environment.py", "train.toml"}
    settings = tomllib.loads((finished.folder / "run.toml").read_text())
    assert settings["measure"] == {"items": 32, "reference_items": 32, "reference_seeds": 1}
    assert settings["agent"]["learning_rate"] > 0  # defaults are resolved
    assert load_config(finished.folder / "run.toml").steps == load_config(tiny).steps


def test_every_episode_is_there_with_its_story(finished: Any) -> None:
    ledger = Ledger(finished.folder / "ledger.sqlite", read_only=True)
    episodes = ledger.all_episodes()
    assert len(episodes) == EPISODES
    for episode in episodes:
        attempts = ledger.attempts(episode.id)
        assert len(attempts) == episode.attempts == 1
        assert attempts[0].messages[0]["role"] == "user"
        assert attempts[0].verdict is not None
        assert (attempts[0].verdict == "") == episode.valid
        assert episode.reward is not None
        if episode.outcome == "TRAINED":
            assert episode.metrics
            assert episode.worker
            assert None not in (episode.pre, episode.post, episode.reference)
    ledger.close()


def test_the_output_names_the_numbers_and_the_next_command(finished: Any) -> None:
    for part in ("2 workers, sandbox: ", "step 1/2", "step 2/2", "mean reward a step", "held-out shift: gain"):
        assert part in finished.output
    assert f"trainwright train {finished.folder / 'best-job'} --task " in finished.output
    assert "\x1b" not in finished.output


def test_status_reads_it(finished: Any, trainwright: Trainwright) -> None:
    shown = trainwright("status", finished.folder)
    assert shown.returncode == 0
    assert f"{finished.folder}: finished, 2 of 2 steps, seed 0" in shown.stdout


# Started again


def test_a_second_start_does_nothing_new(finished: Any, tiny: Path, trainwright: Trainwright) -> None:
    before = (finished.folder / "summary.json").read_bytes()
    again = trainwright("run", tiny, "--set", f"folder={finished.folder}")
    assert again.returncode == 0
    assert "workers" not in again.stdout
    assert "mean reward a step" in again.stdout
    assert (finished.folder / "summary.json").read_bytes() == before


def test_changed_settings_are_refused_by_name(finished: Any, tiny: Path, trainwright: Trainwright) -> None:
    before = fingerprint(finished.folder)
    folder = ("--set", f"folder={finished.folder}")
    refused = trainwright("run", tiny, *folder, "--set", "group_size=4", "--set", "agent.epochs=3")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "(agent.epochs, group_size)" in line
    assert str(finished.folder) in line
    assert fingerprint(finished.folder) == before
    assert tomllib.loads((finished.folder / "run.toml").read_text())["group_size"] == 3


def test_a_run_stopped_and_killed_again_and_again_ends_like_one_that_was_not(
    finished: Any, tiny: Path, trainwright: Trainwright, start: Start, processes: Any, tmp_path: Path
) -> None:
    folder, rng = tmp_path / "run", random.Random(5)
    command = ["run", tiny, "--plain", "--set", f"folder={folder}"]
    moments = sorted(rng.sample(range(1, EPISODES - 4), 3))
    for number, (moment, how) in enumerate(
        zip([0, *moments], (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGKILL), strict=True)
    ):
        log = tmp_path / f"log-{number}"
        process = start(command, log)
        while episodes_done(folder) < moment or not log.read_text():  # its first line comes once the folder is its own
            assert process.poll() is None, log.with_suffix(".err").read_text()
            time.sleep(0.02)
        time.sleep(rng.random() / 3)
        if how == signal.SIGINT:
            os.kill(process.pid, signal.SIGSTOP)  # it must not end before the second one has looked
            second = trainwright(*command)
            assert (second.returncode, second.stdout) == (2, "")
            assert "another trainwright process is working in this run folder" in second.stderr
            assert ": working, " in trainwright("status", folder).stdout
            os.kill(process.pid, signal.SIGCONT)
        below = processes.descendants(process.pid)
        os.kill(process.pid, how)
        process.wait(120)
        assert processes.eventually(lambda: not any(map(processes.alive, below)), 60.0)  # noqa: B023
        said = log.with_suffix(".err").read_text()
        if how == signal.SIGINT:
            assert process.returncode == 130, said
            again = " ".join(map(str, ["trainwright", *command[:2], *command[3:], "--plain"]))
            assert said == f"\nstopped; nothing is lost. Resume with: {again}\n"
        else:
            assert process.returncode == -signal.SIGKILL
    done = trainwright(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert fingerprint(folder) == fingerprint(finished.folder)
    ours, theirs = (json.loads((where / "summary.json").read_text()) for where in (folder, finished.folder))
    for name in ("first_step_reward", "last5_reward", "last5_gain", "validity", "held_out", "jobs", "ledger_sha256"):
        assert ours[name] == theirs[name]


def test_ctrl_c_while_a_base_student_is_built_leaves_nothing_half_built(
    tiny: Path, start: Start, processes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    process = start(["run", tiny, "--set", f"folder={tmp_path / 'run'}"], tmp_path / "log")
    while not list(tmp_path.glob("cache/students/.*.lock")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 130
    said = (tmp_path / "log.err").read_text()
    assert said.startswith("\nstopped; nothing is lost. Resume with: trainwright run ")
    assert len(said.splitlines()) == 2
    assert not list(tmp_path.glob("cache/students/*.safetensors"))


# A machine that fails


@pytest.mark.parametrize("folder", ["/proc/no/such/place", "a-file"])
def test_a_folder_that_cannot_be_made_is_one_line(
    tiny: Path, trainwright: Trainwright, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "a-file").write_text("")
    refused = trainwright("run", tiny, "--set", f"folder={tmp_path / folder}")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert f"{tmp_path / folder} can't be used" in refused.stderr


def test_a_cache_that_cannot_be_made_is_one_line(tiny: Path, trainwright: Trainwright, tmp_path: Path) -> None:
    environment = os.environ | {"TRAINWRIGHT_CACHE": "/proc/no/such/place"}
    refused = trainwright("run", tiny, "--set", f"folder={tmp_path / 'run'}", env=environment)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "set TRAINWRIGHT_CACHE to another folder" in refused.stderr


def test_a_full_disk_is_one_line(tiny: Path, tmp_path: Path) -> None:
    script = 'ulimit -f 8; exec "$@"'  # files of 4 or 8 KiB at most, in whatever blocks this shell counts
    program = Path(sys.executable).with_name("trainwright")
    command = ["bash", "-c", script, "bash", str(program), "run", str(tiny)]
    refused = subprocess.run(
        [*command, "--set", f"folder={tmp_path / 'run'}"], capture_output=True, text=True, check=False, timeout=300
    )
    assert refused.returncode in (2, 3)
    assert len(refused.stderr.splitlines()) == 1
    assert str(tmp_path / "run") in refused.stderr
