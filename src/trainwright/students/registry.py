"""Students by name: the one door through which workers and the command line get a base student."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainwright.errors import ConfigError

if TYPE_CHECKING:
    from trainwright.students.student import Student


def base_student(name: str, progress: Callable[[int, int], None] | None = None) -> Student:
    """Return the base student of a name; nano ones are built on first use (`progress` gets steps done and in all).

    A pretrained one reads its weights when they are first needed. Raises `ConfigError` for a name that is unknown or
    can't be had here.
    """
    from trainwright.students import huggingface_hub, nano, nano_base

    if name in nano.CONFIGS:
        return nano_base.nano_base(name, progress)
    if huggingface_hub.is_pretrained(name):
        from trainwright.students.huggingface import HuggingFaceStudent

        folder = huggingface_hub.folder_of(name, progress)
        return HuggingFaceStudent(name, folder, lambda: huggingface_hub.folder_of(name, weights=True))
    raise ConfigError(_unknown(name))


def prepare_student(name: str, progress: Callable[[int, int], None] | None = None) -> None:
    """Build, convert or download the weights of a base student where this machine lacks them; see `base_student`."""
    from trainwright.students import huggingface_hub

    if huggingface_hub.is_pretrained(name):
        huggingface_hub.folder_of(name, progress, weights=True)
    else:
        base_student(name, progress)


def student_key(name: str) -> str:
    """Return the content hash of a base student, under which scores on it are cached."""
    from trainwright.students import huggingface_hub, nano, nano_base

    if name in nano.CONFIGS:
        return nano_base.base_key(name)
    if huggingface_hub.is_pretrained(name):
        return huggingface_hub.pretrained_key(name)
    raise ConfigError(_unknown(name))


def _unknown(name: str) -> str:
    from trainwright.students import huggingface_hub, nano

    known = ", ".join([*nano.CONFIGS, *huggingface_hub.NAMES])
    return f"unknown student {name!r}; known: {known}, and hf:FOLDER or hf:OWNER/NAME for any other model"


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
