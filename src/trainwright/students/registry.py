"""Students by name: the one door through which workers and the command line get a base student."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.errors import ConfigError

if TYPE_CHECKING:
    from trainwright.students.student import Student


def base_student(name: str, progress: Callable[[int, int], None] | None = None) -> Student:
    """Return the base student of a name, built on first use (`progress` gets steps done and in all).

    Raises `ConfigError` for an unknown name.
    """
    from trainwright.students import nano, nano_base

    if name in nano.CONFIGS:
        return nano_base.nano_base(name, progress)
    raise ConfigError(f"unknown student {name!r}; known: {', '.join(nano.CONFIGS)}")


def student_key(name: str) -> str:
    """Return the content hash of a base student, under which scores on it are cached."""
    from trainwright.students import nano, nano_base

    if name in nano.CONFIGS:
        return nano_base.base_key(name)
    raise ConfigError(f"unknown student {name!r}; known: {', '.join(nano.CONFIGS)}")


def build_all() -> None:
    """Build the embedded base students that are not in the cache yet, a process each."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from trainwright.students import nano

    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        for student in processes.map(base_student, nano.CONFIGS):
            print(f"base student {student.name} is in the cache")


if __name__ == "__main__":
    build_all()
