"""The base students: built once, the same each time, never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.cache import locked
from trainwright.errors import ConfigError
from trainwright.students import nano_base
from trainwright.students.nano import CONFIGS
from trainwright.students.registry import base_student, student_key

NAME = "nano-48"


@pytest.fixture(autouse=True)
def quick_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the warm-up a few steps long, in a cache of its own."""
    monkeypatch.setattr(nano_base, "STEPS", dict.fromkeys(CONFIGS, 4))
    monkeypatch.setattr(nano_base, "BATCH", 8)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def never(done: int, total: int) -> None:
    pytest.fail("it was in the cache already")


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("students/*.safetensors"))


def test_it_is_built_once_and_then_read(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    built = base_student(NAME, lambda done, total: seen.append((done, total)))
    assert seen == [(step, 4) for step in range(1, 5)]
    (path,) = files(tmp_path / "cache")
    assert path.name == f"{NAME}-{student_key(NAME)}.safetensors"
    assert base_student(NAME, never).save() == built.save()


def test_it_is_the_same_wherever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base_student(NAME)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "other"))
    base_student(NAME)
    (one,), (other,) = files(tmp_path / "cache"), files(tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()


def test_another_recipe_is_another_student(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {student_key(name) for name in CONFIGS}
    monkeypatch.setattr(nano_base, "LEARNING_RATE", 1e-3)
    keys |= {student_key(name) for name in CONFIGS}
    assert len(keys) == 2 * len(CONFIGS)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    base_student(NAME)
    (path,) = files(tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"nano-48-.*\.safetensors: .*delete this file") as caught:
        base_student(NAME)
    assert "\n" not in str(caught.value)


def test_what_the_progress_raises_stops_build_and_wait(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        base_student(NAME, stop)
    assert not files(tmp_path / "cache")
    path = tmp_path / "cache" / "students" / f"{NAME}-{student_key(NAME)}.safetensors"
    with locked(path), pytest.raises(InterruptedError):  # as if another process built it
        base_student(NAME, stop)


def test_an_unknown_student_is_named() -> None:
    for ask in (base_student, student_key):
        with pytest.raises(ConfigError, match=r"unknown student 'gpt-9'; known: .*nano-64"):
            ask("gpt-9")
