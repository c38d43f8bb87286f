"""The job command of a pod: `python -m trainwright.pools.runpod.run_job` trains one job and exits.

The pod agent starts it as the job's user. `$TRAINWRIGHT_JOB/job/` has the job's files; `settings.json` beside that
folder has the seed, the resolved hyperparameters, the engine's settings, and whether job code may go unconfined. It
writes to `$TRAINWRIGHT_OUT`: `artifact`, the trained weights; `metrics.jsonl`, a line a step; and when there are no
weights `fault.json`, why. The exit code says whose fault it was: 0 trained, 1 the job's, `INFRA_EXIT` ours.

The job's own code runs in the environment server, in the best sandbox that the pod allows, as in a local worker. The
wall clock is the pod agent's, and so is the engine's GPU: one job at a time.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import InfraFault, TrainwrightError

if TYPE_CHECKING:
    from trainwright.pools.pool import TrainResult

JOB_EXIT, INFRA_EXIT = 1, 75
"""75 is EX_TEMPFAIL of sysexits.h: try elsewhere. A job could only fake it from outside the sandbox, and gains what
destroying its pod would: nothing."""


def main() -> int:
    """Train the job and return the exit code."""
    job, out = Path(os.environ["TRAINWRIGHT_JOB"]), Path(os.environ["TRAINWRIGHT_OUT"])
    try:
        result = train(job)
    except InfraFault as error:
        return failed(out, error.code, error.message, INFRA_EXIT)
    except TrainwrightError as error:  # no sandbox, no such engine
        return failed(out, "pod", str(error), INFRA_EXIT)
    except Exception as error:  # a bug of ours is an infrastructure fault, with its text
        return failed(out, "worker_error", f"{type(error).__name__}: {error}", INFRA_EXIT)
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in result.metrics))
    if not result.weights:
        return failed(out, result.outcome.reason, result.outcome.detail, JOB_EXIT)
    (out / "artifact").write_bytes(result.weights)
    return 0


def train(folder: Path) -> TrainResult:
    """Return what became of the job in a folder; raise `InfraFault` and `TrainwrightError` for what isn't its doing."""
    from trainwright.config import EngineConfig
    from trainwright.job.hyperparameters import Hyperparameters
    from trainwright.job.job import Job
    from trainwright.pools.worker import Settings, Worker

    order: dict[str, Any] = json.loads((folder / "settings.json").read_text())
    engine = EngineConfig.model_validate(order["engine"])
    worker = Worker(Settings(order["unsafe"], math.inf, engine))
    with worker.server:
        return worker.train(Job.load(folder / "job"), Hyperparameters(**order["hyperparameters"]), order["seed"])


def failed(out: Path, code: str, message: str, exit_code: int) -> int:
    """Write why there are no weights, for the pod agent and for the log, and return the exit code."""
    (out / "fault.json").write_text(json.dumps({"code": code, "message": message[:500]}))
    print(f"{code}: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
