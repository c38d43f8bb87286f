"""The life of a pod as the controller sees it: ask, adopt, boot, renew, restart, delete. Rows first, calls second.

`INTENT -> BOOTING -> IDLE <-> WORKING`, with `RESTARTING` between two trust groups, and a closed row at the end. What
the API says is believed only when it's seen: a restart by a new boot id, a deletion by a 204 or 404.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import secrets
import time

import httpx

from trainwright.pools.runpod.agent_client import AgentClient, Health, Misbehaved, Refused, Unreachable
from trainwright.pools.runpod.api import Create, NotThere, OursToFix, Pod, Retry, RunpodApi, RunpodError, Wait
from trainwright.pools.runpod.candidates import Candidate, Candidates
from trainwright.pools.runpod.config import BASE_URL, RunpodConfig
from trainwright.pools.runpod.money import OutOfMoney, Purse
from trainwright.pools.runpod.names import PodName
from trainwright.pools.runpod.records import PodRow, Records

log = logging.getLogger(__name__)
GONE = {"EXITED", "ERROR", "TERMINATED"}
CREATE_TRIES = 3


class BootFailed(Exception):
    """A pod did not become healthy; it's the candidate or the image."""


class PodLost(Exception):
    """A pod that was healthy is not any more, or can't be trusted to be."""


class CommandFailed(PodLost):
    """The job command says that it can't work on a pod: no sandbox, no engine, a GPU in use. Not the job's doing."""


class NoRoom(Exception):
    """No pod may be asked for now: the money is reserved, or every candidate waits. Try again after `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Listing:
    """The account's pods, read at most every so often however many ask (the API allows about one call a second)."""

    def __init__(self, api: RunpodApi, pace: float) -> None:
        self._api, self._pace = api, pace
        self._lock = asyncio.Lock()
        self._asked = -1e9
        self._pods: list[Pod] = []
        self.seen: dict[str, Pod] = {}
        """Every pod listed, by id, until the reaper finds it gone."""

    async def pods(self, since: float) -> list[Pod]:
        """Return a list that was asked for after `since` (monotonic); raise `RunpodError`."""
        async with self._lock:
            if self._asked <= since:
                await asyncio.sleep(max(0.0, self._asked + self._pace - time.monotonic()))
                asked = time.monotonic()
                self._pods = await self._api.pods()
                self.seen |= {pod.id: pod for pod in self._pods if pod.status != "TERMINATED"}
                self._asked = asked
            return self._pods


