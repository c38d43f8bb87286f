"""Folders that live as long as what uses them: removed afterwards, or by the next user when this one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(parent: Path, prefix: str, *, keep: bool = False) -> Iterator[Path]:
    """Yield a new folder `PREFIX-...` of a parent, which is made if missing; raise `OSError`.

    First it removes those of the same prefix whose users are dead: a user holds a lock on the folder itself. A folder
    to `keep` is called `kept-...` in the end, and nothing is removed then.
    """
    parent.mkdir(parents=True, exist_ok=True)
    if not keep:
        _remove_abandoned(parent, prefix)
    name = uuid.uuid4().hex[:12]
    hidden, folder = parent / f".{name}", parent / f"{prefix}-{name}"
    hidden.mkdir(mode=0o700)  # under a name that nobody looks for, until it is locked
    lock = _locked(hidden)
    hidden.rename(folder)
    try:
        yield folder
    finally:
        if keep:
            folder.rename(parent / f"kept-{name}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}-*"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Return a descriptor that locks a folder, None when another process holds it or it is not ours to open."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
