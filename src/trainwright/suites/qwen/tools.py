"""`qwen-tools`: turn a request into one or two calls of listed tools, written as JSON."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT, NotAnswered, parse_json, same_json
from trainwright.suites.qwen.base import Parameters, QwenFamily

CALL = '{"name": ..., "arguments": {...}}'
CALLS = {"one": "exactly one call", "two": "one call, or two calls in the order of the request"}


@dataclass(frozen=True)
class Argument:
    """An argument of a tool. A dot in the name nests it: `party.adults` is the key `adults` of the object `party`.

    `values` are words, or the two bounds of a whole number. A request that does not mention an optional argument is
    right only without it.
    """

    name: str
    values: tuple[str, ...] | tuple[int, int]
    optional: bool = False

    @property
    def type(self) -> str:
        """Return the JSON type: `integer` or `string`."""
        return "integer" if isinstance(self.values[0], int) else "string"

    def draw(self, rng: random.Random) -> int | str:
        """Return one value."""
        if isinstance(self.values[0], int):
            low, high = (int(value) for value in self.values)
            return rng.randint(low, high)
        return rng.choice(self.values)


@dataclass(frozen=True)
class Tool:
    """A tool: its name, what it does, its arguments, and requests for it: clauses with `<argument>` to fill in."""

    name: str
    purpose: str
    arguments: tuple[Argument, ...]
    requests: tuple[str, ...]

    def signature(self) -> str:
        """Return one line: name, arguments with types, purpose. Nested arguments are shown as objects."""
        shown: dict[str, list[str]] = {}
        for argument in self.arguments:
            top, _, inner = argument.name.partition(".")
            kind = f"{inner}: {argument.type}" if inner else argument.type
            shown.setdefault(top, []).append(kind + (", optional" if argument.optional else ""))
        objects = {argument.name.partition(".")[0] for argument in self.arguments if "." in argument.name}
        parts = [
            f"{top}: {{{', '.join(kinds)}}}" if top in objects else f"{top}: {kinds[0]}" for top, kinds in shown.items()
        ]
        return f"{self.name}({', '.join(parts)}) - {self.purpose}"

    def ask(self, rng: random.Random) -> tuple[str, dict[str, object]]:
        """Return a request as a clause, and the call that it asks for."""
        request = rng.choice(self.requests)
        arguments: dict[str, object] = {}
        for argument in self.arguments:
            place = f"<{argument.name}>"
            if place not in request:
                continue
            value = argument.draw(rng)
            request = request.replace(place, str(value))
            top, _, inner = argument.name.partition(".")
            if inner:
                nested = arguments.setdefault(top, {})
                assert isinstance(nested, dict)
                nested[inner] = value
            else:
                arguments[top] = value
        return request, {"name": self.name, "arguments": arguments}


@dataclass(frozen=True)
class World:
    """How items look: the tools, how many are listed, how two requests are joined, and the prompt around it all."""

    tools: tuple[Tool, ...]
    listed: tuple[int, int]
    joints: tuple[str, ...]
    frames: tuple[str, ...]


CITIES = ("Berlin", "Cairo", "Lima", "London", "Paris", "Rome", "Tokyo", "Vienna")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = ("meters", "feet", "miles", "kilometers", "inches", "yards")
DATES = tuple(f"2024-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))

WORLD = World(
    tools=(
        Tool(
            "add",
            "add two numbers",
            (Argument("a", (1, 999)), Argument("b", (1, 999))),
            ("add <a> and <b>", "tell me what <a> plus <b> is"),
        ),
        Tool(
            "multiply",
            "multiply two numbers",
            (Argument("a", (2, 99)), Argument("b", (2, 99))),
            ("multiply <a> by <b>", "work out <a> times <b>"),
        ),
        Tool(
            "days_between",
            "count the days from one date to another",
            (Argument("start", DATES), Argument("end", DATES)),
            ("count the days from <start> to <end>", "tell me how many days lie between <start> and <end>"),
        ),
        Tool(
            "convert",
            "convert a length",
            (Argument("value", (1, 500)), Argument("from", UNITS[:3]), Argument("to", UNITS[3:])),
            ("convert <value> <from> to <to>", "tell me what <value> <from> are in <to>"),
        ),
        Tool(
            "weather",
            "get the forecast of a city, for today unless a day is given",
            (Argument("city", CITIES), Argument("day", DAYS, optional=True)),
            ("get the weather in <city> on <day>", "get the weather in <city>"),
        ),
        Tool(
            "lookup",
            "look up a person in the phone book",
            (
                Argument("name", ("Anna", "Ben", "Carla", "David", "Emma", "Frank")),
                Argument("city", CITIES, optional=True),
            ),
            ("look up the number of <name> in <city>", "look up the number of <name>"),
        ),
        Tool(
            "timer",
            "set a timer",
            (Argument("minutes", (1, 90)), Argument("label", ("tea", "pasta", "bread", "cake"), optional=True)),
            ("set a timer of <minutes> minutes for the <label>", "set a timer of <minutes> minutes"),
        ),
    ),
    listed=(2, 3),
    joints=("{first}, then {second}",),
    frames=("Tools:\n{tools}\n\nRequest: Please {request}.\nWrite the calls as a JSON list of {call}. {format}",),
)


def partial_credit(answer: str, reply: str) -> float:
    """Return 0.1 for one answer block, 0.2 for a JSON list of calls, and up to 0.8 more for names and arguments."""
    import json

    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return 0.0
    try:
        given = json.loads(reply.partition("<answer>")[2].partition("</answer>")[0])
    except (ValueError, RecursionError):
        return 0.1
    if not isinstance(given, list) or not all(
        isinstance(call, dict) and call.keys() == {"name", "arguments"} for call in given
    ):
        return 0.1
    wanted = json.loads(answer)
    credit = 0.0
    for call, right in zip(given, wanted, strict=False):
        if call["name"] == right["name"]:
            same = json.dumps(call["arguments"], sort_keys=True) == json.dumps(right["arguments"], sort_keys=True)
            credit += 1.0 if same else 0.5
    return (2 + 8 * credit / max(len(given), len(wanted))) / 10


class Tools(QwenFamily[World]):
    """Write calls of tools; tasks differ in whether a request may need two."""

    name = "qwen-tools"
    variants = ({"calls": "one"}, {"calls": "two"})
    visible_examples = 5
    max_completion_tokens = 160
    form = (
        f"It holds a JSON list of calls, each {CALL} with the tool's own argument names, whole numbers as numbers, "
        "and no "
        "argument that the request does not mention."
    )
    difference = (
        "none of the tools or argument names of the examples, longer tool lists, and arguments nested in objects."
    )
    partial_credit = staticmethod(partial_credit)
    world = WORLD

    def instruction(self, parameters: Parameters) -> str:
        return (
            "Given a list of tools, one a line as name(argument: type, ...) - purpose, and a request, write the "
            "calls that "
            f"fulfil it: {CALLS[str(parameters['calls'])]}. Arguments marked optional are left out when the request "
            "does "
            "not mention them. An argument shown as {...} is an object with those keys."
        )

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item:
        two = parameters["calls"] == "two" and rng.random() < 0.5
        listed = rng.sample(world.tools, rng.randint(*world.listed))
        asked = [tool.ask(rng) for tool in rng.sample(listed, 2 if two else 1)]
        request = rng.choice(world.joints).format(first=asked[0][0], second=asked[1][0]) if two else asked[0][0]
        prompt = rng.choice(world.frames).format(
            tools="\n".join(f"- {tool.signature()}" for tool in listed),
            request=request,
            Request=request[0].upper() + request[1:],
            call=CALL,
            format=REPLY_FORMAT,
        )
        return Item(prompt, json.dumps([call for _, call in asked]))

    def right(self, item: Item, block: str) -> bool:
        try:
            return same_json(parse_json(block), parse_json(item.answer))
        except NotAnswered:
            return False
