"""Groups under way: first answers sampled in one batch, jobs run as the pool has room, each complete by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trainwright.episode import Group, Services, run_episode
from trainwright.ledger import Attempt, Episode
from trainwright.report.view import View


@dataclass(frozen=True)
class Complete:
    """A group whose episodes are done. `version` is that of the policy that wrote its oldest answer."""

    id: str
    episodes: list[Episode]
    version: int


class Flight:
    """The groups that were launched and not taken yet, in the order of their launch. Made by `flight`."""

    def __init__(self, services: Services, view: View, running: asyncio.TaskGroup) -> None:
        self._services = services
        self._view = view
        self._running = running
        self._groups: dict[str, asyncio.Task[Complete]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def launch(self, groups: Sequence[Group], size: int, validity: float, sampling: int) -> None:
        """Start groups of `size` episodes, unless the ledger has them; their answers are one batch of seed `sampling`.

        `validity` is the validity weight of their rewards; a group that was launched before a kill keeps its own.
        """
        add = self._services.ledger.add_group
        weights = [
            add(group.id, group.arm, group.step, group.number, group.task.family, group.record(), validity)
            for group in groups
        ]
        answered = self._running.create_task(self._first_answers(groups, size, sampling))
        for group, weight in zip(groups, weights, strict=True):
            self._groups[group.id] = self._running.create_task(self._run(group, size, weight, answered))

    async def _first_answers(self, groups: Sequence[Group], size: int, seed: int) -> None:
        """Sample the first answer of each episode and put it into the ledger, unless the ledger has all of them."""
        ledger = self._services.ledger
        ids = [id for group in groups for id in _members(group, size)]
        if all(ledger.attempts(id) for id in ids):
            return
        conversations = [group.brief for group in groups for _ in range(size)]
        version, answers = await self._services.sample(conversations, seed)
        rows = zip(ids, conversations, answers, strict=True)
        ledger.add_attempts([(id, Attempt(0, brief, answer, version=version)) for id, brief, answer in rows])

    async def _run(self, group: Group, size: int, validity: float, answered: asyncio.Task[None]) -> Complete:
        await answered

        async def one(member: int, id: str) -> Episode:
            episode = await run_episode(self._services, group, id, member, validity)
            self._view.episode(episode)
            return episode

        ids = _members(group, size)
        episodes = await asyncio.gather(*(one(member, id) for member, id in enumerate(ids)))
        return Complete(group.id, episodes, self._services.ledger.oldest_version(ids))

    async def change(self) -> None:
        """Wait until one more group is complete."""
        waiting = [task for task in self._groups.values() if not task.done()]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def complete(self) -> list[Complete]:
        """Return the complete groups."""
        return [task.result() for task in self._groups.values() if task.done()]

    def take(self, groups: Collection[Complete]) -> None:
        """Leave groups out from here on."""
        for group in groups:
            del self._groups[group.id]

    def abandon(self) -> None:
        """Stop what is still under way; the ledger keeps what is done."""
        for task in self._groups.values():
            task.cancel()


def _members(group: Group, size: int) -> list[str]:
    return [f"{group.id}-{member}" for member in range(size)]


@asynccontextmanager
async def flight(services: Services, view: View) -> AsyncIterator[Flight]:
    """Launch groups inside the context; it ends when all of them have. The first error stops everything and comes out
    alone, not in a group of exceptions."""
    try:
        async with asyncio.TaskGroup() as running:
            yield Flight(services, view, running)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first one speaks for all
