"""The command line as users start it, on a run small enough for tests: two steps, seventeen episodes, real training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TRAINWRIGHT = str(Path(sys.executable).with_name("trainwright"))

TINY = """\
steps = 2
groups = 2
group_size = 3

[agent]
warm_start_steps = 200

[pool]
workers = 2

[measure]
items = 32
reference_items = 32
reference_seeds = 1

[probe]
episodes = 2
every = 1
episodes_between = 1
"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


Trainwright = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def trainwright() -> Trainwright:
    """Return a function that runs the command to its end and returns what it printed."""

    def call(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [TRAINWRIGHT, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **options)  # type: ignore[call-overload, no-any-return]

    return call


@dataclass(frozen=True)
class Finished:
    """A run that was never stopped: its folder and what it printed."""

    folder: Path
    output: str


@pytest.fixture(scope="session")
def finished(tiny: Path, trainwright: Trainwright, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = trainwright("run", tiny, "--plain", "--set", f"folder={folder}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Finished(folder, done.stdout)


@pytest.fixture
def start() -> Callable[[Sequence[object], Path], subprocess.Popen[str]]:
    """Return a function that starts the command with its output in a file, and ends what a failed test left."""
    started: list[subprocess.Popen[str]] = []

    def begin(arguments: Sequence[object], log: Path) -> subprocess.Popen[str]:
        with open(log, "w") as out, open(log.with_suffix(".err"), "w") as err:
            started.append(subprocess.Popen([TRAINWRIGHT, *map(str, arguments)], stdout=out, stderr=err, text=True))
        return started[-1]

    yield begin  # type: ignore[misc]
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
