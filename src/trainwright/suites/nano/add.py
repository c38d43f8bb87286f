"""`add`: add two numbers. `add:7+5=` -> `12`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import NanoFamily


class Add(NanoFamily):
    """Add two numbers; tasks differ in the digits of the first one and in the largest second one."""

    name = "add"
    grid = {"digits": (1, 2), "largest": (5, 7, 9)}
    chance = 0.2

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        first = rng.randint(*first_range(parameters))
        second = rng.randint(1, int(parameters["largest"]))
        return Item(f"add:{first}+{second}=", str(first + second))

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        lowest, highest = first_range(parameters)
        return f"add two numbers, the first from {lowest} to {highest}, the second from 1 to {parameters['largest']}."

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        lowest, highest = first_range(parameters)
        return (
            f"first = rng.randint({lowest}, {highest})\n"
            f"second = rng.randint(1, {parameters['largest']})\n"
            'prompt = f"add:{first}+{second}="\n'
            "answer = str(first + second)"
        )


def first_range(parameters: Mapping[str, Parameter]) -> tuple[int, int]:
    """Return the smallest and largest first number of a task."""
    return (1, 9) if parameters["digits"] == 1 else (10, 29)
