"""The Runpod pool: trains jobs on up to sixteen warm rented pods and answers benchmark prompts on clean ones.

Read top-down: `train` and `generate` queue work, `_scale` rents a pod where work waits, `worker.py` runs one pod from
its row to its deletion, `fleet.py` holds the calls, `records.py` what must survive, `money.py` the caps, `reaper.py`
the last resort. The gate runs in a local pool: it needs the sandbox, not a GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainwright.errors import ConfigError, InfraFault, TrainwrightError
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import OutcomeClass, Pool, TrainResult, Verdict
from trainwright.pools.runpod import evaluation, reaper
from trainwright.pools.runpod.agent_client import AgentClient, JobStatus
from trainwright.pools.runpod.api import (
    NoBalance,
    NoCapacity,
    OursToFix,
    Pod,
    RunpodApi,
    RunpodError,
    Skip,
    Wait,
    WrongKey,
)
from trainwright.pools.runpod.candidates import Candidate, Candidates
from trainwright.pools.runpod.config import RunpodConfig, api_key, endpoints
from trainwright.pools.runpod.fleet import BootFailed, Fleet, NoRoom, PodLost
from trainwright.pools.runpod.money import OutOfMoney
from trainwright.pools.runpod.queue import TRAINING, Work, WorkQueue, pods_wanted
from trainwright.pools.runpod.records import Attempt, JobRow, PodRow, Records
from trainwright.pools.runpod.results import AdapterCheck, ResultFiles, from_json, to_json, train_result
from trainwright.pools.runpod.worker import PodWorker, Resumed
from trainwright.suites.family import Task

log = logging.getLogger(__name__)
BOOT_FAILURE_WEIGHT = 3


def group_of(key: str) -> str:
    """Return the trust group of an episode id: everything before its member, `train-0003-1` of `train-0003-1-5`."""
    return key.rpartition("-")[0] or key


class RunpodPool:
    """See the module. `folder` holds the records, `adapter` checks trained weights, `local` gates jobs.

    One process at a time may use a folder. A pool that is started on the folder of a killed one takes over its pods,
    goes on with the jobs that run there, and returns the stored result for a key that has one.
    """

    def __init__(
        self,
        config: RunpodConfig,
        folder: Path,
        *,
        local: Pool,
        adapter: AdapterCheck,
        group_of: Callable[[str], str] = group_of,
        open_records: Callable[[Path], Records] = Records,
    ) -> None:
        self.config = config
        self._folder, self._local, self._adapter, self._group_of = folder, local, adapter, group_of
        self._open_records = open_records
        self._queue = WorkQueue()
        self._works: dict[str, Work] = {}
        self._workers: dict[PodWorker, asyncio.Task[None]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._start_lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._boot_failures = 0
        self._obstacle = ""
        self._started = self._closed = False

    # The protocol

    async def gate(self, job: Job, task: Task) -> Verdict:
        """Return the local gate's verdict."""
        return await self._local.gate(job, task)

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        """Train one job on a pod. Raises `InfraFault` after retries elsewhere, `OutOfMoney` at a cap, and
        `ValueError` when the key is known for another job."""
        await self._start()
        settings = json.dumps({"key": key, "seed": seed, "hyperparameters": asdict(hyperparameters)}, sort_keys=True)
        spec = hashlib.sha256((job.hash + settings).encode()).hexdigest()
        wall = self.config.times.job
        row = JobRow(key, spec, hyperparameters.student, self._group_of(key), hyperparameters.rollouts, wall)
        known = self._records.job(key)
        if known and known.spec != spec:
            raise ValueError(f"the key {key!r} is known for another job")
        if known and known.result and (stored := self._stored(known)):
            return stored
        files = {f"job/{name}": text.encode() for name, text in job.files.items()}
        files["settings.json"] = settings.encode()
        self._records.submit(row)
        work = self._works.get(key)
        if work is None:
            work = self._work(key, TRAINING, row.trust_group, self.config.job_command, wall, row)
            work.files, work.env = files, self.config.job_env
            await self._submit(work)
        else:
            work.files = files
        result: TrainResult = await self._result(work)
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
        """Return one reply a prompt from an evaluation pod; replies of the base student are cached for ever.

        Raises `InfraFault`, `OutOfMoney`, `ConfigError` for a student that no service serves, and `ValueError` for
        weights that the adapter check refuses.
        """
        if student not in self.config.services:
            known = ", ".join(self.config.services) or "none"
            raise ConfigError(f"pool.runpod.services has no command that serves {student!r}; known: {known}")
        await self._start()
        adapter = {} if weights is None else await asyncio.to_thread(self._adapter, student, weights)
        files = evaluation.request_files(adapter, prompts, seed, max_tokens, temperature)
        key = evaluation.request_key(student, files)
        if weights is None and (replies := self._records.baseline(key)) is not None:
            return replies
        work = self._works.get(key)
        if work is None:
            role, wall = evaluation.role_of(student), self.config.times.evaluation
            work = self._work(key, role, "", self.config.evaluation_command, wall, None)
            work.files, work.count = files, len(prompts)
            await self._submit(work)
        parsed: list[str] = await self._result(work)
        if weights is None:
            self._records.keep_baseline(key, parsed)
        return parsed

    async def close(self) -> None:
        """Delete every pod and release the records; safe to call twice.

        A pod that can't be deleted in time is logged; its lease ends it.
        """
        if self._closed or not self._started:
            self._closed = True
            return
        self._closed = True
        for work in [*self._queue.drain(), *self._works.values()]:
            work.done.cancel()
        for task in [*self._loops, *(task for worker, task in self._workers.items() if not worker.ending)]:
            task.cancel()
        tasks = [*self._loops, *self._workers.values()]
        _, pending = await asyncio.wait(tasks, timeout=self.config.times.close)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for row in self._records.live():
            until = time.strftime("%H:%M:%S", time.localtime(row.lease_until))
            log.error("%s (%s) could not be deleted; it deletes itself at %s", row.name, row.pod_id or "?", until)
        await self._fleet.close()
        await self._api.close()
        self._records.close()

    async def spend(self) -> dict[str, tuple[float, float]]:
        """Return pod-seconds and USD so far by kind: `working`, `booting`, `idle`, `lost`."""
        await self._start()
        return self._records.spend(time.time())

    # Starting

    async def _start(self) -> None:
        """Open the records, take over what an earlier controller left, and start the loops, once."""
        async with self._start_lock:
            if self._closed:
                raise InfraFault("closed", "the pool is closed")
            if self._started:
                return
            base_url, proxy = endpoints(self.config.base_url, self.config.proxy_template)
            key = api_key()
            self._records = self._open_records(self._folder / "pods.sqlite")
            self._results = ResultFiles(self._folder / "pod-results", self.config.keep_results)
            self._api = RunpodApi(base_url, key, self.config.times.request)
            self._candidates = Candidates(self.config)
            self._fleet = Fleet(self.config, self._records, self._api, base_url, proxy, self._candidates)
            self._started = True
            self._take_over()
            self._loops = [asyncio.create_task(loop) for loop in (self._manage(), self._reap())]

    def _take_over(self) -> None:
        """Give every row that an earlier controller left a worker, and its running attempt if there is one."""
        rows = {row.name: row for row in self._records.live()}
        resumed: dict[str, Resumed] = {}
        for attempt in self._records.open_attempts():
            job, row = self._records.job(attempt.key), rows.get(attempt.pod)
            if row is None or job is None or job.result or row.role != TRAINING:
                self._records.conclude(attempt, time.time(), "INFRA_LOST", "left by an earlier controller")
                continue
            work = self._work(job.key, TRAINING, job.trust_group, self.config.job_command, job.wall_seconds, job)
            self._works[job.key] = work
            resumed[row.name] = work, attempt
        for row in rows.values():
            self._run_pod(row, None, resumed.get(row.name))

    def _work(
        self, key: str, role: str, group: str, command: list[str], wall_seconds: float, job: JobRow | None
    ) -> Work:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def forget(future: asyncio.Future[Any]) -> None:
            self._works.pop(key, None)
            if not future.cancelled():
                future.exception()  # nobody may be waiting for a job of an earlier controller

        done.add_done_callback(forget)
        return Work(key, role, group, command, {}, wall_seconds, None, done, job)

    async def _submit(self, work: Work) -> None:
        self._works[work.key] = work
        await self._queue.put(work)
        self._wake.set()

    async def _result(self, work: Work) -> Any:
        """Wait for a result; whoever stops waiting stops nobody else."""
        try:
            return await asyncio.shield(work.done)
        except asyncio.CancelledError:
            if work.done.cancelled():
                raise InfraFault("closed", "the pool was closed before the job ended") from None
            raise

    def _stored(self, job: JobRow) -> TrainResult | None:
        """Return the result of a finished job, None (and the job reopened) when its weights are no longer kept."""
        assert job.result is not None
        weights: bytes | None = b""
        if job.result["outcome"]["kind"] == OutcomeClass.TRAINED:
            weights = self._results.load(job.key)
        if weights is None:
            self._records.reopen(job.key)
            return None
        return from_json(job.result, weights)

    # Scaling

    async def _manage(self) -> None:
        """Rent pods where work waits, for ever. What can't be solved by waiting goes to everyone who waits."""
        while True:
            wait = self.config.times.backoff
            try:
                self._expire()
                await self._scale()
                wait = self.config.times.heartbeat
            except (NoRoom, Wait) as error:
                wait = error.seconds
                self._note(error)
            except RunpodError as error:
                self._refused(error)
            except Exception as error:  # a cap is reached, or we have a bug: whoever waits shall know
                self._fail(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.01)):  # `wait_for` of Python 3.11 can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()

    async def _scale(self) -> None:
        """Ask for one pod for each piece of waiting work that no pod will take, up to the limits."""
        evaluation_room = self.config.evaluation_pods * len(self.config.services)
        for role in self._queue.roles():
            limit = self.config.max_pods - evaluation_room if role == TRAINING else self.config.evaluation_pods
            while True:
                mine = [worker for worker in self._workers if worker.row.role == role]
                busy = sum(worker.work is not None for worker in mine)
                if len(mine) >= pods_wanted(len(self._queue.waiting(role)), busy, limit):
                    break
                row, candidate = await self._fleet.intend(role)
                self._run_pod(row, candidate, None)

    def _run_pod(self, row: PodRow, candidate: Candidate | None, resumed: Resumed | None) -> None:
        service = [] if row.role == TRAINING else self.config.services.get(evaluation.student_of(row.role), [])
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
        if worker.row.boot_id and not isinstance(error, BootFailed):
            self._boot_failures = 0
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
            if isinstance(error, BootFailed):
                self._boot_failures += 1
                if self._boot_failures >= self.config.boot_failures:
                    self._boot_failures = 0
                    self._fail(TrainwrightError(f"{self.config.boot_failures} pods in a row did not boot: {error}"))
        elif isinstance(error, RunpodError):
            self._refused(error)
        elif isinstance(error, Exception):
            self._fail(error)

    def _refused(self, error: RunpodError) -> None:
        """Stop everyone who waits when the API's refusal is final; otherwise time will help."""
        if isinstance(error, NoBalance):
            self._fail(OutOfMoney(f"the Runpod account has no balance left; add some and resume the run ({error})"))
        elif isinstance(error, WrongKey | Skip):
            self._fail(ConfigError(f"Runpod refuses RUNPOD_API_KEY; check it in the console ({error})"))
        elif isinstance(error, OursToFix):
            self._fail(ConfigError(f"Runpod refuses our request; check the table [pool.runpod] ({error})"))
        else:
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Log what keeps us from renting when it changes, and keep it for whoever waits too long."""
        if str(error) != self._obstacle:
            log.warning("%s", error)
        self._obstacle = str(error)

    def _fail(self, error: Exception) -> None:
        for work in self._queue.drain():
            if not work.done.done():
                work.done.set_exception(error)

    def _expire(self) -> None:
        """Give up on work that no pod took for the queue time."""
        for role in self._queue.roles():
            for work in self._queue.waiting(role):
                if time.monotonic() - work.queued_at > self.config.times.queue:
                    self._queue.remove(work)
                    if not work.done.done():
                        why = f"no pod could be rented for it in time: {self._obstacle}"
                        work.done.set_exception(InfraFault("no_capacity", why))

    # Results

    async def _collect(self, work: Work, attempt: Attempt, row: PodRow, agent: AgentClient, status: JobStatus) -> bool:
        """Turn an ended job into the result of its work, stored first; return whether the job was at fault."""
        if work.job is None:
            replies = await evaluation.fetch_replies(agent, attempt.id, status, work.count, self.config.times.lost)
            self._records.conclude(attempt, time.time(), "OK")
            if not work.done.done():
                work.done.set_result(replies)
            return False
        result = await train_result(
            agent,
            attempt.id,
            status,
            student=work.job.student,
            rollouts=work.job.rollouts,
            adapter=self._adapter,
            max_artifact_bytes=self.config.max_artifact_bytes,
            patience=self.config.times.lost,
            worker=row.pod_id,
        )
        now = time.time()
        result = replace(result, usd=row.usd_per_hour * (now - attempt.began) / 3600)
        if result.outcome.kind is OutcomeClass.TRAINED:
            await asyncio.to_thread(self._results.save, work.key, result.weights)
        outcome = result.outcome
        if self._records.conclude(attempt, now, outcome.kind, outcome.reason, to_json(result)) and not work.done.done():
            work.done.set_result(result)
        return outcome.kind is OutcomeClass.JOB_FAULT

    # The reaper

    async def _reap(self) -> None:
        """Delete pods that nobody owns: at once, then every minute."""
        while True:
            asked = time.monotonic()
            try:
                pods = await self._fleet.listing.pods(asked)
                self._fleet.reprice(pods)
                async for one in reaper.sweep(self._api, pods, self._reason_to_go):
                    log.warning("reaped %s (%s): %s", one.pod.name, one.pod.id, one.reason)
                    seconds = reaper.age(one.pod, time.time())
                    self._records.book_stray(one.pod.name, seconds, one.pod.usd_per_hour, time.time())
            except RunpodError as error:
                log.warning("the reaper could not finish: %s", error)
            except Exception:  # a bug of ours must not be the end of the reaper
                log.exception("the reaper failed")
            await asyncio.sleep(self.config.times.reaper)

    def _reason_to_go(self, pod: Pod) -> str:
        return reaper.unowned(pod, self._records) or reaper.overdue(pod, time.time())
