"""The cache folder: whole files only, one builder at a time, names that change with the content."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from trainwright.cache import cache_folder, content_hash, locked, write_atomically
from trainwright.errors import ConfigError


def test_the_variable_chooses_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert cache_folder().is_dir()


def test_without_it_the_users_cache_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "trainwright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "trainwright"


def test_a_folder_that_cannot_be_made_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"file/cache can't be made: .*TRAINWRIGHT_CACHE"):
        cache_folder()


def test_a_write_replaces_the_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"\0" * 1_000_000)
    code = (
        "import itertools, sys; from pathlib import Path; from trainwright.cache import write_atomically\n"
        "for n in itertools.count(1): write_atomically(Path(sys.argv[1]), bytes([n % 256]) * 1_000_000)"
    )
    for _ in range(3):
        before = path.read_bytes()
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while path.read_bytes() == before:
            time.sleep(0.005)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        data = path.read_bytes()
        assert len(data) == 1_000_000
        assert len(set(data)) == 1


def test_a_lock_is_held_against_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = (
        "import sys; from pathlib import Path; from trainwright.cache import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    class GivenUp(Exception):
        pass

    def give_up() -> None:
        raise GivenUp

    with pytest.raises(GivenUp), locked(path, give_up):
        pytest.fail("two processes hold one lock")
    holder.communicate("")
    with locked(path, give_up):
        pass


def module(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def test_a_hash_changes_with_any_value_and_with_code(tmp_path: Path) -> None:
    first = module(tmp_path / "recipe.py", "RATE = 1\n")
    hashes = [content_hash("a", 1), content_hash("a1"), content_hash(1, "a"), content_hash("a", 1, first)]
    changed = module(tmp_path / "recipe.py", "RATE = 2\n")
    hashes.append(content_hash("a", 1, changed))
    assert len(set(hashes)) == 5
    assert content_hash("a", 1, changed) == hashes[-1]
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in hashes)
