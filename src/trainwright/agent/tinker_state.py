"""Where a policy's weights and optimizer are kept on the server, as a small file in the checkpoint folder.

The server has two kinds of artefacts. A *state* (`tinker://RUN/weights/NAME`) holds weights and optimizer and is what
training resumes from. A *sampler snapshot* (`tinker://RUN/sampler_weights/NAME`) can only be sampled from.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainwright.cache import write_atomically
from trainwright.errors import ConfigError

FILE = "tinker.json"
PATH = re.compile(r"tinker://([^/]+)/(?:(weights|sampler_weights|external_weights)/)?([^/]+)")


@dataclass(frozen=True)
class SavedState:
    """A saved state: its path, when the server may delete it, and how many optimizer steps it has behind it.

    The path is empty where the run begins: nothing has been trained yet. `expires` is in seconds since 1970, None for
    never; `steps` continues the learning rate's warm-up.
    """

    base_model: str
    rank: int
    path: str
    expires: float | None
    steps: int

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint folder, whole or not at all."""
        shutil.rmtree(folder, ignore_errors=True)
        write_atomically(folder / FILE, json.dumps(asdict(self), indent=2).encode() + b"\n")

    @property
    def kept_until(self) -> str:
        """Return when it may be deleted, in words."""
        if self.expires is None:
            return "kept for ever"
        return f"kept until {datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"

    @property
    def expired(self) -> bool:
        """Return whether its time is over by this machine's clock."""
        return self.expires is not None and self.expires < time.time()


def read_state(folder: Path) -> SavedState:
    """Return the state that a checkpoint folder points to; raise `ConfigError` when it is none."""
    file = folder / FILE
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        state = SavedState(**table)
        problem = state_path_problem(state.path) if state.path != "" else ""
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}: not a checkpoint of the agent 'tinker': {error}") from None
    if problem:
        raise ConfigError(f"{file}: {state.path!r} {problem}")
    return state


def state_path_problem(path: str) -> str:
    """Return what keeps a path from naming a training state, or an empty string."""
    found = PATH.fullmatch(path) if isinstance(path, str) else None
    if found is None:
        return "is not of the form tinker://RUN/weights/NAME"
    if found[2] == "weights":
        return ""
    if found[2] == "external_weights":
        return "is an exported adapter, not a training state; take the path with /weights/ in it"
    return "is a sampler snapshot, which has no optimizer and can't be trained on; take the path with /weights/ in it"
