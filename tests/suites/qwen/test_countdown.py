from __future__ import annotations

import json
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.suites.qwen.countdown import Countdown, combine, evaluate

EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: "({} {} {})".format(*parts)),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_expressions_are_worth_what_python_says(expression: str) -> None:
    try:
        expected: Fraction | None = eval(re.sub(r"\d+", r"Fraction(\g<0>)", expression), {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    found = evaluate(expression, "+-*/")
    if expected is None or len(expression) > 80:
        assert found is None
    else:
        assert found == ([int(digits) for digits in re.findall(r"\d+", expression)], expected)


@given(st.text("0123456789+-*/() .,=_eE", max_size=100))
def test_any_text_is_read_without_an_error(text: str) -> None:
    evaluate(text, "+-*/")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "()",
        "1 +",
        "-1",
        "+1",
        "1 / 0",
        "2 ** 3",
        "7 // 2",
        "1.5 + 1",
        "1e3",
        "007",
        "1_0",
        "(1, 2)",
        "1 = 1",
        "x",
        "1\n+ 2",
        "(" * 60,
    ],
)
def test_what_is_not_a_plain_expression_has_no_value(expression: str) -> None:
    assert evaluate(expression, "+-*/") is None


def test_an_operator_that_is_not_allowed_has_no_value() -> None:
    assert evaluate("6 / 3", "+-*") is None
    assert evaluate("6 / 3", "+-*/") == ([6, 3], 2)


def test_any_right_expression_counts() -> None:
    family = Countdown()
    item = family.draw(1).examples[0]
    puzzle = json.loads(item.answer)
    assert family.score(item, f"<answer>({puzzle['solution']})</answer>") == 1.0
    assert family.score(item, f"<answer>{puzzle['solution'].replace(' ', '')}</answer>") == 1.0


def test_hidden_items_keep_to_the_announced_shares() -> None:
    family = Countdown()
    for variant in family.variants:
        puzzles = [json.loads(item.answer) for item in family.hidden_items(family.task(variant, 1), 1, 800)]
        assert all(max(puzzle["numbers"]) > 50 for puzzle in puzzles)
        assert all(puzzle["target"] not in (*puzzle["numbers"], sum(puzzle["numbers"])) for puzzle in puzzles)
        assert 0.15 < sum(len(puzzle["numbers"]) == 4 for puzzle in puzzles) / 800 < 0.25
        assert 0.5 < sum("*" in puzzle["solution"] or "/" in puzzle["solution"] for puzzle in puzzles) / 800 < 0.7


def test_combining_gives_the_value_it_names() -> None:
    rng = random.Random(2)
    made = [combine([12, 6, 4], "+-*/", rng) for _ in range(300)]
    assert any(made)
    for value, expression in filter(None, made):
        assert evaluate(expression, "+-*/") in [
            ([*order], value) for order in ([12, 6, 4], [12, 4, 6], [6, 12, 4], [6, 4, 12], [4, 12, 6], [4, 6, 12])
        ]
