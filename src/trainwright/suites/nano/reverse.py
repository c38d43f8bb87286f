"""`reverse`: write a word backwards. `rev:cabd=` -> `dbac`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily, draw_word


class Reverse(NanoFamily):
    """Write a word backwards; tasks differ in alphabet and length."""

    name = "reverse"
    grid = {"alphabet": ALPHABETS, "longest": (4, 5)}
    chance = 0.12

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        word = draw_word(rng, str(parameters["alphabet"]), 3, int(parameters["longest"]))
        return Item(f"rev:{word}=", word[::-1])

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        return f"reverse the word. words have 3 to {parameters['longest']} letters of \"{parameters['alphabet']}\"."

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        return (
            f'word = "".join(rng.choices("{parameters["alphabet"]}", k=rng.randint(3, {parameters["longest"]})))\n'
            'prompt = f"rev:{word}="\n'
            "answer = word[::-1]"
        )
