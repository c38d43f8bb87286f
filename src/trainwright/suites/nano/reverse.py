"""`reverse`: write a word backwards. `rev:cabd=` -> `dbac`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily, draw_word


class Reverse(NanoFamily):
    """Write a word backwards; tasks differ in alphabet and length."""

    name = "reverse"
    grid = {"alphabet": ALPHABETS, "shortest": (2, 3)}
    chance = 0.2

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        word = draw_word(rng, str(parameters["alphabet"]), int(parameters["shortest"]), 4)
        return Item(f"rev:{word}=", word[::-1])

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        return f'reverse the word. words have {parameters["shortest"]} to 4 letters of "{parameters["alphabet"]}".'

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        return (
            f'word = "".join(rng.choices("{parameters["alphabet"]}", k=rng.randint({parameters["shortest"]}, 4)))\n'
            'prompt = f"rev:{word}="\n'
            "answer = word[::-1]"
        )
