"""`unique`: keep the first of each letter, in order. `unq:abacb=` -> `abc`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily, draw_word


class Unique(NanoFamily):
    """Drop repeated letters; tasks differ in the four letters that words are made of and in length."""

    name = "unique"
    grid = {"alphabet": tuple(letters[:4] for letters in ALPHABETS), "longest": (6, 7)}
    chance = 0.05

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        word = draw_word(rng, str(parameters["alphabet"]), 5, int(parameters["longest"]))
        return Item(f"unq:{word}=", "".join(dict.fromkeys(word)))

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        return f'keep unique letters. words have 5 to {parameters["longest"]} letters of "{parameters["alphabet"]}".'

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        return (
            f'word = "".join(rng.choices("{parameters["alphabet"]}", k=rng.randint(5, {parameters["longest"]})))\n'
            'prompt = f"unq:{word}="\n'
            'answer = "".join(dict.fromkeys(word))'
        )
