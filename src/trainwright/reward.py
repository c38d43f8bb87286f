"""Gain and reward: pure functions, the formula in one place.

gain   = clip((post - pre) / max(reference - pre, 0.15), -0.5, 1.25)
reward = v * first_try + (1 - v) * gain - 0.05 * min(1, cost / budget) * [gain > 0]      (v: validity weight)
"""

from __future__ import annotations

from collections.abc import Sequence

from trainwright.pools.pool import OutcomeClass

SMALLEST_HEADROOM = 0.15
"""Floor of `reference - pre`, so that a task without headroom does not blow up noise."""
LOWEST_GAIN, HIGHEST_GAIN = -0.5, 1.25
COST_WEIGHT = 0.05
REJECTED_REWARD, JOB_FAULT_REWARD, FLAGGED_REWARD = 0.0, 0.05, -0.25
VALIDITY_START, VALIDITY_END, VALIDITY_DECAY = 0.30, 0.05, 0.7
VALIDITY_WINDOW, VALIDITY_SHARE = 64, 0.9


def gain(pre: float, post: float, reference: float) -> float:
    """Return the uplift against the reference job's uplift: 1.0 is as good as a competent human's job."""
    raw = (post - pre) / max(reference - pre, SMALLEST_HEADROOM)
    return min(max(raw, LOWEST_GAIN), HIGHEST_GAIN)


def reward(
    outcome: OutcomeClass, *, gain: float = 0.0, first_try: bool = False, validity: float = 0.0, cost_share: float = 0.0
) -> float | None:
    """Return the reward of an episode, or None for an infrastructure fault, which is dropped and never scored.

    `validity` is the current validity weight, `cost_share` the part of the rollout budget that was spent.
    """
    match outcome:
        case OutcomeClass.INFRA:
            return None
        case OutcomeClass.REJECTED:
            return REJECTED_REWARD
        case OutcomeClass.JOB_FAULT:
            return JOB_FAULT_REWARD
        case OutcomeClass.FLAGGED:
            return FLAGGED_REWARD
        case OutcomeClass.TRAINED:
            cost = COST_WEIGHT * min(1.0, cost_share) if gain > 0 else 0.0
            return validity * first_try + (1 - validity) * gain - cost


def next_validity_weight(weight: float, recent_valid: Sequence[bool]) -> float:
    """Return the validity weight of the next step.

    It shrinks by a constant factor after each step at which at least 90 % of a full window of the latest episodes
    passed the gate, down to its floor, and never rises again: a weight that came back would pay for getting worse.
    """
    window = recent_valid[-VALIDITY_WINDOW:]
    if len(window) < VALIDITY_WINDOW or sum(window) < VALIDITY_SHARE * len(window):
        return weight
    return max(VALIDITY_END, weight * VALIDITY_DECAY)


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return reward minus the group's mean, without division by the spread (Dr. GRPO, arXiv:2503.20783)."""
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return [value - mean for value in rewards]
