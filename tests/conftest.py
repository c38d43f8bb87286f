"""What every test shares: properties are tried without a clock, since a busy machine is no defect; and processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("trainwright", deadline=None)
settings.load_profile("trainwright")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a background job; its children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def descendants(pid: int) -> set[int]:
    """Return the process ids below one process, zombies excluded."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def children(pid: int) -> set[int]:
    """Return the direct children of one single-threaded process."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Processes:
    """What tests ask about processes."""

    descendants = staticmethod(descendants)
    children = staticmethod(children)
    alive = staticmethod(alive)
    eventually = staticmethod(eventually)
    own = os.getpid()


@pytest.fixture
def processes() -> Processes:
    return Processes()
