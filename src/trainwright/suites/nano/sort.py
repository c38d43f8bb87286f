"""`sort`: order the letters of a word. `srt<:cab=` -> `abc`, `srt>:cab=` -> `cba`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily, draw_word


class Sort(NanoFamily):
    """Order the letters of a word; tasks differ in direction and alphabet."""

    name = "sort"
    grid = {"alphabet": ALPHABETS, "direction": ("<", ">")}
    chance = 0.15

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        word = draw_word(rng, str(parameters["alphabet"]), 3, 5)
        descending = parameters["direction"] == ">"
        return Item(f"srt{parameters['direction']}:{word}=", "".join(sorted(word, reverse=descending)))

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        order = {"<": "up", ">": "down"}[str(parameters["direction"])]
        return f'sort the letters {order}. words have 3 to 5 letters of "{parameters["alphabet"]}".'

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        reverse = ", reverse=True" if parameters["direction"] == ">" else ""
        return (
            f'word = "".join(rng.choices("{parameters["alphabet"]}", k=rng.randint(3, 5)))\n'
            f'prompt = f"srt{parameters["direction"]}:{{word}}="\n'
            f'answer = "".join(sorted(word{reverse}))'
        )
