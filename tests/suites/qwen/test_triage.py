from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from trainwright.suites.qwen.triage import SIZES, WORLD, Domain, Fact, Sheet, Topic, Triage, World

LATE, BROKEN = Topic("late", ("It is late.",)), Topic("broken", ("It is broken.",))
GOLD, OLD, LOUD = (Fact(name, (f"{name} yes",), (f"{name} no",)) for name in ("gold", "old", "loud"))
DOMAIN = Domain("shop", (LATE, BROKEN), ("q1", "q2"), ("call", "mail", "wait"), (GOLD, OLD, LOUD), ("Hi",), ("Bye",))


def sheet(**changes: Any) -> Sheet:
    values: dict[str, Any] = {
        "domain": DOMAIN,
        "queues": {LATE: "q1", BROKEN: "q2"},
        "exception": None,
        "priority_rules": ((GOLD, "high"), (OLD, "low")),
        "other_priority": "normal",
        "action_rules": ((OLD, "call"), (LOUD, "mail")),
        "other_action": "wait",
        "override": None,
        "last_wins": False,
    }
    return Sheet(**{**values, **changes})


def holds(*facts: Fact) -> dict[Fact, bool]:
    return {fact: fact in facts for fact in (GOLD, OLD, LOUD)}


@pytest.mark.parametrize(
    ("changes", "topic", "facts", "decision"),
    [
        ({}, LATE, (), ("q1", "normal", "wait")),
        ({}, BROKEN, (GOLD,), ("q2", "high", "wait")),
        ({}, LATE, (GOLD, OLD, LOUD), ("q1", "high", "call")),
        ({"last_wins": True}, LATE, (GOLD, OLD, LOUD), ("q1", "low", "mail")),
        ({"last_wins": True}, LATE, (), ("q1", "normal", "wait")),
        ({"exception": (LOUD, "q2")}, LATE, (LOUD,), ("q2", "normal", "mail")),
        ({"exception": (LOUD, "q2")}, LATE, (), ("q1", "normal", "wait")),
        ({"override": ("high", "mail")}, LATE, (GOLD, OLD), ("q1", "high", "mail")),
        ({"override": ("high", "mail")}, LATE, (OLD,), ("q1", "low", "call")),
    ],
)
def test_a_sheet_decides_as_it_says(
    changes: dict[str, Any], topic: Topic, facts: tuple[Fact, ...], decision: tuple[str, str, str]
) -> None:
    assert sheet(**changes).decide(topic, holds(*facts)) == decision


@pytest.mark.parametrize("world", [WORLD, Triage().hidden_world()], ids=["visible", "hidden"])
def test_the_text_states_every_part_of_the_sheet(world: World) -> None:
    full = sheet(exception=(LOUD, "q2"), override=("high", "mail"), last_wins=True)
    text = full.text(world.sheet)
    for part in ("late", "broken", "q1", "q2", "gold", "old", "loud", "high", "low", "normal", "call", "mail", "wait"):
        assert part in text
    assert world.sheet["last"] in text
    assert world.sheet["first"] in sheet().text(world.sheet)
    assert full.facts() == [GOLD, OLD, LOUD]


@pytest.mark.parametrize("world", [WORLD, Triage().hidden_world()], ids=["visible", "hidden"])
def test_every_domain_fills_the_longest_sheet_and_names_nothing_twice(world: World) -> None:
    topics, rules = SIZES["long"]
    for domain in world.domains:
        assert len(domain.topics) >= topics
        assert len(domain.queues) >= topics
        assert len(domain.actions) > rules
        assert len(domain.facts) >= rules
        for names in (domain.queues, domain.actions):
            assert len(set(names)) == len(names)
            assert not any("|" in name for name in names)
        sentences = [sentence for topic in domain.topics for sentence in topic.sentences]
        sentences += [sentence for fact in domain.facts for sentence in (*fact.yes, *fact.no)]
        assert len(set(sentences)) == len(sentences)


def test_hidden_sheets_use_exceptions_and_both_orders() -> None:
    family = Triage()
    words = family.hidden_world().sheet
    prompts = [item.prompt for item in family.hidden_items(family.task({"sheet": "long"}, 1), 1, 200)]
    exceptions = sum("regardless of its subject" in prompt for prompt in prompts)
    lasts = sum(words["last"] in prompt for prompt in prompts)
    assert 110 <= exceptions <= 170
    assert 70 <= lasts <= 130
    assert all((words["last"] in prompt) != (words["first"] in prompt) for prompt in prompts)


def test_guessing_from_the_sheet_stays_near_chance() -> None:
    """A reply made of the first queue, priority and action that a sheet names is right in under one item in ten."""
    family = Triage()
    for variant, place in product(family.variants, (0, -1)):
        right = 0
        for item in family.hidden_items(family.task(variant, 1), 2, 400):
            queues = [line.split(" -> ")[1] for line in item.prompt.splitlines() if " -> " in line]
            values = [line[5:].split(",")[0] for line in item.prompt.splitlines() if line.startswith("   * ")]
            half = len(values) // 2
            guess = " | ".join((queues[place], values[:half][place], values[half:][place]))
            right += int(family.score(item, f"<answer>{guess}</answer>"))
        assert right / 400 < 0.1
