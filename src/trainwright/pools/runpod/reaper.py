"""The reaper: deletes the pods that nobody owns. It runs at the controller's start, every minute, and from cron.

It only ever touches pods whose name says that they are trainwright's (`names.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainwright.pools.runpod.api import Pod, RunpodApi, RunpodError
from trainwright.pools.runpod.fleet import Fleet
from trainwright.pools.runpod.names import PodName
from trainwright.pools.runpod.records import Records

log = logging.getLogger(__name__)
GRACE_SECONDS = 60.0


@dataclass(frozen=True)
class Reaped:
    """A pod that was deleted, and why."""

    pod: Pod
    reason: str


def overdue(pod: Pod, now: float) -> str:
    """Return why a pod must go whoever owns it: its own deadline has passed. Empty when it may stay."""
    name = PodName.parse(pod.name)
    return "past its deadline" if name and now > name.deadline + GRACE_SECONDS else ""


def unowned(pod: Pod, records: Records) -> str:
    """Return why a pod of this run folder must go: no row stands for it. Empty when it may stay."""
    name = PodName.parse(pod.name)
    if name is None or name.owner != records.owner:
        return ""
    row = next((row for row in records.live() if row.name == pod.name), None)
    if row is None:
        return "no row stands for it"
    return "the twin of another pod" if row.pod_id and row.pod_id != pod.id else ""


async def sweep(api: RunpodApi, pods: Sequence[Pod], reason_of: Callable[[Pod], str]) -> AsyncIterator[Reaped]:
    """Delete every pod that has a reason to go and yield those that were still there.

    Raises `RunpodError` at the first that can't be deleted.
    """
    for pod in pods:
        ours = pod.status != "TERMINATED" and PodName.parse(pod.name) is not None
        if ours and (reason := reason_of(pod)) and await api.delete(pod.id):
            yield Reaped(pod, reason)


def age(pod: Pod, now: float) -> float:
    """Return the seconds since a pod was created; 0 when the API doesn't say."""
    try:
        created = datetime.fromisoformat(pod.created_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
    return max(0.0, now - created)


async def reap(fleet: Fleet) -> None:
    """Delete the pods that nobody owns and take over higher prices: at once, then every minute, for ever."""
    while True:
        try:
            await sweep_account(fleet)
        except RunpodError as error:
            log.warning("the reaper could not finish: %s", error)
        except Exception:  # a bug of ours must not be the end of the reaper
            log.exception("the reaper failed")
        await asyncio.sleep(fleet.times.reaper)


async def reap_last(fleet: Fleet) -> None:
    """Sweep once more when the pods of this controller are gone, and until no twin of a lost create can show up.

    Gives up after `times.close`: then the next controller, cron and the pods' own leases are left.
    """
    try:
        async with asyncio.timeout(fleet.times.close):
            while fleet.asked:
                began = time.monotonic()
                try:
                    await sweep_account(fleet)
                    if began > fleet.twins_until and not _strays(fleet):
                        return
                except RunpodError as error:
                    log.warning("the reaper could not finish: %s", error)
                await asyncio.sleep(fleet.times.poll)
    except TimeoutError:
        for pod in _strays(fleet):
            _book(fleet, pod, age(pod, time.time()))


async def sweep_account(fleet: Fleet) -> None:
    """Sweep the account's pods once; raise `RunpodError`.

    A pod that no row stands for is booked when it's gone: deleted here, or by itself while the API was down.
    """
    records = fleet.records

    def reason_of(pod: Pod) -> str:
        return unowned(pod, records) or overdue(pod, time.time())

    pods = await fleet.listing.pods(time.monotonic())
    fleet.reprice(pods)
    there = {pod.id for pod in pods if pod.status != "TERMINATED"}
    longest = fleet.times.boot + fleet.times.lease  # nobody has renewed its lease
    for pod in [pod for pod in _strays(fleet) if pod.id not in there]:
        _book(fleet, pod, min(age(pod, time.time()), longest))
    for id in fleet.listing.seen.keys() - there:
        del fleet.listing.seen[id]
    async for one in sweep(fleet.api, pods, reason_of):
        log.warning("reaped %s (%s): %s", one.pod.name, one.pod.id, one.reason)
        _book(fleet, one.pod, age(one.pod, time.time()))


def _strays(fleet: Fleet) -> list[Pod]:
    """Return the pods of this run folder that were listed, that no row's books are for, and that are not booked."""
    named = [(PodName.parse(pod.name), pod) for pod in fleet.listing.seen.values()]
    ours = [pod for name, pod in named if name is not None and name.owner == fleet.records.owner]
    return [pod for pod in ours if pod.id not in fleet.booked and not fleet.records.stands_for(pod.id, pod.name)]


def _book(fleet: Fleet, pod: Pod, seconds: float) -> None:
    if pod.id in fleet.booked:
        return
    fleet.booked.add(pod.id)
    fleet.records.book_stray(pod.name, seconds, pod.usd_per_hour, time.time())
