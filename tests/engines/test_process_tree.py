"""Programs that don't want to end."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.engines.process_tree import ProcessTree, descendants

Start = Callable[..., ProcessTree]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def made(program: str, grace_seconds: float = 5.0) -> ProcessTree:
        return ProcessTree(
            [sys.executable, "-S", "-c", textwrap.dedent(program), str(tmp_path)],
            environment={"PATH": os.environ["PATH"], "MARK": "1"},
            folder=tmp_path,
            log=tmp_path / "log",
            grace_seconds=grace_seconds,
        )

    return made


def eventually(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.01)
    return bool(condition())


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("program", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
    ids=["ends", "fails", "is killed"],
)
def test_a_program_s_end_is_reported(start: Start, program: str, status: int) -> None:
    with start(program) as tree:
        assert eventually(lambda: tree.poll() is not None)
        assert tree.poll() == status
    assert tree.stop() == status


def test_output_goes_to_the_log_and_only_the_given_environment_is_seen(start: Start, tmp_path: Path) -> None:
    with start("import os, sys; print(sorted(os.environ), os.getcwd(), sys.stdin.read())") as tree:
        assert eventually(lambda: tree.poll() is not None)
    said = (tmp_path / "log").read_text()
    assert "'MARK', 'PATH'" in said
    assert "HOME" not in said
    assert str(tmp_path) in said


def test_a_missing_program_is_status_127(tmp_path: Path) -> None:
    with ProcessTree(["/no/such"], environment={}, folder=tmp_path, log=tmp_path / "log", grace_seconds=1) as tree:
        assert eventually(lambda: tree.poll() == 127)
    assert "/no/such: No such file or directory" in (tmp_path / "log").read_text()


WAITS = """
import signal, sys, time
def end(*_):
    open(sys.argv[1] + "/ended", "w").write("x")
    raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + "/ready", "w").write("x")
time.sleep(600)
"""


def test_a_program_is_asked_before_it_is_killed(start: Start, tmp_path: Path) -> None:
    with start(WAITS) as tree:
        assert eventually((tmp_path / "ready").exists)
        assert tree.stop() == 0
    assert (tmp_path / "ended").exists()


FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:              # a child in a session of its own, whose parent ends
    os.setsid()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        time.sleep(600)
    os._exit(0)
open(sys.argv[1] + "/ready", "w").write("x")
time.sleep(600)
"""


def test_what_ignores_everything_is_killed_with_its_whole_family(start: Start, tmp_path: Path) -> None:
    tree = start(FAMILY, grace_seconds=0.2)
    assert eventually(lambda: len(descendants(tree.pid)) == 3)
    family = descendants(tree.pid)
    assert tree.stop() == 137
    assert all(map(gone, family))


def test_orphans_of_a_program_that_ended_are_killed(start: Start) -> None:
    family: set[int] = set()
    with start("import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)\n") as tree:
        assert eventually(lambda: family.update(descendants(tree.pid)) or tree.poll() is not None)
        assert tree.poll() == 0
    assert all(map(gone, family))


def test_a_program_that_ends_while_nobody_looks_leaves_no_zombie(start: Start) -> None:
    with start("import os, time\nfor _ in range(50):\n    os.fork() or os._exit(0)\ntime.sleep(600)") as tree:
        assert eventually(lambda: len(descendants(tree.pid)) == 1)


def test_the_program_is_asked_to_end_when_its_supervisor_is_killed(start: Start, tmp_path: Path) -> None:
    tree = start(WAITS)
    assert eventually((tmp_path / "ready").exists)
    [program] = descendants(tree.pid)
    os.kill(tree.pid, signal.SIGKILL)
    assert eventually(lambda: gone(program))
    assert (tmp_path / "ended").exists()
    tree.stop()
