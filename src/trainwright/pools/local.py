"""The local pool: warm worker processes on this machine, one torch thread each.

Three endings are told apart. A job whose own process dies, hangs or misbehaves is a `JOB_FAULT`: the worker survives
and says so. A job that takes longer than its wall-clock limit while its worker beats is a `JOB_FAULT` (`timeout`). A
worker that dies or falls silent is an infrastructure fault: it is replaced and the request is tried on another one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from trainwright.environment.sandbox import Sandbox
from trainwright.errors import InfraFault, SandboxError, TrainwrightError
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import Outcome, OutcomeClass, TrainResult, Verdict
from trainwright.pools.worker import Settings
from trainwright.suites.family import Task

START_SECONDS = 180.0
SILENCE_SECONDS = 60.0
GRACE_SECONDS = 30.0


class WorkerProcess:
    """The pool's end of one worker; every call blocks, with deadlines, and runs in a thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sandbox: Sandbox | None = None
        self.closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int:
        """Return the process id, 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process and wait until its students and its environment server can be used."""
        ours, theirs = socket.socketpair()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainwright.pools.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the controller alone
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._connection.send(self.settings)
        self.sandbox = self._wait(START_SECONDS, None)

    def call(self, name: str, arguments: tuple[Any, ...], seconds: float, on_step: Callable[..., None] | None) -> Any:
        """Send one request and return its result; raise `InfraFault`, or `TimeoutError` while the worker beats."""
        if self.closed:
            raise InfraFault("pool_closed", "the pool was closed")
        if self._connection is None:
            self.start()
        assert self._connection is not None
        try:
            self._connection.send((name, arguments))
            return self._wait(seconds, on_step)
        except (InfraFault, TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError) or not self._alive():
                self.stop()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                self.stop()
                raise InfraFault("worker_lost", f"the worker process was lost: {error}") from None
            raise

    def _wait(self, seconds: float, on_step: Callable[..., None] | None) -> Any:
        assert self._connection is not None
        deadline, last_beat = time.monotonic() + seconds, time.monotonic()
        while True:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"no result within {seconds:g} seconds")
            if now - last_beat > SILENCE_SECONDS:
                self.stop()
                raise InfraFault("worker_silent", f"the worker sent no heartbeat for {SILENCE_SECONDS:g} seconds")
            if not self._connection.poll(min(1.0, deadline - now)):
                if self._alive():
                    continue
                if not self._connection.poll(0):
                    raise InfraFault("worker_lost", f"the worker process ended ({self._ending()})")
            try:
                kind, value = self._connection.recv()
            except (EOFError, ConnectionResetError):
                raise InfraFault("worker_lost", f"the worker process ended ({self._ending()})") from None
            last_beat = time.monotonic()
            if kind == "done":
                return value
            if kind == "infra":
                raise InfraFault(*value)
            if kind == "fatal":
                raise SandboxError(value)
            if kind == "step" and on_step is not None:
                on_step(value)

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _ending(self) -> str:
        if self._process is None:
            return "never started"
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "its socket closed"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """End the process for certain; the next call starts a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


class LocalPool:
    """`workers` warm processes; a request waits for a free one. Implements `Pool`."""

    def __init__(
        self, workers: int = 0, *, job_seconds: float = 120.0, retries: int = 2, unsafe_no_sandbox: bool = False
    ) -> None:
        self.job_seconds = job_seconds
        self.retries = retries
        settings = Settings(unsafe_no_sandbox, job_seconds)
        self.workers = [WorkerProcess(settings) for _ in range(workers or os.cpu_count() or 1)]
        self._free: asyncio.Queue[WorkerProcess] | None = None

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox that the workers use; the pool must have been started."""
        sandbox = self.workers[0].sandbox
        assert sandbox is not None
        return sandbox

    async def start(self) -> None:
        """Start every worker; raise `SandboxError` when no sandbox can be built."""
        self._free = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(_guarded(worker.start)) for worker in self.workers]
        for start in starts:
            if start.result() is not None:
                await self.close()
                raise start.result()  # type: ignore[misc]
        for worker in self.workers:
            self._free.put_nowait(worker)

    async def gate(self, job: Job, task: Task) -> Verdict:
        """Return the gate's verdict; raise `InfraFault` after retries elsewhere."""
        verdict: Verdict = await self._call("gate", (job, task), self.job_seconds)
        return verdict

    async def train(
        self,
        key: str,
        job: Job,
        hyperparameters: Hyperparameters,
        seed: int,
        on_step: Callable[[dict[str, float]], None] | None = None,
    ) -> TrainResult:
        """Train one job; the outcome is TRAINED, JOB_FAULT or, after retries elsewhere, INFRA."""
        try:
            result: TrainResult = await self._call(
                "train", (job, hyperparameters, seed), self.job_seconds + GRACE_SECONDS, on_step
            )
        except TimeoutError:
            detail = f"the job did not end within {self.job_seconds:g} seconds"
            return TrainResult(Outcome(OutcomeClass.JOB_FAULT, "timeout", detail), wall_seconds=self.job_seconds)
        except InfraFault as error:
            return TrainResult(Outcome(OutcomeClass.INFRA, error.code, error.message))
        return result

    async def generate(
        self,
        student: str,
        weights: bytes | None,
        prompts: Sequence[str],
        *,
        seed: int,
        max_tokens: int,
        temperature: float = 1.0,
    ) -> list[str]:
        """Return one reply a prompt, from a worker's own copy of the student; raise `InfraFault`."""
        arguments = (student, weights, list(prompts), seed, max_tokens, temperature)
        try:
            replies: list[str] = await self._call("generate", arguments, self.job_seconds + GRACE_SECONDS)
        except TimeoutError as error:
            raise InfraFault("generate_timeout", str(error)) from None
        return replies

    async def close(self) -> None:
        """End every worker; safe to call twice."""
        for worker in self.workers:
            worker.closed = True
            worker.stop()

    async def _call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        seconds: float,
        on_step: Callable[[dict[str, float]], None] | None = None,
    ) -> Any:
        if self._free is None:
            await self.start()
        assert self._free is not None
        for attempt in range(self.retries + 1):
            worker = await self._free.get()
            try:
                return await asyncio.to_thread(worker.call, name, arguments, seconds, on_step)
            except InfraFault:
                if attempt == self.retries:
                    raise
            finally:
                self._free.put_nowait(worker)
        raise AssertionError("unreachable")


async def _guarded(start: Callable[[], None]) -> Exception | None:
    try:
        await asyncio.to_thread(start)
    except (TrainwrightError, InfraFault, TimeoutError) as error:
        return error
    return None
