"""Gain and reward: the formula of the design, at its corners and by its properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.pools.pool import OutcomeClass
from trainwright.reward import (
    HIGHEST_GAIN,
    LOWEST_GAIN,
    VALIDITY_END,
    VALIDITY_START,
    VALIDITY_WINDOW,
    advantages,
    gain,
    next_validity_weight,
    reward,
)

SCORES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("pre", "post", "reference", "expected"),
    [
        (0.2, 0.2, 0.8, 0.0),
        (0.2, 0.8, 0.8, 1.0),
        (0.2, 0.5, 0.8, 0.5),
        (0.2, 1.0, 0.8, HIGHEST_GAIN),  # 4/3, clipped
        (0.8, 0.0, 0.9, LOWEST_GAIN),
        (0.5, 0.53, 0.5, 0.2),  # no headroom: the floor of 0.15 divides
        (0.5, 0.53, 0.1, 0.2),  # a reference that got worse is no divisor either
    ],
)
def test_gain_is_uplift_against_the_reference_jobs_uplift(
    pre: float, post: float, reference: float, expected: float
) -> None:
    assert gain(pre, post, reference) == pytest.approx(expected)


@given(SCORES, SCORES, SCORES, SCORES)
def test_gain_is_bounded_and_grows_with_the_score(pre: float, low: float, high: float, reference: float) -> None:
    low, high = min(low, high), max(low, high)
    assert LOWEST_GAIN <= gain(pre, low, reference) <= gain(pre, high, reference) <= HIGHEST_GAIN


def test_each_outcome_has_its_reward() -> None:
    assert reward(OutcomeClass.REJECTED) == 0.0
    assert reward(OutcomeClass.JOB_FAULT) == 0.05
    assert reward(OutcomeClass.FLAGGED) == -0.25
    assert reward(OutcomeClass.TRAINED, gain=0.5, first_try=True, validity=0.3) == pytest.approx(0.3 + 0.7 * 0.5)


def test_an_infrastructure_fault_is_never_scored() -> None:
    assert reward(OutcomeClass.INFRA, gain=1.0, first_try=True, validity=0.3) is None


def test_what_failed_is_paid_alike_whatever_else_is_known() -> None:
    for outcome in (OutcomeClass.REJECTED, OutcomeClass.JOB_FAULT, OutcomeClass.FLAGGED):
        assert reward(outcome, gain=1.0, first_try=True, validity=0.3, cost_share=1.0) == reward(outcome)


@given(st.floats(LOWEST_GAIN, HIGHEST_GAIN), st.floats(0, 10), st.booleans(), st.floats(VALIDITY_END, VALIDITY_START))
def test_cost_is_charged_once_and_only_on_a_gain(
    gained: float, cost_share: float, first_try: bool, validity: float
) -> None:
    def paid(cost: float) -> float:
        value = reward(OutcomeClass.TRAINED, gain=gained, first_try=first_try, validity=validity, cost_share=cost)
        assert value is not None
        return value

    charged = paid(0.0) - paid(cost_share)
    assert charged == pytest.approx(0.05 * min(1.0, cost_share) if gained > 0 else 0.0, abs=1e-12)


def test_a_trained_job_that_gains_is_worth_more_than_any_failure() -> None:
    for validity in (VALIDITY_START, VALIDITY_END):
        value = reward(OutcomeClass.TRAINED, gain=0.2, first_try=True, validity=validity, cost_share=1.0)
        assert value is not None
        assert value > 0.05


def test_the_validity_weight_shrinks_on_a_full_and_valid_window_only() -> None:
    full = [True] * VALIDITY_WINDOW
    assert next_validity_weight(VALIDITY_START, full[1:]) == VALIDITY_START
    assert next_validity_weight(VALIDITY_START, full) < VALIDITY_START
    mixed = [False] * 7 + full[7:]  # 57 of 64 are under 90 %
    assert next_validity_weight(VALIDITY_START, mixed) == VALIDITY_START
    assert next_validity_weight(VALIDITY_START, [False] * 500 + full) < VALIDITY_START  # the latest ones count


def test_the_validity_weight_reaches_its_floor_and_stays() -> None:
    weight, full = VALIDITY_START, [True] * VALIDITY_WINDOW
    for _ in range(50):
        weight = next_validity_weight(weight, full)
    assert weight == VALIDITY_END
    assert next_validity_weight(weight, [False] * VALIDITY_WINDOW) == VALIDITY_END


@given(st.lists(st.floats(-1, 2), max_size=32))
def test_advantages_sum_to_zero_and_keep_differences(rewards: list[float]) -> None:
    found = advantages(rewards)
    assert math.isclose(sum(found), 0.0, abs_tol=1e-9)
    for value, advantage in zip(rewards, found, strict=True):
        assert math.isclose(value - rewards[0], advantage - found[0], abs_tol=1e-9)
