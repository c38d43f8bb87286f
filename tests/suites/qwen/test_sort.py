from __future__ import annotations

import random
import re

from trainwright.suites.qwen.sort import Field, Sort, draw_distinct, show


def test_a_hidden_answer_follows_both_keys() -> None:
    """Read the records back from prompts of one known wording and sort them again."""
    family = Sort()
    checked = 0
    for item in family.hidden_items(family.task({"layout": "table"}, 1), 3, 200):
        asked = re.search(r"by (\w+) \((.*)\), ties resolved by (\w+) \((.*)\)\.", item.prompt)
        if asked is None:
            continue
        rows = [line.split(" | ") for line in item.prompt.splitlines() if " | " in line]
        header, records = rows[0], rows[1:]
        for field, order in ((asked[3], asked[4]), (asked[1], asked[2])):
            place = header.index(field)
            down = any(
                word in order for word in ("shrinking", "maximum", "backwards", "Z towards A", "future", "reverse")
            )
            number = records[0][place].isdigit()
            records.sort(key=lambda row: (int(row[place]), "") if number else (0, row[place]), reverse=down)
        assert item.answer == ", ".join(row[0] for row in records)
        checked += 1
    assert checked >= 30


def test_the_second_key_is_needed_and_the_given_order_is_never_right() -> None:
    family = Sort()
    for item in family.hidden_items(family.task({"layout": "list"}, 1), 4, 100):
        names = re.findall(r"^- ([\w-]+):", item.prompt, re.MULTILINE)
        assert 6 <= len(names) <= 14
        assert sorted(names) == sorted(item.answer.split(", "))
        assert names != item.answer.split(", ")


def test_values_sort_by_their_type() -> None:
    number = Field("age", "number", (1, 200))
    assert sorted(["100", "20", "3"], key=number.key) == ["3", "20", "100"]
    assert len(set(draw_distinct(number, 150, random.Random(1)))) == 150
    date = Field("day", "date", (2020, 2020))
    assert all(date.draw(random.Random(seed)).startswith("2020-") for seed in range(50))


def test_both_layouts_show_every_value() -> None:
    records = [{"age": "3", "city": "Rome"}, {"age": "4", "city": "Lima"}]
    assert show("table", "name", ["Ann", "Bob"], records) == "name | age | city\nAnn | 3 | Rome\nBob | 4 | Lima"
    assert show("list", "name", ["Ann", "Bob"], records) == "- Ann: age 3, city Rome\n- Bob: age 4, city Lima"
