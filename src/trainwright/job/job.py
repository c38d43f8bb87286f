"""A job: what the trainer agent writes. Its files, hashed, read from an answer or a folder, written as a package.

docs/job-format.md is the specification. A `Job` that exists is well-formed text of the right files and sizes; whether
the text is a good job is for the gate.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import InfraFault, JobRejected
from trainwright.job.answer import (
    DATASET,
    ENVIRONMENT,
    FILES,
    TRAIN,
    normalised,
    read_answer,
    render_answer,
    unknown_file,
)

__all__ = ["DATASET", "ENVIRONMENT", "FILES", "SIZE_LIMITS", "TRAIN", "Job"]

SIZE_LIMITS = {ENVIRONMENT: 128 * 1024, DATASET: 4 * 1024 * 1024, TRAIN: 16 * 1024}
"""Bytes of UTF-8 a file may have."""

PACKAGE_INIT = "from .environment import *  # noqa: F403\nfrom .environment import __all__  # noqa: F401\n"
"""`__init__.py` of a written job: verifiers' loader takes the taskset from the package's `__all__`."""


@dataclass(frozen=True)
class Job:
    """The files of a job by name: `environment.py`, `train.toml` and, when the agent wrote one, `dataset.jsonl`.

    The texts have line feeds only and end with one unless empty. Making one raises `JobRejected` with a code of
    file_unknown, file_missing, file_encoding, file_too_large.
    """

    files: Mapping[str, str]

    def __post_init__(self) -> None:
        for name in self.files:
            if name not in FILES:
                raise unknown_file(name, "job")
        for name in (ENVIRONMENT, TRAIN):
            if name not in self.files:
                raise JobRejected("file_missing", f"The job has no {name}; write it.", name)
        files = {name: _checked(name, self.files[name]) for name in FILES if name in self.files}
        object.__setattr__(self, "files", files)

    @property
    def hash(self) -> str:
        """Return the SHA-256 of names and contents, 64 hex digits."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            for part in (name, self.files[name]):
                data = part.encode()
                digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()

    @classmethod
    def parse(cls, answer: str) -> Job:
        """Return the job in an agent's answer; raise `JobRejected`."""
        return cls(read_answer(answer))

    def render(self) -> str:
        """Return the canonical answer; `Job.parse` reads it back to an equal job (up to the answer's size limit)."""
        return render_answer(self.files)

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Return the job in a folder; raise `JobRejected`, or `InfraFault` when the disk fails.

        `__init__.py`, `__pycache__`, Markdown and hidden files are ignored; any other file that is not a job's is
        refused, and so are links: the folder may come from a machine we don't trust.
        """
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            raise JobRejected("folder_missing", f"There is no job folder {folder}; name an existing one.") from None
        except NotADirectoryError:
            raise JobRejected(
                "folder_missing", f"{folder} is a file; name the folder that holds {ENVIRONMENT} and {TRAIN}."
            ) from None
        except OSError as error:
            raise InfraFault("job_folder", f"the job folder {folder} can't be read: {error}") from error
        return cls({name: _read(folder, name) for name in names if not _ignored(name)})

    def write(self, folder: Path) -> None:
        """Write the job as a package folder that `load` reads back, whole or not at all.

        The package imports under the folder's name where that is a lower-case identifier. Writing the same job again
        does nothing; raises `FileExistsError` when the path holds anything else, so nothing is ever overwritten.
        """
        if folder.exists() and _same_job(folder, self):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, text in {"__init__.py": PACKAGE_INIT, **self.files}.items():
                (draft / name).write_bytes(text.encode())
            draft.chmod(0o755)
            draft.rename(folder)  # onto an empty folder or nothing; anything else fails
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(f"{folder} exists and is not this job; choose another path") from None
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _checked(name: str, text: str) -> str:
    """Return the text in canonical form; raise `JobRejected`."""
    text = normalised(text)
    if text and not text.endswith("\n"):
        text += "\n"
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise JobRejected("file_encoding", f"{name} contains a NUL character; remove it.", name, line)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        message = f"{name} contains a lone surrogate; write plain UTF-8."
        raise JobRejected("file_encoding", message, name, line) from None
    if size > SIZE_LIMITS[name]:
        raise _too_large(name, size)
    return text


def _ignored(name: str) -> bool:
    return name in ("__init__.py", "__pycache__") or name.startswith(".") or name.lower().endswith(".md")


def _read(folder: Path, name: str) -> str:
    """Return the text of one file of a folder, without following links and without reading more than its limit."""
    if name not in FILES:
        raise unknown_file(name, str(folder))
    irregular = JobRejected("file_link", f"{name} is a link or not a regular file; put the file itself there.", name)
    try:
        with open(folder / name, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise irregular
            data = file.read(SIZE_LIMITS[name] + 1)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise irregular from None
        raise InfraFault("job_folder", f"{folder / name} can't be read: {error}") from error
    if len(data) > SIZE_LIMITS[name]:
        raise _too_large(name, max(len(data), status.st_size))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise JobRejected("file_encoding", f"{name} is not UTF-8; save it as UTF-8.", name, line) from None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # without O_NONBLOCK a named pipe would hang us


def _same_job(folder: Path, job: Job) -> bool:
    try:
        return Job.load(folder) == job
    except JobRejected:
        return False


def _too_large(name: str, size: int) -> JobRejected:
    return JobRejected("file_too_large", f"{name} has {size} bytes; write at most {SIZE_LIMITS[name]}.", name)
