"""A task and a job that the gate accepts: the one that docs/job-format.md shows."""

from __future__ import annotations

import pytest

from trainwright.job.job import Job
from trainwright.job.specification import job_format
from trainwright.suites.family import Item, Offer, Task


@pytest.fixture
def task() -> Task:
    return Task(
        suite="test",
        family="test",
        seed=0,
        parameters={},
        brief="reverse the word.",
        examples=(Item("reverse this word: abc", "cba"),),
        offers=(Offer("small", 960), Offer("large", 480)),
        max_completion_tokens=12,
    )


@pytest.fixture
def job() -> Job:
    return Job.parse(job_format())
