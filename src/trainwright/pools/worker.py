"""One worker process of the local pool: trusted, with warm students and a warm environment server.

It answers `gate`, `train` and `generate` requests one at a time over a socket that its parent made. The job's code
never runs here: it runs in the environment server, which this process starts and talks to.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from trainwright.backends import make_engine
from trainwright.config import EngineConfig
from trainwright.errors import InfraFault, JobFault, JobRejected, SandboxError
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import Outcome, OutcomeClass, TrainResult, Verdict
from trainwright.students.student import NamedStudent, Student
from trainwright.suites.family import Task

HEARTBEAT_SECONDS = 1.0
GENERATE_BATCH = 256


@dataclass(frozen=True)
class Settings:
    """What a worker is told at its start: the sandbox level asked for, the wall-clock limit of one job, the engine,
    and its torch threads."""

    unsafe_no_sandbox: bool
    job_seconds: float
    engine: EngineConfig
    threads: int = 1


class Worker:
    """The operations of a worker; `serve` calls them by name."""

    def __init__(self, settings: Settings) -> None:
        from trainwright.environment.client import EnvironmentServer, Limits
        from trainwright.environment.sandbox import detect

        self.settings = settings
        self.engine = make_engine(settings.engine)
        self.limits = Limits(
            open_seconds=min(Limits.open_seconds, settings.job_seconds),
            rows_seconds=min(Limits.rows_seconds, settings.job_seconds),
            score_seconds=min(Limits.score_seconds, settings.job_seconds),
        )
        self.sandbox = detect(unsafe_no_sandbox=settings.unsafe_no_sandbox)
        self.server = EnvironmentServer(self.sandbox)
        self.server.start()

    def gate(self, job: Job, task: Task) -> Verdict:
        """Return the verdict on a job, from the cheapest check to the dearest."""
        from trainwright.job.gate import check_dynamic, check_static

        try:
            hyperparameters = check_static(job, task)
            self.engine.check(hyperparameters)
            student = _base(hyperparameters.student)
            with self.server.open(job.files, seed=0, limits=self.limits) as environment:
                check_dynamic(job, hyperparameters, environment, student.encode)
        except (JobRejected, JobFault) as error:
            return Verdict(False, error.code, error.message, error.file, error.line)
        return Verdict(True, hyperparameters=hyperparameters)

    def train(self, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        """Train a fresh student on the job; a fault of the job is an outcome, one of ours is raised."""
        started, cpu_started = time.monotonic(), time.process_time()
        metrics: list[dict[str, float]] = []

        def on_step(row: dict[str, float]) -> None:
            metrics.append(row)
            if time.monotonic() - started > self.settings.job_seconds:
                raise JobFault("timeout", f"the job did not end within {self.settings.job_seconds:g} seconds")

        cpu: dict[str, float] = {}
        weights = b""
        outcome = Outcome(OutcomeClass.TRAINED)
        environment = None
        try:
            with self.server.open(job.files, seed=seed, limits=self.limits) as environment:
                student = self._student(hyperparameters.student)
                training = self.engine.train(student, environment, hyperparameters, seed, on_step)
                weights, cpu = training.weights, dict(training.cpu_seconds)
        except JobFault as error:
            outcome = Outcome(OutcomeClass.JOB_FAULT, error.code, error.message)
        cpu["other"] = time.process_time() - cpu_started - sum(cpu.values())
        cpu["job"] = environment.cpu_seconds if environment is not None else 0.0
        return TrainResult(
            outcome=outcome,
            weights=weights,
            metrics=metrics,
            rollouts=len(metrics) * hyperparameters.batch_size,
            cpu_seconds=cpu,
            wall_seconds=time.monotonic() - started,
            worker=f"{os.getpid()}",
        )

    def _student(self, name: str) -> Student:
        """Return a fresh student for the engine; one that the engine loads itself must not take its memory here."""
        student: Student = NamedStudent(name) if self.engine.loads_student else _base(name).fresh()  # type: ignore[assignment]
        return student

    def generate(
        self,
        student: str,
        weights: bytes | None,
        prompts: Sequence[str],
        seed: int,
        max_tokens: int,
        temperature: float,
    ) -> list[str]:
        """Return one reply a prompt; the same seed pairs the replies of two sets of weights."""
        import torch

        model = _base(student)
        if weights is not None:
            model = model.fresh()
            model.load(weights)
        tokens = [model.encode([{"role": "user", "content": prompt}]) for prompt in prompts]
        replies: list[str] = []
        for start in range(0, len(tokens), GENERATE_BATCH):
            generator = torch.Generator().manual_seed((seed + start) % 2**63)
            sampled = model.sample(
                tokens[start : start + GENERATE_BATCH],
                temperature=temperature,
                max_tokens=max_tokens,
                generator=generator,
            )
            lengths = sampled.mask_BT.sum(1).long().tolist()
            rows = sampled.tokens_BT.tolist()
            replies += [model.decode(row[:length]) for row, length in zip(rows, lengths, strict=True)]
        return replies


@cache
def _base(name: str) -> Any:
    from trainwright.students.registry import base_student

    return base_student(name)


def serve(connection: Connection, settings: Settings) -> None:
    """Answer requests until the other side hangs up; send a heartbeat meanwhile, from the first moment on."""
    import torch

    torch.set_num_threads(settings.threads)
    sending = threading.Lock()

    def send(message: tuple[str, Any]) -> None:
        with sending:
            connection.send(message)

    def beat() -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            try:
                send(("beat", None))
            except OSError:
                os._exit(1)  # the pool is gone: end at once, the environment server ends with us

    threading.Thread(target=beat, daemon=True).start()
    try:
        worker = Worker(settings)
    except SandboxError as error:
        send(("sandbox", str(error)))
        return
    except InfraFault as error:
        send(("infra", (error.code, error.message)))
        return
    send(("done", worker.sandbox))
    with worker.server:
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            try:
                send(("done", getattr(worker, name)(*arguments)))
            except InfraFault as error:
                send(("infra", (error.code, error.message)))
            except Exception as error:  # a bug of ours is an infrastructure fault, with its text
                send(("infra", ("worker_error", f"{type(error).__name__}: {error}")))


def main() -> None:
    """Run a worker on the socket whose descriptor is the first argument; settings come as its first message."""
    connection = Connection(int(sys.argv[1]))
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):  # the pool is gone
        serve(connection, connection.recv())


if __name__ == "__main__":
    main()
