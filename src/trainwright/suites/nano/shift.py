"""`shift`: move every letter along the alphabet of 26, round the end. `shf+2:abz=` -> `cdb`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily, draw_word


def shift_word(word: str, by: int) -> str:
    """Return the word with each lower-case letter moved `by` places, round the end of the alphabet."""
    return "".join(chr((ord(letter) - 97 + by) % 26 + 97) for letter in word)


class Shift(NanoFamily):
    """Move every letter along the alphabet; tasks differ in direction, distance and alphabet."""

    name = "shift"
    grid = {"alphabet": ALPHABETS, "direction": ("+", "-"), "places": (1, 2)}
    chance = 0.02

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        word = draw_word(rng, str(parameters["alphabet"]), 3, 5)
        by = int(f"{parameters['direction']}{parameters['places']}")
        return Item(f"shf{by:+d}:{word}=", shift_word(word, by))

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        by = f"{parameters['direction']}{parameters['places']}"
        return f'shift each letter by {by} places. words have 3 to 5 letters of "{parameters["alphabet"]}".'

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        by = f"{parameters['direction']}{parameters['places']}"
        return (
            f'word = "".join(rng.choices("{parameters["alphabet"]}", k=rng.randint(3, 5)))\n'
            f'prompt = f"shf{by}:{{word}}="\n'
            f'answer = "".join(chr((ord(c) - 97 {by}) % 26 + 97) for c in word)'
        )
