"""Measurement: pairs, standard errors, and intervals that cover what they say."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.measure import (
    TEMPERATURE,
    episodes_needed,
    estimate,
    interval95,
    paired_difference,
    score_student,
    t_quantile,
)
from trainwright.suites.family import family_named

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=50)


def test_an_estimate_is_mean_error_and_count() -> None:
    value = estimate([1.0, 2.0, 3.0, 4.0])
    assert value.mean == 2.5
    assert value.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert str(value) == "2.500 ± 0.645 (n=4)"


def test_too_few_values_have_no_error() -> None:
    assert math.isnan(estimate([1.0]).standard_error)
    assert math.isnan(estimate([]).mean)
    assert all(math.isnan(end) for end in interval95(estimate([1.0])))


@given(VALUES, st.floats(-10, 10))
def test_pairing_removes_what_both_sides_share(values: list[float], shift: float) -> None:
    difference = paired_difference(values, [value + shift for value in values])
    assert difference.mean == pytest.approx(shift, abs=1e-9)
    assert difference.standard_error == pytest.approx(0.0, abs=1e-9)


@given(VALUES)
def test_swapping_before_and_after_changes_the_sign_only(values: list[float]) -> None:
    forth, back = paired_difference(values, values[::-1]), paired_difference(values[::-1], values)
    assert forth.mean == pytest.approx(-back.mean)
    assert forth.standard_error == pytest.approx(back.standard_error)


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (5, 2.57058), (10, 2.22814), (30, 2.04227), (63, 1.99834)],
)
def test_t_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=0.0015)
    assert t_quantile(0.025, freedom) == pytest.approx(-quantile, rel=0.0015)


def test_t_tends_to_the_normal_distribution() -> None:
    assert t_quantile(0.975, 10**6) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-5)
    assert math.isnan(t_quantile(0.975, 0))


@pytest.mark.parametrize("count", [2, 3, 4, 8, 64])
def test_the_interval_covers_the_truth_as_often_as_it_says(count: int) -> None:
    rng, truth, rounds = random.Random(count), 0.3, 4000
    covered = 0
    for _ in range(rounds):
        low, high = interval95(estimate([rng.gauss(truth, 1.0) for _ in range(count)]))
        covered += low <= truth <= high
    assert abs(covered / rounds - 0.95) < 4 * math.sqrt(0.95 * 0.05 / rounds)


def test_the_episodes_needed_give_the_power_that_was_asked_for() -> None:
    assert episodes_needed(effect=0.5, deviation=1.0) == 32  # textbook: (1.96 + 0.8416)^2 / 0.25 = 31.4
    rng, rounds, count = random.Random(0), 2000, episodes_needed(effect=0.5, deviation=1.0, power=0.8)
    seen = sum(interval95(estimate([rng.gauss(0.5, 1.0) for _ in range(count)]))[0] > 0 for _ in range(rounds))
    assert 0.75 < seen / rounds < 0.85


class PoolThatAnswersEveryOther:
    """A fake pool: knows the right answer of every second prompt, and what it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[dict[str, object]] = []

    async def generate(
        self, student: str, weights: bytes | None, prompts: Sequence[str], **options: object
    ) -> list[str]:
        self.asked.append({"student": student, "weights": weights, "prompts": list(prompts), **options})
        return [self.answers[prompt] if index % 2 == 0 else "" for index, prompt in enumerate(prompts)]


def test_a_student_is_scored_on_every_item_and_answers_never_leave() -> None:
    family = family_named("reverse")
    task = family.draw(0)
    items = family.hidden_items(task, 1, 10)
    pool = PoolThatAnswersEveryOther({item.prompt: item.answer for item in items})
    scores = asyncio.run(score_student(pool, family, task, "nano-64", b"weights", items, 5))  # type: ignore[arg-type]
    assert scores == [1.0, 0.0] * 5
    assert pool.asked == [
        {
            "student": "nano-64",
            "weights": b"weights",
            "prompts": [item.prompt for item in items],
            "seed": 5,
            "max_tokens": task.max_completion_tokens,
            "temperature": TEMPERATURE,
        }
    ]