class Fleet:
    """Everything that is done to pods. One per controller."""

    def __init__(
        self, config: RunpodConfig, records: Records, api: RunpodApi, base_url: str, proxy: str, candidates: Candidates
    ) -> None:
        self.config, self.records, self.api, self.candidates = config, records, api, candidates
        self.times = config.times
        self.listing = Listing(api, config.times.listing)
        self._base_url, self.proxy = base_url, proxy
        self._http = httpx.AsyncClient(timeout=config.times.request, follow_redirects=False, trust_env=False)
        self.asked = False  # whether any pod was
        self.booked: set[str] = set()  # pods without a row that are in the books: a list may show them again
        self.twins_until = -1e9  # until when a pod of a create without an answer may show up
        self._catalog_at = -1e9
        self._catalog_lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections to pods."""
        await self._http.aclose()

    def agent(self, row: PodRow) -> AgentClient:
        """Return the client of a pod's agent."""
        return AgentClient(self._http, self.proxy, row.pod_id, self.config.port, row.token, self.times.request)

    def purse(self, *, without: PodRow | None = None) -> Purse:
        """Return what is spent and reserved now."""
        booked = sum(usd for _, usd in self.records.booked().values())
        return Purse.count(booked, self.records.live(), time.time(), without=without)

    # Asking for a pod

    async def intend(self, role: str) -> tuple[PodRow, Candidate]:
        """Choose a candidate, check the caps, and write the row; raise `NoRoom`, `OutOfMoney` or `RunpodError`."""
        await self._refresh_catalog()
        candidate = self.candidates.next(time.monotonic())
        if candidate is None:
            if words := self.candidates.broken_rule():
                raise OursToFix(f"every candidate is refused, and not for lack of capacity: {words}", 400)
            raise NoRoom(self.candidates.why_none(), self.candidates.wait(time.monotonic()))
        now = time.time()
        first_lease = self.times.boot + self.times.lease
        purse, money = self.purse(), self.config.money
        if not purse.allows(money.max_usd_total, money.max_usd_per_hour, candidate.usd_per_hour, first_lease):
            if self.records.live():
                raise NoRoom("the money is reserved by the pods that run", self.times.heartbeat)
            raise OutOfMoney(
                f"${purse.spent:.2f} of pool.runpod.money.max_usd_total = {money.max_usd_total:g} are spent, and a pod "
                f"at ${candidate.usd_per_hour:.2f} an hour (max_usd_per_hour = {money.max_usd_per_hour:g}) needs "
                f"${candidate.usd_per_hour * first_lease / 3600:.2f} in reserve; raise the cap to go on"
            )
        name = PodName.new(self.records.owner, now + self.times.pod)
        row = PodRow(
            name=str(name),
            role=role,
            gpu=candidate.gpu,
            cloud=candidate.cloud,
            data_center=candidate.data_center,
            usd_per_hour=candidate.usd_per_hour,
            token=secrets.token_urlsafe(32),
            intent_at=now,
            deadline=float(name.deadline),
            lease_until=now + first_lease,
            phase="INTENT",
            phase_since=now,
        )
        self.records.intend(row)
        return row, candidate

    async def create(self, row: PodRow, service: list[str]) -> None:
        """Rent the pod of a row, or adopt it when an earlier try got through; raise `RunpodError`.

        After `NoCapacity`, `Skip` or any other definite refusal the row is closed: nothing was rented.
        """
        create = Create(
            name=row.name,
            image=self.config.image,
            gpu=row.gpu,
            cloud=row.cloud,
            data_center=row.data_center,
            min_cuda=self.config.min_cuda,
            disk_gb=self.config.disk_gb,
            port=self.config.port,
            env=self._pod_env(row, service),
        )
        unknown = False
        for number in range(CREATE_TRIES):
            asked, self.asked = time.monotonic(), True
            try:
                pod = await self.api.create(create)
            except Retry as error:
                unknown = True
                self.twins_until = time.monotonic() + self.times.settle
                log.warning("%s: %s; looking for it", row.name, error)
                await self._pause(number)
                found = await self._find(row.name, asked)
                if not found:
                    continue
                pod = found[0]
            except RunpodError as error:
                if not unknown:
                    self.records.end(row, time.time(), str(error), existed=False)
                raise
            return self._adopt(row, pod)
        raise BootFailed(f"{row.name}: {CREATE_TRIES} creates without an answer")

    def _adopt(self, row: PodRow, pod: Pod) -> None:
        """Write the id of the pod, and its price if it's higher than the catalog said."""
        price = max(row.usd_per_hour, pod.usd_per_hour)
        self.records.update(row, pod_id=pod.id, usd_per_hour=price)
        self.records.move(row, "BOOTING", time.time())
        purse, money = self.purse(), self.config.money
        if purse.usd_per_hour > money.max_usd_per_hour or purse.spent + purse.reserved > money.max_usd_total:
            raise BootFailed(f"{row.name}: ${price:.2f} an hour is more than the catalog said and breaks a cap")

    async def rediscover(self, row: PodRow) -> None:
        """Adopt the pod that an earlier controller asked for without learning its id; raise `BootFailed` if none is."""
        self.asked, self.twins_until = True, time.monotonic() + self.times.settle
        found = await self._find(row.name, time.monotonic())
        if not found:
            raise BootFailed(f"{row.name}: asked for by an earlier controller and not found")
        self._adopt(row, found[0])

    async def _find(self, name: str, since: float) -> list[Pod]:
        """Return the pods of a name in a fresh list; `[]` also when no list can be had."""
        try:
            return [pod for pod in await self.listing.pods(since) if pod.name == name and pod.status != "TERMINATED"]
        except RunpodError as error:
            log.warning("%s: %s", name, error)
            return []

    def _pod_env(self, row: PodRow, service: list[str]) -> dict[str, str]:
        env = {
            "TRAINWRIGHT_TOKEN": row.token,
            "TRAINWRIGHT_DEADLINE": str(int(row.deadline)),
            "TRAINWRIGHT_LEASE_SECONDS": str(self.times.lease),
            "TRAINWRIGHT_PORT": str(self.config.port),
            "TRAINWRIGHT_JOB_UID": self.config.job_uid,
        }
        if service:
            env["TRAINWRIGHT_SERVICE"] = json.dumps(service)
        if self._base_url != BASE_URL:
            env["TRAINWRIGHT_RUNPOD_BASE_URL"] = self._base_url
        return env

    async def _refresh_catalog(self) -> None:
        async with self._catalog_lock:
            if time.monotonic() - self._catalog_at >= self.times.listing:
                offers = []
                for cloud in self.config.clouds:
                    offers += await self.api.offers(cloud, self.config.min_cuda)
                self.candidates.update(offers)
                self._catalog_at = time.monotonic()

    # Watching a pod

    async def boot(self, row: PodRow) -> None:
        """Wait until the agent of a new pod is healthy; raise `BootFailed` with the last log lines."""
        limit = time.monotonic() + self.times.boot - (time.time() - row.intent_at)
        while time.monotonic() < limit:
            health = await self._healthy(row, BootFailed)
            if health is not None:
                if self.config.require_gpu and not health.gpus:
                    raise BootFailed(f"{row.name}: the pod has no working GPU")
                self.records.move(row, "IDLE", time.time(), boot_id=health.boot_id)
                with contextlib.suppress(Unreachable):
                    await self.renew(row)
                return
            await asyncio.sleep(self.times.poll)
        lines = await self.api.logs(row.pod_id)
        tail = " | ".join(lines[-3:]) or "no log"
        raise BootFailed(f"{row.name}: not healthy within {self.times.boot:g} seconds: {tail}")

    async def resume(self, row: PodRow) -> Health:
        """Return the health of a pod that an earlier controller left; raise `PodLost`."""
        limit = time.monotonic() + self.times.lost
        while time.monotonic() < limit:
            health = await self._healthy(row, PodLost)
            if health is not None:
                with contextlib.suppress(Unreachable):
                    await self.renew(row)
                return health
            await asyncio.sleep(self.times.poll)
        raise PodLost(f"{row.name}: left by an earlier controller and not reached")

    async def renew(self, row: PodRow) -> None:
        """Extend the lease as far as the money goes; raise `PodLost`, or `Unreachable` when nothing is known."""
        seconds = self.purse(without=row).lease(self.config.money.max_usd_total, row.usd_per_hour, self.times.lease)
        if seconds < 2 * self.times.heartbeat:
            raise PodLost(f"{row.name}: the money cap leaves no room for another lease")
        self.records.update(row, lease_until=max(row.lease_until, time.time() + seconds))
        try:
            health = await self.agent(row).renew(seconds)
        except (Misbehaved, Refused) as error:
            raise PodLost(f"{row.name}: {error}") from None
        self.records.update(row, lease_until=time.time() + seconds)
        if health.boot_id != row.boot_id:
            raise PodLost(f"{row.name}: its container has restarted")

    async def exists(self, row: PodRow) -> bool:
        """Return whether the API shows the pod alive; raise `RunpodError` when the API can't say."""
        try:
            pod = await self.api.get(row.pod_id)
        except NotThere:
            return False
        return pod.status not in GONE

    async def restart(self, row: PodRow) -> None:
        """Restart the container, which wipes its disk, and wait for a new boot id; raise `PodLost`."""
        await self._reserve_restart(row)
        limit, old = time.monotonic() + self.times.restart, row.boot_id
        try:
            await self.api.restart(row.pod_id)
        except RunpodError as error:
            raise PodLost(f"{row.name}: no restart: {error}") from None
        while time.monotonic() < limit:
            health = await self._healthy(row, PodLost)
            if health is not None and health.boot_id != old and not health.jobs:
                self.records.move(row, "IDLE", time.time(), boot_id=health.boot_id, trust_group="")
                with contextlib.suppress(Unreachable):
                    await self.renew(row)
                return
            await asyncio.sleep(self.times.poll)
        raise PodLost(f"{row.name}: no new boot id within {self.times.restart:g} seconds of a restart")

    async def _reserve_restart(self, row: PodRow) -> None:
        """Book the restart's worst case: the new boot starts a lease of its own as late as the restart may take."""
        wanted = self.times.restart + self.times.lease
        granted = self.purse(without=row).lease(self.config.money.max_usd_total, row.usd_per_hour, wanted)
        if granted < wanted:
            raise PodLost(f"{row.name}: the money cap leaves no room for a restart")
        self.records.move(row, "RESTARTING", time.time(), lease_until=time.time() + wanted)

    async def _healthy(self, row: PodRow, failure: type[Exception]) -> Health | None:
        """Return the health, None while the pod can't be reached; raise `failure` when it never will be."""
        try:
            return await self.agent(row).health()
        except (Misbehaved, Refused) as error:
            raise failure(f"{row.name}: {error}") from None
        except Unreachable:
            pass
        asked = time.monotonic() - self.times.listing
        with contextlib.suppress(RunpodError):
            mine = [pod for pod in await self.listing.pods(asked) if pod.id == row.pod_id]
            settled = time.time() - row.intent_at > self.times.settle
            if (mine and mine[0].status in GONE) or (not mine and settled and not await self.exists(row)):
                lines = await self.api.logs(row.pod_id)
                status = mine[0].status if mine else "gone"
                raise failure(f"{row.name}: the pod is {status}: {' | '.join(lines[-3:]) or 'no log'}")
        return None

    # Deleting a pod

    async def terminate(self, row: PodRow, reason: str, *, kind: str = "") -> None:
        """Delete whatever a row may stand for, and close the row once that is confirmed. Repeats until it is."""
        number = 0
        while row.ended_at is None:
            try:
                until = await self._delete_all(row)
            except RunpodError as error:
                log.warning("%s: not deleted yet: %s", row.name, error)
                await asyncio.sleep(error.seconds if isinstance(error, Wait) else 0)
                await self._pause(number)
                number += 1
                continue
            self.records.end(row, until or time.time(), reason[:300], kind=kind, existed=until is not None)
            log.info("%s: ended: %s", row.name, reason)

    def reprice(self, pods: list[Pod]) -> None:
        """Take over the prices of a fresh list where they are higher than we believed."""
        prices = {pod.id: pod.usd_per_hour for pod in pods}
        for row in self.records.live():
            if prices.get(row.pod_id, 0.0) > row.usd_per_hour + 1e-6:
                log.warning("%s: costs $%.3f an hour, more than believed", row.name, prices[row.pod_id])
                self.records.update(row, usd_per_hour=prices[row.pod_id])

    async def _delete_all(self, row: PodRow) -> float | None:
        """Delete the row's pod; without an id, every pod of its name that shows up until none can any more.

        Returns the time until which it may have cost money, None when there never was one. A pod that is gone already
        has lived as long as its lease at most, however long ago that was.
        """
        if row.pod_id:
            return time.time() if await self.api.delete(row.pod_id) else min(time.time(), row.lease_until)
        existed, limit = False, time.monotonic() + self.times.settle - (time.time() - row.intent_at)
        while True:
            asked = time.monotonic()
            for pod in await self.listing.pods(asked):
                if pod.name == row.name and pod.status != "TERMINATED":
                    await self.api.delete(pod.id)
                    existed = True
            if existed or asked > limit:
                return time.time() if existed else None
            await asyncio.sleep(self.times.poll)

    async def _pause(self, number: int) -> None:
        wait = min(self.times.backoff * 2**number, 60 * self.times.backoff)
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))
