"""Reference scores: what the family's checked-in job reaches on a task and student, measured once and cached."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from statistics import fmean

from trainwright.cache import cache_folder, content_hash, write_atomically
from trainwright.config import MeasureConfig
from trainwright.errors import InfraFault
from trainwright.measure import score_student
from trainwright.pools.pool import OutcomeClass, Pool
from trainwright.seeds import derive_seed
from trainwright.students.registry import student_key
from trainwright.suites.family import Family, Task

SEED = 20_001
"""Reference jobs have seeds of their own, the same for every run, so that their scores can be shared between runs."""


@dataclass(frozen=True)
class Reference:
    """Scores on the reference items: the base student, and the reference job for each training seed."""

    pre: float
    posts: tuple[float, ...]

    @property
    def score(self) -> float:
        """Return the mean score of the reference job over its training seeds."""
        return fmean(self.posts)


class References:
    """Measures references through a pool and keeps them in the cache folder; each one is measured at most once."""

    def __init__(self, pool: Pool, config: MeasureConfig) -> None:
        self.pool = pool
        self.config = config
        self._known: dict[str, asyncio.Task[Reference]] = {}

    async def get(self, family: Family, task: Task, student: str) -> Reference:
        """Return the reference of a task on a student; raise `InfraFault` when it can't be measured."""
        key = self._key(family, task, student)
        if key not in self._known:
            self._known[key] = asyncio.create_task(self._load_or_measure(key, family, task, student))
        try:
            return await asyncio.shield(self._known[key])
        except InfraFault:
            self._known.pop(key, None)
            raise

    def _key(self, family: Family, task: Task, student: str) -> str:
        job = family.reference_job(task, student)
        sizes = (self.config.reference_items, self.config.reference_seeds, SEED)
        digest = content_hash(job.hash, student_key(student), sizes, task.max_completion_tokens, self.pool.fingerprint)
        return f"{task.key}-{student.replace('/', '_')}-{digest}"

    async def _load_or_measure(self, key: str, family: Family, task: Task, student: str) -> Reference:
        path = cache_folder() / "references" / f"{key}.json"
        try:
            stored = json.loads(path.read_text())
            return Reference(stored["pre"], tuple(stored["posts"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, or not whole: measure it
        reference = await self._measure(family, task, student)
        write_atomically(path, json.dumps({"pre": reference.pre, "posts": reference.posts}).encode())
        return reference

    async def _measure(self, family: Family, task: Task, student: str) -> Reference:
        job = family.reference_job(task, student)
        verdict = await self.pool.gate(job, task)
        if verdict.hyperparameters is None:
            raise InfraFault("reference_rejected", f"the reference job of {task.key} does not pass the gate: {verdict}")
        items = family.hidden_items(task, derive_seed(SEED, "items", task.key), self.config.reference_items)
        sampling = derive_seed(SEED, "sampling", task.key)
        posts = []
        for number in range(self.config.reference_seeds):
            name = f"reference-{task.key}-{student}-{number}"
            result = await self.pool.train(name, job, verdict.hyperparameters, derive_seed(SEED, name))
            if result.outcome.kind is not OutcomeClass.TRAINED:
                raise InfraFault("reference_failed", f"the reference job of {task.key} failed: {result.outcome.detail}")
            scores = await score_student(self.pool, family, task, student, result.weights, items, sampling)
            posts.append(fmean(scores))
        pre = fmean(await score_student(self.pool, family, task, student, None, items, sampling))
        return Reference(pre, tuple(posts))
