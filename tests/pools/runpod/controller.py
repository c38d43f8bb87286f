"""What the tests' controllers are made of: settings with small times, stand-in jobs, a stand-in adapter check.

A stand-in job is a shell script in place of `environment.py`; the job command of these tests runs it on the pod as the
real command would run a training. Its weights are text that names the job, so that no job can get another's result.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_runpod import ACCOUNT_KEY, FakeRunpod

from trainwright.errors import ConfigError, InfraFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import Started, Verdict
from trainwright.pools.runpod.config import RunpodConfig
from trainwright.pools.runpod.money import OutOfMoney
from trainwright.pools.runpod.pool import RunpodPool
from trainwright.pools.runpod.records import Records

PATIENT = {
    "boot": 20.0,
    "restart": 20.0,
    "lease": 20.0,
    "heartbeat": 0.5,
    "lost": 8.0,
    "idle": 0.5,
    "pod": 120.0,
    "job": 30.0,
    "evaluation": 30.0,
    "queue": 60.0,
    "poll": 0.05,
    "listing": 0.1,
    "reaper": 0.5,
    "settle": 1.0,
    "request": 10.0,
    "backoff": 0.1,
    "close": 20.0,
}
SCALE = float(os.environ.get("TRAINWRIGHT_CHAOS_SCALE", "1"))
"""How much longer everything may take where a scenario's processes must share the machine with others."""
HASTY = {
    name: seconds * SCALE
    for name, seconds in (
        PATIENT
        | {
            "boot": 3.0,
            "restart": 3.0,
            "lease": 3.0,
            "heartbeat": 0.3,
            "lost": 1.0,
            "idle": 0.4,
            "pod": 40.0,
            "job": 3.0,
            "evaluation": 3.0,
            "queue": 20.0,
            "reaper": 0.8,
            "settle": 0.8,
            "request": 1.5,
            "close": 5.0,
        }
    ).items()
}
SHELL = ["/bin/sh", "-c", 'exec /bin/sh "$TRAINWRIGHT_JOB/job/environment.py"']
GOOD = """
echo '{"reward": 0.5, "step": 0}' > "$TRAINWRIGHT_OUT/metrics.jsonl"
sleep SECONDS
printf 'weights of NAME' > "$TRAINWRIGHT_OUT/artifact"
"""
BAD = {
    "crash": "exit 3",
    "hang": "trap '' TERM; while :; do sleep 0.1; done",
    "no_artifact": "true",
    "artifact_invalid": "printf 'nonsense' > \"$TRAINWRIGHT_OUT/artifact\"",
    "killed": "kill -9 $$",
    "infra": 'echo \'{"code": "gpu_busy", "message": "in use"}\' > "$TRAINWRIGHT_OUT/fault.json"; exit 75',
    "out_of_memory": 'echo oom_kill $(date +%s%N) > "$TRAINWRIGHT_OUT/../../../cgroup/memory.events"; kill -9 $$',
}
METRICS = [{"reward": 0.5, "step": 0.0}]
"""What a good job says of itself."""
REFUSED = 3
"""The exit code of a controller that finds another one in its folder."""
REASONS = {kind: kind for kind in BAD} | {"hang": "timeout"}
HYPERPARAMETERS = Hyperparameters(student="small")


def good(name: str, seconds: float = 0.1) -> Job:
    """Return a job that trains a stand-in for so long."""
    return Job({"environment.py": GOOD.replace("NAME", name).replace("SECONDS", str(seconds)), "train.toml": ""})


def bad(kind: str, name: str = "") -> Job:
    """Return a job that fails in a known way."""
    return Job({"environment.py": f"{BAD[kind]} # {name}", "train.toml": ""})


def weights_of(name: str) -> bytes:
    """Return the weights that a good job of a name must give."""
    return f"weights of {name}".encode()


def adapter(student: str, weights: bytes) -> Mapping[str, bytes]:
    """Stand in for the check of real adapters."""
    if not weights.startswith(b"weights of "):
        raise ValueError("not an adapter")
    return {"adapter_model.safetensors": weights}


