"""Rents pods where work waits, gives each a worker, and learns from how each one ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from trainwright.errors import ConfigError, InfraFault, TrainwrightError
from trainwright.pools.runpod import evaluation
from trainwright.pools.runpod.api import NoBalance, NoCapacity, OursToFix, RunpodError, Skip, Wait, WrongKey
from trainwright.pools.runpod.candidates import Candidate
from trainwright.pools.runpod.fleet import BootFailed, CommandFailed, Fleet, NoRoom, PodLost
from trainwright.pools.runpod.money import OutOfMoney
from trainwright.pools.runpod.queue import TRAINING, WorkQueue, pods_wanted
from trainwright.pools.runpod.records import PodRow
from trainwright.pools.runpod.worker import Collect, PodWorker, Resumed

log = logging.getLogger(__name__)
BOOT_FAILURE_WEIGHT = 3


class Renter:
    """The pods of one controller, a worker each. `collect` is what workers make results with."""

    def __init__(self, fleet: Fleet, queue: WorkQueue, collect: Collect) -> None:
        self._fleet, self._queue, self._collect = fleet, queue, collect
        self._config, self._times, self._candidates = fleet.config, fleet.config.times, fleet.candidates
        self._workers: dict[PodWorker, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._failures = 0
        self._obstacle = ""

    def wake(self) -> None:
        """Look at the queue now: something was added."""
        self._wake.set()

    def adopt(self, row: PodRow, resumed: Resumed | None) -> None:
        """Give the row of an earlier controller a worker, and the attempt that runs on its pod."""
        self._run_pod(row, None, resumed)

    def dismiss(self) -> list[asyncio.Task[None]]:
        """Tell every worker to end its pod; return the tasks to wait for. A deletion that has begun is left alone."""
        for worker, task in self._workers.items():
            if not worker.ending:
                task.cancel()
        return list(self._workers.values())

    async def run(self) -> None:
        """Rent pods where work waits, for ever. What can't be solved by waiting goes to everyone who waits."""
        while True:
            wait = self._times.backoff
            try:
                self._expire()
                await self._scale()
                wait = self._times.heartbeat
            except (NoRoom, Wait) as error:
                wait = error.seconds
                self._note(error)
            except RunpodError as error:
                self._refused(error)
            except Exception as error:  # a cap is reached, or we have a bug: whoever waits shall know
                self._queue.fail(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.01)):  # `wait_for` of Python 3.11 can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()

    async def _scale(self) -> None:
        """Ask for one pod for each piece of waiting work that no pod will take, up to the limits."""
        evaluation_room = self._config.evaluation_pods * len(self._config.services)
        for role in self._queue.roles():
            limit = self._config.max_pods - evaluation_room if role == TRAINING else self._config.evaluation_pods
            while True:
                mine = [worker for worker in self._workers if worker.row.role == role]
                busy = sum(worker.work is not None for worker in mine)
                if len(mine) >= pods_wanted(len(self._queue.waiting(role)), busy, limit):
                    break
                row, candidate = await self._fleet.intend(role)
                self._run_pod(row, candidate, None)

    def _run_pod(self, row: PodRow, candidate: Candidate | None, resumed: Resumed | None) -> None:
        service = [] if row.role == TRAINING else self._config.services.get(evaluation.student_of(row.role), [])
        worker = PodWorker(
            self._fleet,
            self._queue,
            row,
            service=service,
            collect=self._collect,
            serving=lambda: [one.row.trust_group for one in self._workers if one.row.role == row.role],
            found=candidate is None,
            resumed=resumed,
        )
        task = asyncio.create_task(worker.run())
        self._workers[worker] = task
        task.add_done_callback(lambda _: self._ended(worker, candidate, task))

    def _ended(self, worker: PodWorker, candidate: Candidate | None, task: asyncio.Task[None]) -> None:
        """Learn from how a pod ended: which candidates to avoid, and what nobody can solve by trying again."""
        del self._workers[worker]
        self._wake.set()
        if task.cancelled():
            return
        error = task.exception()
        if worker.row.boot_id and not isinstance(error, BootFailed | CommandFailed):
            self._failures = 0
        if candidate is not None and worker.row.jobs:
            self._candidates.accept(candidate)
        if error is None:
            return
        log.warning("%s: %s", worker.row.name, error)
        if isinstance(error, NoCapacity | Skip) and candidate:
            self._candidates.refuse(candidate, time.monotonic(), error)
        elif isinstance(error, BootFailed | PodLost):
            if candidate and not worker.row.jobs:
                self._candidates.refuse(candidate, time.monotonic(), error, BOOT_FAILURE_WEIGHT)
            if isinstance(error, BootFailed | CommandFailed):
                self._useless(error)
        elif isinstance(error, RunpodError):
            self._refused(error)
        elif isinstance(error, Exception):
            self._queue.fail(error)

    def _useless(self, error: Exception) -> None:
        """Count pods that could do nothing; after too many in a row the next ones would only cost money."""
        self._failures += 1
        if self._failures >= self._config.boot_failures:
            self._queue.fail(TrainwrightError(f"{self._failures} pods in a row were of no use, the last one: {error}"))
            self._failures = 0

    def _refused(self, error: RunpodError) -> None:
        """Stop everyone who waits when the API's refusal is final; otherwise time will help."""
        if isinstance(error, NoBalance):
            words = f"the Runpod account has no balance left; add some and resume the run ({error})"
            self._queue.fail(OutOfMoney(words))
        elif isinstance(error, WrongKey | Skip):
            self._queue.fail(ConfigError(f"Runpod refuses RUNPOD_API_KEY; check it in the console ({error})"))
        elif isinstance(error, OursToFix):
            self._queue.fail(ConfigError(f"Runpod refuses our request; check the table [pool.runpod] ({error})"))
        else:
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Log what keeps us from renting when it changes, and keep it for whoever waits too long."""
        if str(error) != self._obstacle:
            log.warning("%s", error)
        self._obstacle = str(error)

    def _expire(self) -> None:
        """Give up on work that no pod took for the queue time."""
        for role in self._queue.roles():
            for work in self._queue.waiting(role):
                if time.monotonic() - work.queued_at > self._times.queue:
                    self._queue.remove(work)
                    if not work.done.done():
                        why = f"no pod could be rented for it in time: {self._obstacle}"
                        work.done.set_exception(InfraFault("no_capacity", why))
