"""Task families: the protocol, the drawn task, and the registry through entry points.

A family is a kind of skill with a generator. It draws a `Task` from a seed; the task states everything the agent may
know (brief, visible examples, students and budgets). Hidden items come from `hidden_items` and stay in the controller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from trainwright.errors import ConfigError

if TYPE_CHECKING:
    from trainwright.job.job import Job

Parameter = int | str


@dataclass(frozen=True)
class Item:
    """One question of a benchmark: the prompt a student reads and the answer that is graded against."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Offer:
    """A student that a task offers, with the rollouts (sampled completions) a job may spend on training it."""

    student: str
    rollout_budget: int


@dataclass(frozen=True)
class Task:
    """One drawn instance of a family, without its hidden items.

    `parameters` fix the task: two tasks with equal family and parameters are the same task, share `key`, base score
    and reference score, whatever seed drew them. `max_completion_tokens` bounds both training and measuring.
    """

    suite: str
    family: str
    seed: int
    parameters: Mapping[str, Parameter]
    brief: str
    examples: tuple[Item, ...]
    offers: tuple[Offer, ...]
    max_completion_tokens: int

    @property
    def key(self) -> str:
        """Return `family-` and 12 hex digits of the parameters' hash: the name under which scores are cached."""
        text = json.dumps([self.suite, self.family, dict(sorted(self.parameters.items()))])
        return f"{self.family}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def offer(self, student: str) -> Offer:
        """Return the offer of one student; raise `KeyError` when the task does not offer it."""
        for offer in self.offers:
            if offer.student == student:
                return offer
        raise KeyError(student)


class Family(Protocol):
    """A kind of skill. Implementations are stateless; every random draw comes from the seed that is passed in."""

    name: str
    suite: str

    def draw(self, seed: int) -> Task:
        """Return the task of this seed."""
        ...

    def hidden_items(self, task: Task, seed: int, count: int) -> list[Item]:
        """Return `count` items of the hidden benchmark, the same ones for the same task and seed."""
        ...

    def score(self, item: Item, reply: str) -> float:
        """Return the score of one reply in [0, 1]; most families are 0 or 1."""
        ...

    def reference_job(self, task: Task, student: str) -> Job:
        """Return the checked-in competent job for the task on that student, within its budget."""
        ...


@cache
def families() -> Mapping[str, Family]:
    """Return every installed family by name, from the entry points of group `trainwright.families`.

    An entry point names an instance or a class without arguments. Raises `ConfigError` when two packages claim one
    name or when one fails to load.
    """
    found: dict[str, Family] = {}
    for point in sorted(entry_points(group="trainwright.families"), key=lambda point: point.name):
        if point.name in found:
            raise ConfigError(f"two installed packages provide the task family {point.name!r}; uninstall one of them")
        try:
            loaded = point.load()
        except Exception as error:
            raise ConfigError(f"task family {point.name!r} ({point.value}) does not load: {error}") from error
        found[point.name] = loaded() if isinstance(loaded, type) else loaded
    return found


def family_named(name: str) -> Family:
    """Return one family; raise `ConfigError` that lists the known ones.

    A name that no entry point has may belong to a factory: an entry point `rg` of group `trainwright.family_factories`
    names a function that takes the full name of any family `rg-...` and returns it or raises `ConfigError`.
    """
    known = families()
    if name in known:
        return known[name]
    for point in entry_points(group="trainwright.family_factories", name=name.partition("-")[0]):
        made: Family = point.load()(name)
        return made
    raise ConfigError(f"unknown task family {name!r}; known: {', '.join(known) or 'none (is the package installed?)'}")


def check_claims(family: Family) -> None:
    """Raise `ConfigError` when scores of a family must not support a claim, for example because its seeds overlap.

    A family that may have to refuse has a method `check_claims()` that raises; most have none.
    """
    refuse = getattr(family, "check_claims", None)
    if refuse is not None:
        refuse()


def suite_families(suite: str) -> list[Family]:
    """Return the families of one suite, by name; raise `ConfigError` that lists the known suites."""
    members = [family for family in families().values() if family.suite == suite]
    if not members:
        suites: Sequence[str] = sorted({family.suite for family in families().values()})
        raise ConfigError(f"unknown suite {suite!r}; known: {', '.join(suites)}")
    return members
