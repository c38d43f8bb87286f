"""From an ended job to its result: outcome class, metrics and weights, none of them believed before they're checked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainwright.errors import JobFault
from trainwright.pools.pool import Outcome, OutcomeClass, TrainResult
from trainwright.pools.runpod.agent_client import AgentClient, JobStatus, Misbehaved, Refused, Unreachable, printable

MAX_METRICS_BYTES = 4 << 20
MAX_LOG_BYTES = 64 << 10
MAX_METRICS_ROWS = 10_000
FETCH_TRIES = 3

AdapterCheck = Callable[[str, bytes], Mapping[str, bytes]]
"""Given a student and trained weights, return the files an inference server loads; raise `ValueError`."""


def outcome_of(status: JobStatus, max_artifact_bytes: int) -> Outcome:
    """Return what an ended job came to by its exit alone. Only the agent's own observations can end a job."""
    fault = OutcomeClass.JOB_FAULT
    if status.ended == "timeout":
        return Outcome(fault, "timeout", f"the job did not end within {status.wall_seconds:.0f} seconds")
    if status.ended == "oom":
        return Outcome(fault, "out_of_memory", "the job used more memory than the pod has")
    if status.ended == "signal":
        return Outcome(fault, "killed", f"the job died of signal {-(status.exit_code or 0)}")
    if status.exit_code != 0:
        return Outcome(fault, status.fault_code or "crash", status.fault_message or f"exit code {status.exit_code}")
    if status.artifact_size < 0:
        return Outcome(fault, "no_artifact", "the job ended without writing trained weights")
    if status.artifact_size > max_artifact_bytes:
        return Outcome(fault, "artifact_too_large", f"the trained weights take {status.artifact_size} bytes")
    return Outcome(OutcomeClass.TRAINED)


async def train_result(
    agent: AgentClient,
    attempt_id: str,
    status: JobStatus,
    *,
    student: str,
    rollouts: int,
    adapter: AdapterCheck,
    max_artifact_bytes: int,
    patience: float,
    worker: str,
) -> TrainResult:
    """Return the result of an ended training job; raise `Misbehaved` or `Unreachable` when the pod won't give it."""
    outcome, weights = outcome_of(status, max_artifact_bytes), b""
    if outcome.kind is OutcomeClass.TRAINED:
        weights = await fetch_artifact(agent, attempt_id, status, patience)
        try:
            await asyncio.to_thread(adapter, student, weights)
        except (ValueError, JobFault) as error:
            outcome, weights = Outcome(OutcomeClass.JOB_FAULT, "artifact_invalid", str(error)[:500]), b""
    metrics: list[dict[str, float]] = []
    with contextlib.suppress(Unreachable, Refused):
        metrics = parse_metrics(await agent.stream(attempt_id, "metrics", MAX_METRICS_BYTES))
    if outcome.reason == "crash" and not status.fault_message:
        with contextlib.suppress(Unreachable, Refused):
            log = (await agent.stream(attempt_id, "log", MAX_LOG_BYTES)).decode(errors="replace").splitlines()
            outcome = Outcome(outcome.kind, outcome.reason, printable(log[-1] if log else outcome.detail, 300))
    trained = outcome.kind is OutcomeClass.TRAINED
    return TrainResult(
        outcome,
        weights=weights,
        metrics=metrics,
        rollouts=rollouts if trained else 0,
        wall_seconds=status.wall_seconds,
        worker=worker,
    )


async def fetch_artifact(agent: AgentClient, attempt_id: str, status: JobStatus, patience: float) -> bytes:
    """Return the artifact. Silence is borne for `patience` seconds, wrong bytes three times: a proxy may cut a transfer
    short, and a hostile pod may send something else each time."""
    limit, wrong = time.monotonic() + patience, 0
    while True:
        try:
            return await agent.artifact(attempt_id, status.artifact_size, status.artifact_sha256)
        except Misbehaved:
            wrong += 1
            if wrong == FETCH_TRIES:
                raise
        except Unreachable:
            if time.monotonic() > limit:
                raise
        await asyncio.sleep(min(1.0, patience / 20))


def parse_metrics(data: bytes) -> list[dict[str, float]]:
    """Return the rows of a metrics file: flat objects of finite numbers; everything else is left out."""
    rows: list[dict[str, float]] = []
    for line in data.splitlines()[:MAX_METRICS_ROWS]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            row = {printable(name, 64): number(value) for name, value in list(entry.items())[:64]}
            rows.append({name: value for name, value in row.items() if math.isfinite(value)})
    return rows


def number(value: Any) -> float:
    """Return a JSON number as float, NaN for everything else."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


class ResultFiles:
    """Trained weights by episode key, kept until so many newer ones exist: a resumed run asks for them again."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, key: str, weights: bytes) -> None:
        """Write weights durably, then drop the oldest."""
        path = self._path(key)
        with open(path.with_suffix(".part"), "wb") as file:
            file.write(weights)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".part"), path)
        files = sorted(self._folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
        for old in files[: max(0, len(files) - self._keep)]:
            old.unlink(missing_ok=True)

    def load(self, key: str) -> bytes | None:
        """Return weights, None when they are no longer kept."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def to_json(result: TrainResult) -> dict[str, Any]:
    """Return a result without its weights, for the records."""
    return {name: value for name, value in asdict(result).items() if name != "weights"}


def from_json(entry: dict[str, Any], weights: bytes) -> TrainResult:
    """Return the result that `to_json` wrote."""
    outcome = Outcome(OutcomeClass(entry["outcome"]["kind"]), entry["outcome"]["reason"], entry["outcome"]["detail"])
    return TrainResult(**{**entry, "outcome": outcome}, weights=weights)
