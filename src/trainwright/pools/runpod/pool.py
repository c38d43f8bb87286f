"""The Runpod pool: trains jobs on up to sixteen warm rented pods and answers benchmark prompts on clean ones.

Read top-down: `train` and `generate` queue work, `renter.py` rents a pod where work waits, `worker.py` runs one pod
from its row to its deletion, `fleet.py` holds the calls, `records.py` what must survive, `money.py` the caps,
`reaper.py` the last resort. The gate runs in a local pool: it needs the sandbox, not a GPU.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainwright.cache import content_hash
from trainwright.config import RunConfig
from trainwright.errors import ConfigError, InfraFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import Job
from trainwright.pools.pool import OutcomeClass, Pool, Started, TrainResult, Verdict
from trainwright.pools.runpod import evaluation, reaper
from trainwright.pools.runpod.agent_client import AgentClient, JobStatus
from trainwright.pools.runpod.api import RunpodApi
from trainwright.pools.runpod.candidates import Candidates
from trainwright.pools.runpod.config import RunpodConfig, api_key, endpoints
from trainwright.pools.runpod.fleet import Fleet
from trainwright.pools.runpod.queue import TRAINING, Work, WorkQueue
from trainwright.pools.runpod.records import FILE, Attempt, JobRow, PodRow, Records
from trainwright.pools.runpod.renter import Renter
from trainwright.pools.runpod.results import AdapterCheck, ResultFiles, from_json, to_json, train_result
from trainwright.pools.runpod.worker import Resumed
from trainwright.suites.family import Task

log = logging.getLogger(__name__)
SANDBOX = "pod"
"""The sandbox level that episodes record: the pod is the boundary, whatever the job command adds inside it."""


def runpod_pool(config: RunConfig) -> RunpodPool:
    """Return the pool of a run's configuration; raise `ConfigError`."""
    from trainwright.pools.local import local_pool
    from trainwright.pools.runpod.weights import checked_files

    settings, engine = config.pool.runpod, config.engine
    if settings is None:
        raise ConfigError('pool.backend = "runpod" needs the table [pool.runpod]; see docs/runpod.md')
    if engine.prime_rl is not None and engine.prime_rl.wall >= settings.times.job:
        raise ConfigError(
            f"engine.prime_rl.wall = {engine.prime_rl.wall:g} must be less than pool.runpod.times.job = "
            f"{settings.times.job:g}: the engine knows whose fault a late run is, the pool does not"
        )
    command = {"engine": engine.model_dump(mode="json", exclude_none=True), "unsafe": config.pool.unsafe_no_sandbox}
    return RunpodPool(settings, config.folder, local=local_pool(config), adapter=checked_files, command=command)


def group_of(key: str) -> str:
    """Return the trust group of an episode id: everything before its member, `train-0003-1` of `train-0003-1-5`."""
    return key.rpartition("-")[0] or key


class RunpodPool:
    """See the module. `folder` holds the records, `adapter` checks trained weights, `local` gates jobs, and `command`
    is what the job command is told beside the job (see `run_job.py`).

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
        command: dict[str, Any],
        open_records: Callable[[Path], Records] = Records,
    ) -> None:
        self.config = config
        self.fingerprint = content_hash("runpod", local.fingerprint, config.image, config.job_command, config.services)
        self._folder, self._local, self._adapter, self._command = folder, local, adapter, command
        self._open_records = open_records
        self._queue = WorkQueue()
        self._works: dict[str, Work] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._log_handlers: list[logging.Handler] = []
        self._started = self._closed = False

    # The protocol

    async def start(self) -> Started:
        """Start the gate, open the records, take over what an earlier controller left, and start the loops.

        Nothing is rented before the first job. Raises `ConfigError` for a missing key and a folder in use.
        """
        base_url, proxy = endpoints(self.config.base_url, self.config.proxy_template)
        key = api_key()
        gate = await self._local.start()
        self._records = self._open_records(self._folder / FILE)
        self._log_to(self._folder / "pods.log")
        self._results = ResultFiles(self._folder / "pod-results", self.config.keep_results)
        self._api = RunpodApi(base_url, key, self.config.times.request)
        self._fleet = Fleet(self.config, self._records, self._api, base_url, proxy, Candidates(self.config))
        self._renter = Renter(self._fleet, self._queue, self._collect)
        self._started = True
        taken_over = self._take_over()
        self._loops = [asyncio.create_task(loop) for loop in (self._renter.run(), reaper.reap(self._fleet))]
        money = self.config.money
        note = (
            f"up to {self.config.max_pods} Runpod pods, at most ${money.max_usd_per_hour:g} an hour and "
            f"${money.max_usd_total:g} in all; gate: {gate.note}"
        )
        return Started(SANDBOX, f"{note}; pods taken over: {taken_over}" if taken_over else note)

    async def gate(self, job: Job, task: Task) -> Verdict:
        """Return the local gate's verdict."""
        return await self._local.gate(job, task)

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        """Train one job on a pod. Raises `InfraFault` after retries elsewhere, `OutOfMoney` at a cap, and
        `ValueError` when the key is known for another job."""
        self._check_open()
        order = {"key": key, "seed": seed, "hyperparameters": asdict(hyperparameters), **self._command}
        settings = json.dumps(order, sort_keys=True)
        spec = hashlib.sha256((job.hash + settings).encode()).hexdigest()
        wall = self.config.times.job
        row = JobRow(key, spec, hyperparameters.student, group_of(key), hyperparameters.rollouts, wall)
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
        self._check_open()
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
        if self._closed:
            return
        self._closed = True
        if self._started:
            await self._close_pods()
        await self._local.close()

    async def _close_pods(self) -> None:
        for work in [*self._queue.drain(), *self._works.values()]:
            work.done.cancel()
        for loop in self._loops:
            loop.cancel()
        _, pending = await asyncio.wait([*self._loops, *self._renter.dismiss()], timeout=self.config.times.close)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await reaper.reap_last(self._fleet)
        for row in self._records.live():
            until = time.strftime("%H:%M:%S", time.localtime(row.lease_until))
            log.error("%s (%s) could not be deleted; it deletes itself at %s", row.name, row.pod_id or "?", until)
        await self._fleet.close()
        await self._api.close()
        self._records.close()
        for handler in self._log_handlers:
            logging.getLogger(__package__).removeHandler(handler)
            handler.close()

    # Work

    def _check_open(self) -> None:
        if self._closed or not self._started:
            raise InfraFault("closed", "the pool is closed" if self._closed else "the pool has not been started")

    def _log_to(self, path: Path) -> None:
        """Write what happens to pods to a file, and what may cost money after us to the terminal as well."""
        errors = logging.StreamHandler(sys.stderr)
        errors.setLevel(logging.ERROR)
        self._log_handlers = [logging.FileHandler(path, encoding="utf-8"), errors]
        logger = logging.getLogger(__package__)
        logger.setLevel(logging.INFO)
        for handler in self._log_handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)

    def _take_over(self) -> int:
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
            self._renter.adopt(row, resumed.get(row.name))
        return len(rows)

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
        self._renter.wake()

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
