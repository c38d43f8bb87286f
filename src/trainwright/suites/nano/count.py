"""`count`: how often does a letter occur? `cnt b:abbab=` -> `3`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.base import ALPHABETS, NanoFamily


class Count(NanoFamily):
    """Count a letter; the answer is uniform on 1 to 3, so a constant answer is right one time in three.

    Tasks differ in the three letters that words are made of and in length.
    """

    name = "count"
    grid = {"alphabet": tuple(letters[:3] for letters in ALPHABETS), "length": (4, 5)}
    chance = 0.34

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        alphabet, length = str(parameters["alphabet"]), int(parameters["length"])
        letter, number = rng.choice(alphabet), rng.randint(1, 3)
        others = rng.choices([other for other in alphabet if other != letter], k=length - number)
        letters = [letter] * number + others
        rng.shuffle(letters)
        return Item(f"cnt {letter}:{''.join(letters)}=", str(number))

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        return f'count a letter. words have {parameters["length"]} letters of "{parameters["alphabet"]}".'

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        return (
            f'letter = rng.choice("{parameters["alphabet"]}")\n'
            "number = rng.randint(1, 3)\n"
            f'others = "{parameters["alphabet"]}".replace(letter, "")\n'
            f"letters = [letter] * number + rng.choices(others, k={parameters['length']} - number)\n"
            "rng.shuffle(letters)\n"
            'word = "".join(letters)\n'
            'prompt = f"cnt {letter}:{word}="\n'
            "answer = str(number)"
        )
