"""The run folder of prime-rl 559b447, read while it grows: metrics, logs, and the adapter of the last step.

Layout: `metrics.jsonl` (trainer and orchestrator append several rows a step; values that are not finite are left
out), `logs/latest/{trainer,orchestrator,inference}.log`, `logs/latest/envs/train/<name>.log`,
`broadcasts/step_<n>/` (PEFT's layout, complete once the file STABLE is there; the trainer keeps the last two).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.engines.engine import StepMetrics

COMPONENTS = ("trainer", "orchestrator", "inference", "envs/train/job")

METRICS = {
    "reward_mean": "train/agg/effective/agent/reward/mean",
    "error_share": "train/agg/all/agent/has_error/mean",
    "truncation_share": "train/agg/effective/agent/is_truncated/mean",
    "trainable_share": "train/agg/effective/agent/is_trainable/mean",
    "rollouts": "progress/rollouts",
    "staleness": "off_policy/mean",
    "entropy": "entropy/all/mean",
    "mismatch_kl": "mismatch_kl/all/mean",
    "loss": "loss/mean",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/lr",
    "peak_memory_gib": "perf/peak_memory",
    "seconds": "time/step",
}
"""Our names for upstream's, where the torch engine has the same metric under the same name."""

_TRAINER_DONE, _ORCHESTRATOR_DONE = "time/forward_backward", "progress/rollouts"
_FINITE = ("loss/mean", "optim/grad_norm")
_TAIL_BYTES = 1 << 16
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class RunFolder:
    """One run's folder; `path` need not exist yet."""

    def __init__(self, path: Path, max_steps: int) -> None:
        self.path, self.max_steps = path, max_steps
        self._rows: dict[int, dict[str, Any]] = {}
        self._offset = self._reported = 0

    def new_steps(self) -> list[StepMetrics]:
        """Return the steps that trainer and orchestrator have both reported since the last call, in order."""
        self._read()
        found = []
        while _complete(row := self._rows.get(self._reported + 1, {})):
            self._reported += 1
            values = {ours: float(row[theirs]) for ours, theirs in METRICS.items() if theirs in row}
            found.append({"step": float(self._reported), **values})
        return found

    def not_finite(self) -> int:
        """Return the first trained step whose loss or gradient was not finite, 0 when there is none."""
        for step, row in sorted(self._rows.items()):
            if _TRAINER_DONE in row and not all(key in row for key in _FINITE):
                return step
        return 0

    def adapter(self) -> Path | None:
        """Return the folder of the last step's adapter once it is complete."""
        folder = self.path / "broadcasts" / f"step_{self.max_steps}"
        return folder if (folder / "STABLE").is_file() else None

    def log(self, component: str) -> str:
        """Return the end of a component's log, without colours; '' when there is none."""
        return tail(self.path / "logs" / "latest" / f"{component}.log")

    def last_change(self) -> float:
        """Return the newest modification time of metrics, logs and broadcasts, 0 when there are none."""
        return max((_mtime(path) for path in self._watched()), default=0.0)

    def _watched(self) -> Iterator[Path]:
        yield self.path / "metrics.jsonl"
        yield self.path / "broadcasts"
        yield from (self.path / "logs" / "latest" / f"{component}.log" for component in COMPONENTS)

    def _read(self) -> None:
        """Merge the metrics' new lines by step; a line that is still being written waits."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].splitlines():
            try:
                row = json.loads(line)
                self._rows.setdefault(int(row["step"]), {}).update(row)
            except (ValueError, KeyError, TypeError):
                continue


def tail(path: Path) -> str:
    """Return the last 64 KiB of a log, without colours; '' when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return _ANSI.sub("", file.read().decode(errors="replace"))
    except FileNotFoundError:
        return ""


def _complete(row: dict[str, Any]) -> bool:
    return _TRAINER_DONE in row and _ORCHESTRATOR_DONE in row


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
