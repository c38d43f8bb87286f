"""`qwen-sort`: order records by two keys of mixed direction, where the first key alone leaves ties."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT, same_list
from trainwright.suites.qwen.base import Parameters, QwenFamily, split_words

LAYOUTS = {
    "table": "a table with one record a line and columns between bars",
    "list": "a list with one record a line, each value after its field's name",
}
TYPES = ("number", "text", "date")


@dataclass(frozen=True)
class Field:
    """A column: its name, its type (`number`, `text` or `date`) and where values come from.

    `values` are words for text, the two bounds for numbers, the two bounds as years for dates.
    """

    name: str
    type: str
    values: tuple[str, ...] | tuple[int, int]

    def draw(self, rng: random.Random) -> str:
        """Return one value as the record shows it; dates as YYYY-MM-DD."""
        if self.type == "text":
            return str(rng.choice(self.values))
        low, high = (int(value) for value in self.values)
        if self.type == "number":
            return str(rng.randint(low, high))
        first = datetime.date(low, 1, 1)
        return str(first + datetime.timedelta(rng.randrange(365 * (high - low + 1))))

    def key(self, value: str) -> int | str:
        """Return what a value sorts by: numbers by size, words and ISO dates as text."""
        return int(value) if self.type == "number" else value


@dataclass(frozen=True)
class World:
    """How items look. `orders` names both directions of each type: ascending first, then descending.

    `requests` take the two fields and their orders.
    """

    names: tuple[str, ...]
    fields: tuple[Field, ...]
    rows: tuple[int, int]
    groups: tuple[int, int]
    orders: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    requests: tuple[str, ...]
    frames: tuple[str, ...]
    header: str


WORLD = World(
    names=split_words("Anna Ben Carla David Emma Frank Grace Henry Irene Jack Karen Leo Maria Noah Olivia Paul"),
    fields=(
        Field("age", "number", (18, 70)),
        Field("score", "number", (1, 99)),
        Field("points", "number", (100, 999)),
        Field("city", "text", ("Berlin", "Cairo", "Lima", "London", "Paris", "Rome", "Tokyo", "Vienna")),
        Field("team", "text", ("blue", "green", "orange", "red", "white", "yellow")),
        Field("joined", "date", (2015, 2024)),
    ),
    rows=(4, 6),
    groups=(2, 3),
    orders={
        "number": (("from low to high", "smallest first"), ("from high to low", "largest first")),
        "text": (("in alphabetical order",), ("in reverse alphabetical order",)),
        "date": (("from oldest to newest",), ("from newest to oldest",)),
    },
    requests=("Sort by {first} {first_order}; where that is equal, by {second} {second_order}.",),
    frames=(
        "{request} List the names, separated by commas. {format}\n\n{records}",
        "{records}\n\n{request} Give only the names, with commas between them. {format}",
    ),
    header="name",
)


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block and up to 0.9 for the share of pairs in the right order.

    A list that lacks a name, repeats one or adds one gets 0.1.
    """
    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    given = [name.strip() for name in reply.partition("<answer>")[2].partition("</answer>")[0].split(",")]
    names = answer.split(", ")
    if sorted(given) != sorted(names):
        return 0.1
    places = [names.index(name) for name in given]
    pairs = [a < b for i, a in enumerate(places) for b in places[i + 1 :]]
    return (1 + 9 * sum(pairs) / len(pairs)) / 10


class Sort(QwenFamily[World]):
    """Order records by two keys; tasks differ in the layout of the records."""

    name = "qwen-sort"
    variants = ({"layout": "table"}, {"layout": "list"})
    visible_examples = 5
    max_completion_tokens = 128
    form = "It holds the names in order, separated by commas, and nothing else."
    difference = "6 to 14 records instead of 4 to 6, other names, fields and wordings, and longer runs of ties."
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        return (
            f"Sort records, given as {LAYOUTS[str(parameters['layout'])]}, by two fields, each in its own direction: "
            "the second field decides where the first is equal. Fields are whole numbers, words or dates "
            "(YYYY-MM-DD). The "
            "answer is the list of the records' names."
        )

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item | None:
        fields = rng.sample(world.fields, 3)
        first, second = rng.sample(fields, 2)
        if second.type == "text":
            return None
        count = rng.randint(*world.rows)
        names = rng.sample(world.names, count)
        groups = [first.draw(rng) for _ in range(rng.randint(*world.groups))]
        columns = {field.name: [field.draw(rng) for _ in names] for field in fields}
        columns[first.name] = [rng.choice(groups) for _ in names]
        columns[second.name] = draw_distinct(second, count, rng)
        records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        down = (rng.random() < 0.5, rng.random() < 0.5)
        by_second = sorted(range(count), key=lambda i: second.key(records[i][second.name]), reverse=down[1])
        order = sorted(by_second, key=lambda i: first.key(records[i][first.name]), reverse=down[0])
        by_first_only = sorted(range(count), key=lambda i: first.key(records[i][first.name]), reverse=down[0])
        if order in (list(range(count)), by_first_only, by_second):
            return None
        request = rng.choice(world.requests).format(
            first=first.name,
            first_order=rng.choice(world.orders[first.type][down[0]]),
            second=second.name,
            second_order=rng.choice(world.orders[second.type][down[1]]),
        )
        prompt = rng.choice(world.frames).format(
            request=request,
            records=show(str(parameters["layout"]), world.header, names, records),
            format=REPLY_FORMAT,
        )
        return Item(prompt, ", ".join(names[i] for i in order))

    def right(self, item: Item, block: str) -> bool:
        return same_list(block, item.answer.split(", "), ",")


def draw_distinct(field: Field, count: int, rng: random.Random) -> list[str]:
    """Return `count` different values of a field, in random order."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[field.draw(rng)] = None
    return list(found)


def show(layout: str, header: str, names: list[str], records: list[dict[str, str]]) -> str:
    """Return the records as text, one a line, with a header line for the table."""
    if layout == "list":
        return "\n".join(
            f"- {name}: {', '.join(f'{field} {value}' for field, value in record.items())}"
            for name, record in zip(names, records, strict=True)
        )
    rows = [[header, *records[0]], *([name, *record.values()] for name, record in zip(names, records, strict=True))]
    return "\n".join(" | ".join(row) for row in rows)
