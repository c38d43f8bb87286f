"""Measurement: scores before and after on the same hidden items, and honest intervals.

Pre and post use the same items and the same random numbers, so their difference is paired: its standard error is that
of the per-item differences, several times smaller than that of two independent scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Protocol

from trainwright.suites.family import Family, Item, Task

TEMPERATURE = 1.0
"""The benchmark samples: greedy decoding would hide what a nano base does not know."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the number of values behind it."""

    mean: float
    standard_error: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.standard_error:.3f} (n={self.count})"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values and its standard error; the error is NaN below two values."""
    if not values:
        return Estimate(math.nan, math.nan, 0)
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(fmean(values), error, len(values))


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the mean of `after - before` over pairs; raise `ValueError` when the lengths differ."""
    return estimate([b - a for a, b in zip(before, after, strict=True)])


def interval95(value: Estimate) -> tuple[float, float]:
    """Return the two-sided 95 % interval of a mean, by Student's t distribution."""
    half = t_quantile(0.975, value.count - 1) * value.standard_error
    return value.mean - half, value.mean + half


def t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t: closed forms for 1 and 2 degrees of freedom, beyond them the Cornish-Fisher
    expansion (Abramowitz and Stegun 26.7.5), whose 97.5 % quantile is 0.13 % off at 3 and less beyond. NaN below 1.
    """
    if freedom < 1:
        return math.nan
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def episodes_needed(effect: float, deviation: float, power: float = 0.8) -> int:
    """Return the pairs needed to see a mean difference with a two-sided 5 % test at the given power.

    `deviation` is the standard deviation of the paired differences.
    """
    normal = NormalDist()
    return math.ceil(((normal.inv_cdf(0.975) + normal.inv_cdf(power)) * deviation / effect) ** 2)


class Generates(Protocol):
    """What replies come from: a pool, or a server (`endpoint.Endpoint`)."""

    async def generate(
        self,
        student: str,
        weights: bytes | None,
        prompts: Sequence[str],
        *,
        seed: int,
        max_tokens: int,
        temperature: float = 1.0,
    ) -> list[str]:
        """See `Pool.generate`."""
        ...


async def score_student(
    pool: Generates, family: Family, task: Task, student: str, weights: bytes | None, items: Sequence[Item], seed: int
) -> list[float]:
    """Return the score of each hidden item, for the base student (no weights) or a trained one.

    Prompts go to the pool's trusted side or to a server; answers and grading stay here. Raises `InfraFault`.
    """
    replies = await pool.generate(
        student,
        weights,
        [item.prompt for item in items],
        seed=seed,
        max_tokens=task.max_completion_tokens,
        temperature=TEMPERATURE,
    )
    return [family.score(item, reply) for item, reply in zip(items, replies, strict=True)]
