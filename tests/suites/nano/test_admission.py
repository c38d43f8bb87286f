"""Admission of the nano families, on the real base students: headroom, a reference job that learns, and steadiness.

The default test takes one task a family on the larger student; the slow one every task on both students.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import pytest

from trainwright.measure import score_student
from trainwright.pools.local import LocalPool
from trainwright.pools.pool import OutcomeClass
from trainwright.suites.family import Task
from trainwright.suites.nano.base import OFFERS, NanoFamily
from trainwright.suites.nano.warm_up import FAMILIES

ITEMS = 800
SEEDS = (1, 2)


@dataclass(frozen=True)
class Admission:
    """What a family's admission rests on: the base's accuracy and the reference job's, a training seed each."""

    base: float
    trained: tuple[float, ...]

    def check(self) -> None:
        assert 0.05 <= self.base <= 0.60, self
        assert fmean(self.trained) - self.base >= 0.25, self
        assert max(self.trained) - min(self.trained) < 0.1, self


async def admission(pool: LocalPool, family: NanoFamily, task: Task, student: str) -> Admission:
    """Measure a task on a student: the base once, the reference job for each seed, on the same items."""
    job = family.reference_job(task, student)
    verdict = await pool.gate(job, task)
    assert verdict.hyperparameters is not None, verdict
    assert verdict.hyperparameters.rollouts <= task.offer(student).rollout_budget
    items = family.hidden_items(task, 17, ITEMS)
    trained = []
    for seed in SEEDS:
        result = await pool.train(f"{task.key}-{seed}", job, verdict.hyperparameters, seed)
        assert result.outcome.kind is OutcomeClass.TRAINED, result.outcome
        trained.append(fmean(await score_student(pool, family, task, student, result.weights, items, 23)))
    base = fmean(await score_student(pool, family, task, student, None, items, 23))
    return Admission(base, tuple(trained))


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    pool = LocalPool()
    asyncio.run(pool.start())
    yield pool
    asyncio.run(pool.close())


def test_a_task_of_every_family_is_admitted(pool: LocalPool) -> None:
    async def measured() -> dict[str, Admission]:
        tasks = [(family, family.task(family.variants()[0], 0)) for family in FAMILIES]
        work = [admission(pool, family, task, task.offers[0].student) for family, task in tasks]
        return dict(zip([task.key for _, task in tasks], await asyncio.gather(*work), strict=True))

    for key, found in asyncio.run(measured()).items():
        print(key, found)
        found.check()


@pytest.mark.slow
@pytest.mark.parametrize("student", [offer.student for offer in OFFERS])
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_every_task_is_admitted(pool: LocalPool, family: NanoFamily, student: str) -> None:
    """On the larger student each task by itself; on the smaller one, whose trainings vary more, the family's mean."""

    async def measured() -> list[Admission]:
        tasks = [family.task(parameters, 0) for parameters in family.variants()]
        return await asyncio.gather(*(admission(pool, family, task, student) for task in tasks))

    found = asyncio.run(measured())
    for parameters, one in zip(family.variants(), found, strict=True):
        print(f"{family.name} {parameters} on {student}: {one}")
    seeds = zip(*(one.trained for one in found), strict=True)
    Admission(fmean(one.base for one in found), tuple(map(fmean, seeds))).check()
    if student == OFFERS[0].student:
        for one in found:
            one.check()
