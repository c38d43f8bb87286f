"""One pod, from its row to its deletion: boot, serve jobs while a heartbeat renews the lease, end in a `finally`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from trainwright.errors import InfraFault
from trainwright.pools.runpod.agent_client import AgentClient, Health, JobStatus, Misbehaved, Refused, Unreachable
from trainwright.pools.runpod.api import RunpodError
from trainwright.pools.runpod.fleet import CommandFailed, Fleet, PodLost
from trainwright.pools.runpod.queue import TRAINING, Work, WorkQueue
from trainwright.pools.runpod.records import Attempt, PodRow
from trainwright.pools.runpod.run_job import INFRA_EXIT

log = logging.getLogger(__name__)

Collect = Callable[[Work, Attempt, PodRow, AgentClient, JobStatus], Awaitable[bool]]
Resumed = tuple[Work, Attempt]


class PodWorker:
    """Runs one pod. `collect` makes an ended job into its result and returns whether the job itself was at fault.

    `found` marks the row of an earlier controller, `resumed` the attempt that was running on it.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: WorkQueue,
        row: PodRow,
        *,
        service: list[str],
        collect: Collect,
        serving: Callable[[], Iterable[str]],
        found: bool = False,
        resumed: Resumed | None = None,
    ) -> None:
        self.row = row
        self.work: Work | None = resumed[0] if resumed else None
        self.ending = False
        self._fleet, self._queue, self._records = fleet, queue, fleet.records
        self._config, self._times = fleet.config, fleet.config.times
        self._service, self._collect, self._serving = service, collect, serving
        self._found, self._resumed = found, resumed
        self._lease_lock = asyncio.Lock()
        self._ending = "INFRA_LOST"

    async def run(self) -> None:
        """Rent or resume the pod, serve until there's no more work, and delete it, whatever happens.

        Raises `BootFailed`, `PodLost` and `RunpodError` after the deletion.
        """
        reason, kind = "no more work", ""
        try:
            await self._open()
            await self._while_alive(self._serve())
        except asyncio.CancelledError:
            reason = "the controller stops"
            raise
        except BaseException as error:
            reason, kind = f"{type(error).__name__}: {error}", "lost"
            raise
        finally:
            self.ending = True  # from here on nobody cancels: a deletion that has begun is seen through
            if self._resumed:
                await self._drop_resumed("its pod could not be resumed")
            await self._fleet.terminate(self.row, reason, kind=kind)

    async def _open(self) -> None:
        """Bring the pod to a healthy agent, from wherever its row stands."""
        row, fleet = self.row, self._fleet
        if row.phase == "INTENT" and self._found:
            await fleet.rediscover(row)
        elif row.phase == "INTENT":
            await fleet.create(row, self._service)
        if row.phase == "BOOTING":
            await fleet.boot(row)
        else:
            await self._take_over(await fleet.resume(row))

    async def _take_over(self, health: Health) -> None:
        """Go on with the attempt of an earlier controller if the pod still has it; wipe everything else."""
        if self._resumed and health.jobs.get(self._resumed[1].id) in {"RUNNING", "DONE"}:
            return
        if self._resumed:
            await self._drop_resumed("its pod no longer knows it")
        for id in health.jobs:
            await self._wipe(id)
        if self.row.phase != "IDLE":
            self._records.move(self.row, "IDLE", time.time(), kind="lost")

    async def _drop_resumed(self, detail: str) -> None:
        assert self._resumed is not None
        work, attempt = self._resumed
        self._resumed = self.work = None
        self._records.conclude(attempt, time.time(), "INFRA_LOST", detail)
        await self._hand_back(work)

    async def _while_alive(self, serving: Coroutine[Any, Any, None]) -> None:
        """Serve until done or until the heartbeat finds the pod lost."""
        tasks = [asyncio.create_task(serving), asyncio.create_task(self._heartbeat())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._ending = "CANCELLED"
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _heartbeat(self) -> None:
        """Renew the lease for ever; raise `PodLost` when the pod is gone, or unreachable for too long.

        No answer proves nothing: the proxy fails more often than pods do. So the API is asked at once whether the pod
        is gone, silence alone counts after `lost` seconds, and while the API is silent too, when the lease has passed.
        """
        row, heard = self.row, time.monotonic()
        while True:
            await asyncio.sleep(self._times.heartbeat)
            try:
                async with self._lease_lock:
                    await self._fleet.renew(row)
                heard = time.monotonic()
            except Unreachable as error:
                patience = self._times.lost
                try:
                    if not await self._fleet.exists(row):
                        raise PodLost(f"{row.name}: the pod is gone") from None
                except RunpodError:
                    patience = self._times.lease
                if time.monotonic() - heard > patience:
                    raise PodLost(f"{row.name}: not reached for {patience:g} seconds: {error}") from None

    async def _serve(self) -> None:
        """Run one job after the other until none comes for the idle time, or the pod has had its share."""
        row, longest = self.row, max(self._times.job, self._times.evaluation) + self._times.lost
        while row.faults < self._config.faults_per_pod and row.deadline - time.time() > longest:
            attempt = None
            if self._resumed:
                (work, attempt), self._resumed = self._resumed, None
            else:
                taken = await self._queue.take(row.role, row.trust_group, self._serving(), self._times.idle)
                if taken is None:
                    return
                work = taken
            self.work = work
            try:
                if attempt is None and work.role == TRAINING and row.trust_group not in ("", work.group):
                    async with self._lease_lock:
                        await self._fleet.restart(row)
                await self._run(work, attempt)
            finally:
                self.work = None
                await self._hand_back(work)

    async def _run(self, work: Work, attempt: Attempt | None) -> None:
        """Run one job, or go on watching one that runs already; raise `PodLost`."""
        row, agent = self.row, self._fleet.agent(self.row)
        if attempt is None:
            id = f"{hashlib.sha256(work.key.encode()).hexdigest()[:16]}-{time.time_ns():x}"
            attempt = Attempt(id, work.key, row.name, time.time())
            self._records.begin(attempt)
        self._records.move(row, "WORKING", time.time(), trust_group=work.group)
        try:
            status = await self._drive(work, attempt, agent)
            if status.ended == "cancelled":
                raise PodLost(f"{row.name}: somebody cancelled the job")
            if status.ended == "start_failed" or (status.ended == "exited" and status.exit_code == INFRA_EXIT):
                words = f"{status.fault_message} [{status.fault_code}]"
                raise CommandFailed(f"{row.name}: the job command can't work: {words}")
            if self._config.require_gpu and not status.gpu_ok:
                raise PodLost(f"{row.name}: its GPUs are not what they were before the job")
            faulty = await self._collect(work, attempt, row, agent, status)
        except BaseException as error:
            self._records.conclude(attempt, time.time(), self._ending, f"{type(error).__name__}: {error}")
            self._records.move(row, "IDLE", time.time(), kind="lost")
            work.losses += 1
            if isinstance(error, Misbehaved | Refused | Unreachable):
                raise PodLost(f"{row.name}: {error}") from None
            raise
        self._records.move(row, "IDLE", time.time(), jobs=row.jobs + 1, faults=row.faults + faulty)
        await self._wipe(attempt.id)

    async def _drive(self, work: Work, attempt: Attempt, agent: AgentClient) -> JobStatus:
        """Upload, start and poll a job until it has ended. The heartbeat judges silence, this doesn't."""
        limit, placed = time.monotonic() + work.wall_seconds + self._times.lost, False
        while time.monotonic() < limit:
            with contextlib.suppress(Unreachable):
                if not placed:
                    await self._place(work, attempt, agent)
                    placed = True
                status = await agent.status(attempt.id)
                if status.state == "DONE":
                    return status
            await asyncio.sleep(self._times.poll)
        raise PodLost(f"{self.row.name}: the job did not end in its time")

    async def _place(self, work: Work, attempt: Attempt, agent: AgentClient) -> None:
        """Bring a job to the pod and start it, whatever part of that happened already."""
        if await self._state(agent, attempt.id) in ("", "UPLOADING"):
            if work.files is None:
                raise PodLost(f"{self.row.name}: it forgot a job that it had")
            await agent.upload(attempt.id, work.command, work.env, work.wall_seconds, work.files)
            await agent.start(attempt.id)

    async def _state(self, agent: AgentClient, id: str) -> str:
        """Return a job's state, empty when the agent doesn't know it."""
        try:
            return (await agent.status(id)).state
        except Refused as refusal:
            if refusal.status == 404:
                return ""
            raise

    async def _hand_back(self, work: Work) -> None:
        """Queue work again that has no result yet, or give up on it."""
        if work.done.done():
            return
        if work.losses > self._config.job_retries:
            work.done.set_exception(InfraFault("pod_lost", f"the job's pod was lost {work.losses} times"))
        elif work.files is None:
            work.done.set_exception(InfraFault("pod_lost", "lost with the pod of an earlier controller"))
        else:
            await self._queue.put(work)

    async def _wipe(self, id: str) -> None:
        """Remove a job from the pod; an agent that is silent for long or forgot it is the heartbeat's business."""
        limit = time.monotonic() + self._times.lost
        while time.monotonic() < limit:
            with contextlib.suppress(Misbehaved, Refused):
                try:
                    await self._fleet.agent(self.row).delete(id)
                except Unreachable:
                    await asyncio.sleep(self._times.poll)
                    continue
            return
