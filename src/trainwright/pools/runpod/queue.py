"""The queue of work for pods, and which pod takes what."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.pools.runpod.records import JobRow

TRAINING = "training"
JOBS_PER_POD = 2


def pods_wanted(waiting: int, busy: int, limit: int) -> int:
    """Return how many pods of a role should exist: one for each piece of work, up to a limit."""
    return min(waiting + busy, limit)


def choose(waiting: Sequence[str], own: str, serving: Iterable[str]) -> int:
    """Return the index of the work a free pod takes next; `waiting` holds trust groups, oldest first, not empty.

    Its own group first, which needs no restart. Else the oldest group with more than two waiting jobs for each pod that
    serves it: old groups hold up the policy update, but joining one whose pods are nearly done costs a restart for
    little. Else the group with the most work for each pod. `benchmarks/pods.py` compares this with oldest first.
    """
    if own and own in waiting:
        return waiting.index(own)
    pods, work = Counter(serving), Counter(waiting)
    for group in dict.fromkeys(waiting):
        if work[group] > JOBS_PER_POD * pods[group]:
            return waiting.index(group)
    return waiting.index(max(work, key=lambda group: (work[group] / (pods[group] + 1), -waiting.index(group))))


@dataclass(eq=False)
class Work:
    """One job for a pod: training (`job` set), or a trusted evaluation of `count` prompts.

    `files` is None for a job that an earlier controller started and nobody has asked for since.
    """

    key: str
    role: str
    group: str
    command: list[str]
    env: Mapping[str, str]
    wall_seconds: float
    files: Mapping[str, bytes] | None
    done: asyncio.Future[Any]
    job: JobRow | None = None
    count: int = 0
    losses: int = 0
    queued_at: float = field(default_factory=time.monotonic)


class WorkQueue:
    """Work that waits for a pod, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Work] = []
        self._changed = asyncio.Condition()

    def waiting(self, role: str) -> list[Work]:
        """Return what waits for pods of a role, oldest first."""
        return [work for work in self._waiting if work.role == role]

    def roles(self) -> list[str]:
        """Return the roles for which something waits."""
        return sorted({work.role for work in self._waiting})

    async def put(self, work: Work) -> None:
        """Add work, at its old place when it comes back."""
        async with self._changed:
            self._waiting.append(work)
            self._waiting.sort(key=lambda one: one.queued_at)
            self._changed.notify_all()

    async def take(self, role: str, own: str, serving: Iterable[str], seconds: float) -> Work | None:
        """Return the next work for a pod, None when none came within so many seconds."""
        limit = time.monotonic() + seconds
        async with self._changed:
            while not (mine := self.waiting(role)):
                try:
                    async with asyncio.timeout(max(0.0, limit - time.monotonic())):
                        await self._changed.wait()
                except TimeoutError:
                    return None
            work = mine[choose([one.group for one in mine], own, serving)]
            self._waiting.remove(work)
            return work

    def remove(self, work: Work) -> None:
        """Take work out, wherever it is."""
        if work in self._waiting:
            self._waiting.remove(work)

    def fail(self, error: Exception) -> None:
        """Give everyone who waits an error, such as a cap that was reached."""
        for work in self.drain():
            if not work.done.done():
                work.done.set_exception(error)

    def drain(self) -> list[Work]:
        """Take out everything."""
        drained, self._waiting = self._waiting, []
        return drained
