from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.environment import landlock

PROBE = """
import ctypes, os, sys
sys.path.insert(0, {sources!r})
import landlock
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
rules = [({readable!r}, landlock.READ), ({writable!r}, landlock.EVERYTHING), ("/nothing/there", landlock.READ)]
landlock.restrict(rules)
for attempt in {attempts!r}:
    try:
        exec(attempt)
        print("done")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    found = (tmp_path / "readable", tmp_path / "writable", tmp_path / "secret")
    for folder in found:
        folder.mkdir()
        (folder / "file").write_text("x")
    return found


def results(folders: tuple[Path, Path, Path], *attempts: str) -> list[str]:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    source = PROBE.format(
        sources=str(Path(landlock.__file__).parent),
        readable=str(folders[0]),
        writable=str(folders[1]),
        attempts=attempts,
    )
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_only_what_is_named_can_be_read_and_written(folders: tuple[Path, Path, Path]) -> None:
    readable, writable, secret = map(str, folders)
    assert (
        results(
            folders,
            f"open('{readable}/file').read()",
            f"os.listdir('{readable}')",
            f"open('{readable}/file', 'w')",
            f"open('{readable}/new', 'w')",
            f"open('{writable}/new', 'w').write('x')",
            f"os.mkdir('{writable}/folder')",
            f"os.unlink('{writable}/file')",
            f"open('{secret}/file')",
            f"os.listdir('{secret}')",
            f"os.unlink('{secret}/file')",
            f"os.rename('{secret}/file', '{writable}/file')",
            f"os.symlink('{secret}/file', '{writable}/link'); open('{writable}/link')",
        )
        == ["done", "done"] + ["PermissionError"] * 2 + ["done"] * 3 + ["PermissionError"] * 5
    )


def test_signals_and_tcp_are_refused_where_the_kernel_can(folders: tuple[Path, Path, Path]) -> None:
    signals, tcp = results(
        folders,
        "os.kill(os.getppid(), 0)",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
    )
    version = landlock.abi()
    assert signals == ("PermissionError" if version >= 6 else "done")
    assert tcp == ("PermissionError" if version >= 4 else "ConnectionRefusedError")
