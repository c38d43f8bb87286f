from __future__ import annotations

import json
import random
import re

import pytest

from trainwright.suites.qwen.tools import WORLD, Argument, Tool, Tools, World

BOOK = Tool(
    "book",
    "book a table",
    (Argument("place", ("Rome",)), Argument("party.adults", (2, 2)), Argument("party.children", (3, 3), optional=True)),
    ("book for <party.adults> in <place>", "book in <place> for <party.adults> and <party.children> children"),
)


def test_a_signature_shows_types_nesting_and_what_is_optional() -> None:
    shown = "book(place: string, party: {adults: integer, children: integer, optional}) - book a table"
    assert BOOK.signature() == shown


def test_a_request_asks_for_exactly_the_arguments_it_mentions() -> None:
    rng = random.Random(1)
    calls = {request: call["arguments"] for request, call in (BOOK.ask(rng) for _ in range(20))}
    assert calls == {
        "book for 2 in Rome": {"place": "Rome", "party": {"adults": 2}},
        "book in Rome for 2 and 3 children": {"place": "Rome", "party": {"adults": 2, "children": 3}},
    }


@pytest.mark.parametrize("world", [WORLD, Tools().hidden_world()], ids=["visible", "hidden"])
def test_every_request_mentions_every_argument_that_is_required(world: World) -> None:
    for tool in world.tools:
        required = {argument.name for argument in tool.arguments if not argument.optional}
        optional = {argument.name for argument in tool.arguments if argument.optional}
        mentioned = [set(re.findall(r"<([\w.]+)>", request)) for request in tool.requests]
        assert all(required <= names <= required | optional for names in mentioned), tool.name
        assert not optional or {bool(names & optional) for names in mentioned} == {True, False}, tool.name


def test_no_tool_or_argument_of_the_benchmark_is_shown() -> None:
    shown, hidden = WORLD.tools, Tools().hidden_world().tools
    assert not {tool.name for tool in shown} & {tool.name for tool in hidden}
    assert not {a.name for tool in shown for a in tool.arguments} & {a.name for tool in hidden for a in tool.arguments}


def test_tasks_differ_in_the_number_of_calls() -> None:
    family = Tools()
    for calls, counts in (("one", {1}), ("two", {1, 2})):
        items = family.hidden_items(family.task({"calls": calls}, 1), 1, 100)
        assert {len(json.loads(item.answer)) for item in items} == counts
        for item in items:
            for call in json.loads(item.answer):
                assert f"- {call['name']}(" in item.prompt


def test_key_order_and_spacing_do_not_matter_but_call_order_does() -> None:
    family = Tools()
    items = family.hidden_items(family.task({"calls": "two"}, 1), 1, 50)
    item = next(item for item in items if len(json.loads(item.answer)) == 2)
    calls = json.loads(item.answer)
    assert family.score(item, f"<answer>{json.dumps(calls, sort_keys=True, indent=2)}</answer>") == 1.0
    assert family.score(item, f"<answer>{json.dumps(calls[::-1])}</answer>") == 0.0
