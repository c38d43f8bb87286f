from __future__ import annotations

import datetime
import json
import random
import re

from trainwright.suites.qwen.extract import SCHEMAS, WORLD, Extract, draw_value, fill_pattern


def test_an_answer_has_exactly_the_keys_asked_for() -> None:
    family = Extract()
    for kind in SCHEMAS:
        for item in family.hidden_items(family.task({"document": kind}, 1), 1, 100):
            asked = re.findall(r"^- (\w+) \(", item.prompt, re.MULTILINE)
            assert list(json.loads(item.answer)) == asked
            assert 3 <= len(asked) <= 6


def test_text_facts_stand_in_the_mail_and_missing_ones_are_null() -> None:
    family = Extract()
    missing = 0
    for kind, schema in SCHEMAS.items():
        for item in family.hidden_items(family.task({"document": kind}, 1), 1, 200):
            for field, value in json.loads(item.answer).items():
                missing += value is None
                if value is not None and schema[field][0] == "text":
                    assert value in item.prompt
    assert missing > 100


def test_due_dates_follow_issue_dates() -> None:
    family = Extract()
    for item in family.hidden_items(family.task({"document": "invoice"}, 1), 1, 200):
        facts = json.loads(item.answer)
        if facts.get("issued") and facts.get("due"):
            assert facts["issued"] < facts["due"]


def test_values_are_written_as_they_are_answered() -> None:
    rng = random.Random(1)
    day = datetime.date(2021, 2, 28)
    for _ in range(200):
        amount, shown = draw_value("total", "amount", day, WORLD, rng)
        assert isinstance(amount, float)
        assert f"{amount:,.2f}" in shown
        date, shown = draw_value("due", "date", day, WORLD, rng)
        assert datetime.date.fromisoformat(str(date)).strftime("%Y") in shown
        nights, shown = draw_value("nights", "integer", day, WORLD, rng)
        assert shown == str(nights)


def test_patterns_are_filled() -> None:
    assert re.fullmatch(r"No [1-9]{2}-[A-Z]", fill_pattern("No ##-@", random.Random(1)))
