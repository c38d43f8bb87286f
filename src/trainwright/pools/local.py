"""The local pool: warm worker processes on this machine.

Three endings are told apart. A job whose own process dies, hangs or misbehaves is a `JOB_FAULT`: the worker survives
and says so. A job that takes longer than its wall-clock limit while its worker beats is a `JOB_FAULT` (`timeout`). A
worker that dies or falls silent is an infrastructure fault: it is replaced and the request is tried on another one.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trainwright.backends import make_engine
from trainwright.config import EngineConfig, RunConfig
from trainwright.environment.sandbox import Sandbox
from trainwright.errors import InfraFault, SandboxError
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import ENVIRONMENT, Job
from trainwright.pools.pool import Outcome, OutcomeClass, Started, TrainResult, Verdict
from trainwright.pools.worker import Settings
from trainwright.suites.family import Task


@dataclass(frozen=True)
class Patience:
    """Seconds after which the pool gives a worker up."""

    start: float = 180.0
    """From the start of the process to the first answer: imports and the environment server."""
    silence: float = 60.0
    """Without a heartbeat, or with a message half way."""
    grace: float = 30.0
    """Over the job's own limit, for a worker that beats: the limit is the worker's to enforce."""


class WorkerProcess:
    """The pool's end of one worker. Every call blocks, with deadlines; `close` may come from another thread."""

    def __init__(self, settings: Settings, patience: Patience) -> None:
        self.settings = settings
        self.patience = patience
        self.sandbox: Sandbox | None = None
        self._calling = threading.Lock()  # held for a whole request: one at a time
        self._spawning = threading.Lock()  # held to start a process: none starts once closed
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int:
        """Return the process id, 0 while there is no process."""
        process = self._process
        return process.pid if process else 0

    def start(self) -> None:
        """Start the process unless it runs, and wait until its environment server is warm.

        Raises `InfraFault` or `SandboxError`.
        """
        with self._calling:
            if self._connection is None:
                self._start()

    def call(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Send one request and return its result; raise `InfraFault`, or `TimeoutError` while the worker beats.

        A worker that was lost is replaced by the next call.
        """
        with self._calling:
            if self._connection is None:
                self._start()
            assert self._connection is not None
            try:
                self._connection.send((name, arguments))
                return self._receive(self._connection, seconds, self.patience.silence)
            except TimeoutError:
                self._stop()
                raise
            except OSError as error:
                self._stop()
                raise InfraFault("worker_lost", f"the worker process was lost: {error}") from None

    def close(self) -> None:
        """End the process for certain; a request in flight, and every later one, raises `InfraFault`."""
        with self._spawning:
            self._closed = True
            if self._process is not None:
                self._process.kill()  # a thread that waits for its answer sees the end of the stream
        with self._calling:
            self._stop()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        limit = struct.pack("ll", int(self.patience.silence) + 1, 0)  # a struct timeval
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._connection = Connection(ours.detach())
        try:
            with self._spawning, theirs:
                if self._closed:
                    raise InfraFault("pool_closed", "the pool was closed")
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainwright.pools.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C is for the controller alone
                )
            self._connection.send(self.settings)
            self.sandbox = self._receive(self._connection, self.patience.start, self.patience.start)
        except OSError as error:  # a TimeoutError as well
            self._stop()
            raise InfraFault("worker_start", f"a worker process did not start: {error}") from None
        except BaseException:
            self._stop()
            raise

    def _receive(self, connection: Connection, seconds: float, silence: float) -> Any:
        """Return the result of the request in flight; a worker that is silent or dead is stopped."""
        deadline, last_beat = time.monotonic() + seconds, time.monotonic()
        while True:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"no result within {seconds:g} seconds")
            if now - last_beat > silence:
                self._stop()
                raise InfraFault("worker_silent", f"the worker sent nothing for {silence:g} seconds")
            try:
                if not connection.poll(min(1.0, deadline - now)):
                    continue
                kind, value = connection.recv()
            except (EOFError, ConnectionResetError):
                ending = self._ending()
                self._stop()
                raise InfraFault("worker_lost", f"the worker process ended ({ending})") from None
            last_beat = time.monotonic()
            match kind:
                case "done":
                    return value
                case "infra":
                    raise InfraFault(*value)
                case "sandbox":
                    raise SandboxError(value)

    def _ending(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "its socket closed"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def local_pool(config: RunConfig) -> LocalPool:
    """Return the local pool of a run's configuration."""
    return LocalPool(
        config.pool.workers,
        job_seconds=config.pool.job_seconds,
        retries=config.pool.retries,
        unsafe_no_sandbox=config.pool.unsafe_no_sandbox,
        engine=config.engine,
        threads=config.pool.threads,
    )


class LocalPool:
    """`workers` warm processes (0: one a core); a request waits for a free one. Implements `Pool`."""

    def __init__(
        self,
        workers: int = 0,
        *,
        job_seconds: float = 120.0,
        retries: int = 2,
        unsafe_no_sandbox: bool = False,
        engine: EngineConfig | None = None,
        threads: int = 1,
        patience: Patience | None = None,
    ) -> None:
        engine = engine or EngineConfig()
        self.fingerprint = make_engine(engine).fingerprint
        self.job_seconds = job_seconds
        self.retries = retries
        self.patience = patience or Patience()
        settings = Settings(unsafe_no_sandbox, job_seconds, engine, threads)
        self.workers = [WorkerProcess(settings, self.patience) for _ in range(workers or os.cpu_count() or 1)]
        self._closed = False
        self._threads = ThreadPoolExecutor(len(self.workers), "trainwright-worker")
        self._free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self.workers:
            self._free.put(worker)

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox that the workers use; the pool must have been started."""
        sandbox = self.workers[0].sandbox
        assert sandbox is not None
        return sandbox

    async def start(self) -> Started:
        """Start every worker now rather than at its first request; raise `SandboxError` or `InfraFault`."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, worker.start) for worker in self.workers))
        advice = f"; {self.sandbox.advice}" if self.sandbox.advice else ""
        return Started(self.sandbox.level, f"{len(self.workers)} workers, sandbox: {self.sandbox.level}{advice}")

    async def gate(self, job: Job, task: Task) -> Verdict:
        """Return the gate's verdict; raise `InfraFault` after retries elsewhere."""
        seconds = self.job_seconds + self.patience.grace
        try:
            verdict: Verdict = await self._call("gate", (job, task), seconds)
        except TimeoutError:
            message = f"The job's rows and rewards could not be checked within {seconds:g} seconds; make them quicker."
            return Verdict(False, "timeout", message, ENVIRONMENT)
        return verdict

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        """Train one job; the outcome is TRAINED, JOB_FAULT or, after retries elsewhere, INFRA."""
        seconds = self.job_seconds + self.patience.grace
        try:
            result: TrainResult = await self._call("train", (job, hyperparameters, seed), seconds)
        except TimeoutError:
            detail = f"the job did not end within {self.job_seconds:g} seconds"
            return TrainResult(Outcome(OutcomeClass.JOB_FAULT, "timeout", detail), wall_seconds=seconds)
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
            replies: list[str] = await self._call("generate", arguments, self.job_seconds + self.patience.grace)
        except TimeoutError as error:
            raise InfraFault("generate_timeout", str(error)) from None
        return replies

    async def close(self) -> None:
        """End every worker; safe to call twice."""
        self._closed = True
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)

    async def _call(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        for _ in range(self.retries):
            try:
                return await self._once(name, arguments, seconds)
            except InfraFault:
                if self._closed:
                    raise
        return await self._once(name, arguments, seconds)

    async def _once(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        if self._closed:
            raise InfraFault("pool_closed", "the pool was closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._request, name, arguments, seconds)

    def _request(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Make one request of the worker that has been free the longest, so that a retry goes elsewhere."""
        worker = self._free.get()  # there are as many threads as workers, so one is free
        try:
            return worker.call(name, arguments, seconds)
        finally:
            self._free.put(worker)