class NoGate:
    """The local pool's stand-in: it is asked for nothing but the gate."""

    fingerprint = "no gate"

    async def start(self) -> Started:
        return Started("none", "no gate")

    async def close(self) -> None:
        """Nothing to release."""

    async def gate(self, *_: Any) -> Verdict:
        return Verdict(True)


def settings(fake: FakeRunpod, times: Mapping[str, float] = PATIENT, **changes: Any) -> RunpodConfig:
    """Return the pool's configuration for a fake; `changes` are its fields, times and money as `times__x`."""
    table: dict[str, Any] = {
        "image": "stand-in/image@sha256:0",
        "job_command": SHELL,
        "gpus": [{"id": id, "max_usd_per_hour": 1000.0} for id in fake.gpus],
        "base_url": fake.base_url,
        "proxy_template": fake.proxy_template,
        "times": dict(times),
        "money": {"max_usd_per_hour": 1000.0, "max_usd_total": 1000.0},
    }
    for name, value in changes.items():
        first, _, second = name.partition("__")
        if second:
            table[first][second] = value
        else:
            table[first] = value
    return RunpodConfig.model_validate(table)


def pool(config: RunpodConfig, folder: Path, records: type[Records] = Records) -> RunpodPool:
    """Return a pool with the stand-ins."""
    os.environ["RUNPOD_API_KEY"] = ACCOUNT_KEY
    return RunpodPool(config, folder, local=NoGate(), adapter=adapter, command={}, open_records=records)  # type: ignore[arg-type]


# A controller in a process of its own, which can be killed


@dataclass
class Plan:
    """What a controller process shall do: jobs by key (a name, and a kind of failure or how long it trains)."""

    folder: Path
    config: dict[str, Any]
    jobs: dict[str, tuple[str, str]]
    kill_at: int = -1
    kill_after_commit: bool = False


class KillingRecords(Records):
    """Records that kill their own process at the n-th write: before it's durable, or right after."""

    kill_at, after_commit, writes = -1, False, 0

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        cls = KillingRecords
        cls.writes += 1
        doomed = cls.writes == cls.kill_at
        with super()._transaction():
            yield
            if doomed and not cls.after_commit:
                os.kill(os.getpid(), signal.SIGKILL)
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)


def main(plan: Plan) -> None:
    """Run a controller to its end: every job not yet in the outcome file is trained and written there."""
    KillingRecords.kill_at, KillingRecords.after_commit = plan.kill_at, plan.kill_after_commit
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not asyncio.run(control(plan)):
        sys.exit(REFUSED)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (plan.folder / "grown_kb").write_text(str(grown))


async def control(plan: Plan) -> bool:
    """Train every job and write what became of it, once; return false when another controller has the folder."""
    pods = pool(RunpodConfig.model_validate(plan.config), plan.folder, KillingRecords)
    try:
        await pods.start()
    except ConfigError as error:
        if "another process" not in str(error):
            raise
        return False
    done = set(outcomes(plan.folder))
    try:
        await asyncio.gather(*(train(pods, plan, key) for key in plan.jobs if key not in done))
    finally:
        await pods.close()
    return True


async def train(pods: RunpodPool, plan: Plan, key: str) -> None:
    """Train one job and append its outcome to the file, as the outer ledger would."""
    name, kind = plan.jobs[key]
    job = bad(kind, name) if kind in BAD else good(name, float(kind))
    try:
        result = await pods.train(key, job, HYPERPARAMETERS, 0)
        outcome, digest = result.outcome, hashlib.sha256(result.weights).hexdigest()
        line = [key, outcome.kind, outcome.reason, digest, result.metrics]
    except InfraFault as fault:
        line = [key, "INFRA", fault.code, "", []]
    except OutOfMoney as error:
        line = [key, "OUT_OF_MONEY", str(error), "", []]
    except ConfigError as error:
        line = [key, "CONFIG", str(error), "", []]
    with open(plan.folder / "outcomes", "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def outcomes(folder: Path) -> dict[str, list[Any]]:
    """Return what is in the outcome file by key; fail when a key is there twice."""
    found: dict[str, list[Any]] = {}
    path = folder / "outcomes"
    for line in path.read_text().splitlines() if path.exists() else []:
        key, *rest = json.loads(line)
        assert key not in found, f"{key} counted twice"
        found[key] = rest
    return found
