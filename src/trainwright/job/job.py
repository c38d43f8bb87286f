"""A job: what the trainer agent writes. Placeholder header; see docs/job-format.md."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT, DATASET, TRAIN = "environment.py", "dataset.jsonl", "train.toml"
FILES = (ENVIRONMENT, DATASET, TRAIN)


@dataclass(frozen=True)
class Job:
    """The files of a job by name: `environment.py`, `train.toml` and, when the agent wrote one, `dataset.jsonl`."""

    files: Mapping[str, str]

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
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Return the job in a folder; raise `JobRejected`."""
        raise NotImplementedError
