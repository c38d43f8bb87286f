"""The families of a run, with the students that its configuration offers in place of the suite's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.suites.family import Family, Item, Offer, Task, check_claims, family_named, suite_families

if TYPE_CHECKING:
    from trainwright.config import TasksConfig
    from trainwright.job.job import Job


def run_families(tasks: TasksConfig) -> list[Family]:
    """Return the families of the suite that a run names; raise `ConfigError`."""
    return [offering(family, tasks.students) for family in suite_families(tasks.suite)]


def run_family(tasks: TasksConfig, name: str) -> Family:
    """Return any family by name, as a run sees it; raise `ConfigError`."""
    return offering(family_named(name), tasks.students)


def offering(family: Family, students: Mapping[str, int]) -> Family:
    """Return a family whose tasks offer other students, with their rollout budgets; the same one for an empty table."""
    return _Offering(family, tuple(Offer(name, budget) for name, budget in students.items())) if students else family


class _Offering:
    """A family in all but its offers."""

    def __init__(self, family: Family, offers: tuple[Offer, ...]) -> None:
        self._family, self._offers = family, offers
        self.name, self.suite = family.name, family.suite

    def draw(self, seed: int) -> Task:
        return replace(self._family.draw(seed), offers=self._offers)

    def hidden_items(self, task: Task, seed: int, count: int) -> list[Item]:
        return self._family.hidden_items(task, seed, count)

    def score(self, item: Item, reply: str) -> float:
        return self._family.score(item, reply)

    def reference_job(self, task: Task, student: str) -> Job:
        return self._family.reference_job(task, student)

    def check_claims(self) -> None:
        check_claims(self._family)
