"""The whole nested loop, small but real: a run, a run that is killed and resumed, and a second start.

Real workers, real sandbox, real training; only the numbers of steps and items are small.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.ledger import Ledger

SETTINGS = """
folder = {folder}
seed = 3
steps = 2
groups = 2
group_size = 3
[agent]
warm_start_steps = 40
[measure]
items = 16
reference_items = 16
reference_seeds = 1
[probe]
episodes = 2
every = 1
episodes_between = 1
"""


def write_settings(folder: Path) -> Path:
    file = folder.with_suffix(".toml")
    file.write_text(SETTINGS.format(folder=json.dumps(str(folder))))
    return file


def command(file: Path) -> list[str]:
    return [sys.executable, "-m", "trainwright.cli", "run", str(file), "--plain"]


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "unkilled"
    subprocess.run(command(write_settings(folder)), check=True, timeout=900)
    return folder


def fingerprint(folder: Path) -> str:
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    try:
        return ledger.fingerprint()
    finally:
        ledger.close()


def test_a_run_leaves_what_it_promises(unkilled: Path) -> None:
    summary = json.loads((unkilled / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["held_out"]["episodes_per_arm"] == 2
    assert {"first_step_reward", "last5_reward", "last5_gain", "validity", "jobs", "wall_seconds"} <= summary.keys()
    assert len((unkilled / "metrics.jsonl").read_text().splitlines()) == 2
    assert (unkilled / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (unkilled / "run.toml").exists()
    assert len(list((unkilled / "checkpoints").iterdir())) >= 1


def test_a_second_start_changes_nothing(unkilled: Path) -> None:
    before = fingerprint(unkilled)
    subprocess.run(command(unkilled.with_suffix(".toml")), check=True, timeout=300)
    assert fingerprint(unkilled) == before


def test_other_settings_are_refused(unkilled: Path) -> None:
    done = subprocess.run(
        [*command(unkilled.with_suffix(".toml")), "--set", "groups=3"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "groups" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_run_resumes_to_the_same_ledger(unkilled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    file = write_settings(folder)
    rng = random.Random(1)
    for _ in range(3):
        process = subprocess.Popen(command(file), stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        for line in process.stdout:  # kill some time after the workers are ready
            if "workers" in line:
                break
        time.sleep(rng.uniform(0.2, 6.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    subprocess.run(command(file), check=True, timeout=900)
    assert fingerprint(folder) == fingerprint(unkilled)


def test_interrupt_stops_cleanly_and_says_how_to_resume(tmp_path: Path) -> None:
    file = write_settings(tmp_path / "stopped")
    process = subprocess.Popen(
        command(file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "workers" in line:
            break
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "esume with: trainwright run" in stderr
    assert "Traceback" not in stderr
