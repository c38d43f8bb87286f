"""The six families, and every type of hidden item that they can ask."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest

from trainwright.suites.family import Item
from trainwright.suites.qwen.base import QwenFamily
from trainwright.suites.qwen.countdown import Countdown
from trainwright.suites.qwen.extract import Extract
from trainwright.suites.qwen.sort import Sort
from trainwright.suites.qwen.tools import Tools
from trainwright.suites.qwen.transform import MEANING, Transform
from trainwright.suites.qwen.triage import Triage

FAMILIES: tuple[QwenFamily[Any], ...] = (Transform(), Countdown(), Sort(), Extract(), Tools(), Triage())


@dataclasses.dataclass(frozen=True)
class ItemType:
    """One type of item: a family, the parameters and changes of the hidden world that make every item of that type."""

    family: QwenFamily[Any]
    parameters: dict[str, str]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        details = [*self.parameters.values(), *(f"{name}={value}" for name, value in self.changes.items())]
        return "-".join([self.family.topic, *details]).replace(" ", "+")

    def items(self, seed: int, count: int) -> list[Item]:
        """Return `count` hidden items of this type."""
        rng = random.Random(seed)
        world = dataclasses.replace(self.family.hidden_world(), **self.changes)
        found: list[Item] = []
        while len(found) < count:
            item = self.family.item(self.parameters, world, rng)
            if item is not None:
                found.append(item)
        return found


def item_types() -> Iterator[ItemType]:
    """Yield every type of item of the suite."""
    transform, countdown, sort, extract, tools, triage = FAMILIES
    for rule in MEANING:
        yield ItemType(transform, {"rules": rule}, {"pair_share": 0.0})
    for pair in transform.hidden_world().pairs:
        yield ItemType(transform, {"rules": " ".join(pair)}, {"pair_share": 1.0, "pairs": (pair,)})
    for variant in countdown.variants:
        for share in (0.0, 1.0):
            yield ItemType(countdown, dict(variant), {"four_share": share})
    for family in (sort, extract, tools):
        for variant in family.variants:
            yield ItemType(family, dict(variant))
    for variant in triage.variants:
        for share in (0.0, 1.0):
            yield ItemType(
                triage, dict(variant), {"exception_share": share, "override_share": share, "last_share": share}
            )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `family` each of the six, and one that asks for `item_type` each type of item."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", FAMILIES, ids=[family.topic for family in FAMILIES])
    if "item_type" in metafunc.fixturenames:
        metafunc.parametrize("item_type", list(item_types()), ids=str)
