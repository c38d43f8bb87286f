"""The gate on real jobs in the real environment server: each job here runs in a sandboxed process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from trainwright.environment.client import EnvironmentServer, Limits
from trainwright.environment.sandbox import detect
from trainwright.errors import JobFault, JobRejected
from trainwright.job.gate import check_dynamic, check_static
from trainwright.job.job import DATASET, ENVIRONMENT, Job
from trainwright.messages import Message
from trainwright.suites.family import Task

LIMITS = Limits(rows_seconds=5.0, score_seconds=5.0)


@pytest.fixture(scope="module")
def server() -> Iterator[EnvironmentServer]:
    with EnvironmentServer(detect()) as server:
        yield server


def read(messages: Sequence[Message]) -> list[int]:
    return [ord(character) for message in messages for character in message["content"]]


def gate(server: EnvironmentServer, job: Job, task: Task) -> None:
    hyperparameters = check_static(job, task)
    with server.open(job.files, seed=1, limits=LIMITS) as environment:
        check_dynamic(job, hyperparameters, environment, read)


def changed(job: Job, *changes: tuple[str, str]) -> Job:
    source = job.files[ENVIRONMENT]
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return Job({**job.files, ENVIRONMENT: source})


EXACT = "float(trace.last_reply == self.data.answer)"
LENGTH = "float(len(trace.last_reply) == len(self.data.answer))"


def test_the_documented_job_passes(server: EnvironmentServer, job: Job, task: Task) -> None:
    gate(server, job, task)


@pytest.mark.parametrize(
    "reward",
    [
        EXACT,
        'float(trace.last_reply == f"<answer>{self.data.answer}</answer>")',
        '{"first": float(trace.last_reply[:1] == self.data.answer[:1]), "size": 0.0}',
        "sum(a == b for a, b in zip(trace.last_reply, self.data.answer)) / 6",
    ],
)
def test_a_single_reward_of_any_kind_passes(server: EnvironmentServer, job: Job, task: Task, reward: str) -> None:
    gate(server, changed(job, (EXACT, reward), (LENGTH, "0.0")), task)


def test_an_infinite_taskset_passes(server: EnvironmentServer, job: Job, task: Task) -> None:
    endless = changed(
        job, ("import random\n", "import itertools\nimport random\n"), ("range(1000)", "itertools.count()")
    )
    gate(server, endless, task)


def test_a_number_is_a_field_too(server: EnvironmentServer, job: Job, task: Task) -> None:
    gate(
        server,
        changed(
            job,
            ("answer: str", "answer: int"),
            ("answer=word[::-1]", "answer=len(word)"),
            (EXACT, "float(trace.last_reply == str(self.data.answer))"),
            (LENGTH, "0.0"),
        ),
        task,
    )


def test_a_dataset_passes(server: EnvironmentServer, task: Task) -> None:
    source = """\
import json
import pathlib
import verifiers.v1 as vf
class Data(vf.TaskData):
    answer: str
class Problem(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace):
        return float(trace.last_reply == self.data.answer)
class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self):
        path = pathlib.Path(__file__).with_name("dataset.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [Problem(Data(idx=idx, **row), self.config.task) for idx, row in enumerate(rows)]
__all__ = ["Problems"]
"""
    rows = "".join(f'{{"prompt": "{n} + {n}", "answer": "{2 * n}"}}\n' for n in range(20))
    gate(server, Job({ENVIRONMENT: source, "train.toml": "", DATASET: rows}), task)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (EXACT, "1.0", "reward_constant"),
        (EXACT, 'float("nan")', "reward_not_finite"),
        (EXACT, "1e308", "reward_out_of_range"),
        (EXACT, "100.0", "reward_out_of_range"),
        (EXACT, "None", "reward_not_number"),
        (EXACT, '"1.0"', "reward_not_number"),
        (EXACT, "float(trace.reply == self.data.answer)", "reward_raised"),
        (EXACT, "float(int(trace.last_reply) == 1)", "reward_raised"),
        (EXACT, "sum(1 for _ in iter(int, 1))", "timeout"),
        ("range(1000)", "range(0)", "no_rows"),
        ("range(1000)", "range(1)", "rows_few"),
        ("reverse this word: {word}", "reverse", "rows_equal"),
        ("reverse this word: {word}", "{word * 1_000_000}", "row_too_large"),
        ("range(1000)", "missing", "load_raised"),
        ("import random\n", "import random\nx = missing\n", "import_error"),
    ],
)
def test_bad_jobs_are_refused_and_the_next_one_still_runs(
    server: EnvironmentServer, job: Job, task: Task, old: str, new: str, code: str
) -> None:
    bad = changed(job, (old, new), *([(LENGTH, "0.0")] if old == EXACT else []))
    with pytest.raises((JobRejected, JobFault)) as caught:
        gate(server, bad, task)
    assert caught.value.code == code
    assert caught.value.file == ENVIRONMENT
    gate(server, job, task)
