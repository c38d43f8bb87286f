"""The synthetic jobs: every quality occurs, and nothing says which jobs are good."""

from __future__ import annotations

import random
import tomllib
from collections import Counter

import pytest

from trainwright.agent import corpus
from trainwright.agent.corpus import LEARNING_RATES, REWARDS, WRONG_IMPORTS, synthetic_job, synthetic_task
from trainwright.errors import JobRejected
from trainwright.job.gate import check_static
from trainwright.job.job import ENVIRONMENT, TRAIN, Job
from trainwright.suites.family import Task
from trainwright.suites.nano.warm_up import FAMILIES

RIGHT = "return float(trace.last_reply == self.data.answer)"


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Task, str]]:
    rng = random.Random(1)
    tasks = [synthetic_task(rng) for _ in range(800)]
    return [(task, synthetic_job(task, rng)) for task in tasks]


@pytest.fixture(scope="module")
def verdicts(drawn: list[tuple[Task, str]]) -> Counter[str]:
    codes: Counter[str] = Counter()
    for task, text in drawn:
        try:
            check_static(Job.parse(text), task)
            codes["accepted"] += 1
        except JobRejected as error:
            codes[error.code] += 1
    return codes


def test_the_same_random_numbers_give_the_same_texts() -> None:
    one, other = random.Random(3), random.Random(3)
    assert [synthetic_job(synthetic_task(one), one) for _ in range(5)] == [
        synthetic_job(synthetic_task(other), other) for _ in range(5)
    ]


def test_briefs_of_every_family_occur(drawn: list[tuple[Task, str]]) -> None:
    assert {task.family for task, _ in drawn} == {family.name for family in FAMILIES}


def test_learning_rates_span_five_decades(drawn: list[tuple[Task, str]]) -> None:
    texts = "\n".join(text for _, text in drawn)
    found = {rate for rate in LEARNING_RATES if f"= {rate}\n" in texts}
    assert found == set(LEARNING_RATES)
    rates = [float(rate) for rate in found]
    assert max(rates) / min(rates) >= 1e4  # from 1e-5 to 1e-1, both ends included: five decades are touched


def test_rewards_are_right_and_wrong(drawn: list[tuple[Task, str]]) -> None:
    texts = [text for _, text in drawn]
    for reward in {*REWARDS, *corpus.BROKEN_REWARDS}:
        assert any(f"return {reward}\n" in text for text in texts)
    right = sum(RIGHT in text for text in texts) / len(texts)
    assert 0.1 < right < 0.6


def test_data_fit_the_brief_or_not(drawn: list[tuple[Task, str]]) -> None:
    fitting = 0
    for task, text in drawn:
        family = next(family for family in FAMILIES if family.name == task.family)
        fitting += all(f"            {line}\n" in text for line in family.generator(task.parameters).splitlines())
    assert 0.3 < fitting / len(drawn) < 0.8


def test_most_texts_pass_the_static_checks_and_each_way_to_fail_occurs(verdicts: Counter[str]) -> None:
    assert 0.3 < verdicts["accepted"] / verdicts.total() < 0.9
    for code in ("syntax", "import", "no_all", "toml_key", "toml_divide", "budget"):
        assert verdicts[code] > 0, code


def test_wrong_imports_occur(drawn: list[tuple[Task, str]]) -> None:
    for line in WRONG_IMPORTS:
        assert any(f"{line}\n" in text for _, text in drawn)


def test_both_students_and_broken_budgets_occur(drawn: list[tuple[Task, str]]) -> None:
    students, over = Counter[str](), 0
    for task, text in drawn:
        table = tomllib.loads(Job.parse(text).files[TRAIN])
        students[table["student"]] += 1
        over += table["max_steps"] * table["batch_size"] > task.offer(table["student"]).rollout_budget
    assert min(students.values()) > len(drawn) / 4
    assert 0 < over < len(drawn) / 2


def test_quality_is_not_labelled(drawn: list[tuple[Task, str]]) -> None:
    """The words around the choices are the same in every text: only the drawn parts differ."""
    for _, text in drawn:
        for word in ("good", "bad", "score", "gain", "quality", "valid"):
            assert word not in text.lower()


def test_texts_read_back_as_jobs(drawn: list[tuple[Task, str]]) -> None:
    for _, text in drawn:
        job = Job.parse(text)
        assert set(job.files) == {ENVIRONMENT, TRAIN}
        assert job.render() == text
