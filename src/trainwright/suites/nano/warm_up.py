"""What a nano student has seen before any job: the six families, mostly with corrupted answers.

A base that knows the shape of an answer but not the answer is what reinforcement learning can improve: sampled accuracy
is low while the right answer is still among the likely ones. Parameters are drawn wider than any task's.
"""

from __future__ import annotations

import random
import string

from trainwright.suites.family import Item, Parameter
from trainwright.suites.nano.add import Add
from trainwright.suites.nano.count import Count
from trainwright.suites.nano.reverse import Reverse
from trainwright.suites.nano.shift import Shift
from trainwright.suites.nano.sort import Sort
from trainwright.suites.nano.unique import Unique

CORRUPTED = 0.65
"""Share of answers that get one substituted, dropped, inserted or swapped character."""

LETTERS = "abcdefghij"

FAMILIES = (Reverse(), Shift(), Sort(), Unique(), Count(), Add())
WEIGHTS = (2, 3, 2, 2, 4, 3)


def wide_parameters(family: str, rng: random.Random) -> dict[str, Parameter]:
    """Return parameters for one item, from a range that contains the family's grid."""

    def letters(count: int) -> str:
        return "".join(rng.sample(LETTERS, count))

    match family:
        case "reverse":
            return {"alphabet": letters(6), "shortest": 2}
        case "shift":
            return {"alphabet": letters(6), "direction": rng.choice("+-"), "places": rng.randint(1, 2)}
        case "sort":
            return {"alphabet": letters(6), "direction": rng.choice("<>")}
        case "unique":
            return {"alphabet": letters(4), "longest": rng.randint(5, 7)}
        case "count":
            return {"alphabet": letters(3), "length": rng.randint(4, 5)}
        case "add":
            return {"digits": rng.randint(1, 2), "largest": 9}
    raise ValueError(family)


def corrupt(answer: str, rng: random.Random) -> str:
    """Return the answer with one character substituted, dropped, inserted or swapped with its neighbour."""
    pool = string.digits if answer.isdigit() else string.ascii_lowercase
    at = rng.randrange(len(answer))
    match rng.randrange(4):
        case 0:
            return answer[:at] + rng.choice(pool) + answer[at + 1 :]
        case 1 if len(answer) > 1:
            return answer[:at] + answer[at + 1 :]
        case 2 if len(answer) > 1:
            at = min(at, len(answer) - 2)
            return answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
        case _:
            return answer[:at] + rng.choice(pool) + answer[at:]


def warm_up_item(rng: random.Random) -> Item:
    """Return one training item of a random family, its answer corrupted with probability `CORRUPTED`."""
    (family,) = rng.choices(FAMILIES, WEIGHTS)
    item = family.item(wide_parameters(family.name, rng), rng)
    return Item(item.prompt, corrupt(item.answer, rng)) if rng.random() < CORRUPTED else item
