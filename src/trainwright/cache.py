"""The user's cache folder: base students, reference scores, warm-started agents. All of it can be rebuilt."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from trainwright.errors import ConfigError


def cache_folder() -> Path:
    """Return the cache folder, made if missing: `$TRAINWRIGHT_CACHE`, else `trainwright` under the XDG cache folder."""
    chosen = os.environ.get("TRAINWRIGHT_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(chosen) if chosen else base / "trainwright"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the cache folder {folder} can't be made: {error.strerror}; set TRAINWRIGHT_CACHE to another folder"
        raise ConfigError(message) from None
    return folder


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, also when the process is killed in the middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock beside `path`, so that two processes do not build the same thing at once.

    `waiting` is called several times a second while another process holds it; what it raises ends the wait.
    """
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if waiting is not None:
                waiting()
            time.sleep(0.1)
        yield


def content_hash(*parts: object) -> str:
    """Return 16 hex digits over values (by `repr`) and modules (by syntax tree: a comment changes nothing)."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, ModuleType):
            assert part.__file__ is not None
            digest.update(_syntax(Path(part.__file__).read_text()))
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@cache  # every episode asks for the hash of what its reference depends on, and parsing takes a tenth of a second
def _syntax(source: str) -> bytes:
    """Return the syntax tree without docstrings, as bytes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree).encode()


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
