from __future__ import annotations

import contextlib
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.suites.qwen.answers import (
    MAX_CHARACTERS,
    NotAnswered,
    answer_block,
    parse_json,
    same_json,
    same_list,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("reply", "block"),
    [
        ("<answer>abc</answer>", "abc"),
        ("Let me see: abc, I think.\n<answer>\n abc \r\n</answer>\nDone.", "abc"),
        ("<answer></answer>", ""),
        ("<answer>a > b and c < d</answer>", "a > b and c < d"),
        ("<answer>\u00a0abc\u200b</answer>", "\u00a0abc\u200b"),
    ],
)
def test_the_only_block_is_found(reply: str, block: str) -> None:
    assert answer_block(reply) == block


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "abc",
        "<answer>abc",
        "abc</answer>",
        "</answer>abc<answer>",
        "<answer>abc</answer><answer>abc</answer>",
        "<answer>abc</answer> or <ANSWER>abd</ANSWER>",
        "<answer>abc</answer> < answer >abd",
        "<answer><answer>abc</answer></answer>",
        "<Answer>abc</Answer>",
        '<answer id="1">abc</answer>',
        "<answer>" + "a" * (MAX_CHARACTERS + 1) + "</answer>",
    ],
)
def test_anything_else_is_no_answer(reply: str) -> None:
    assert answer_block(reply) is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    answer_block(text)
    answer_block(f"<answer>{text}</answer>")
    with contextlib.suppress(NotAnswered):
        parse_json(text)


@given(JSON)
def test_json_equals_itself_however_it_is_written(value: object) -> None:
    assert same_json(parse_json(json.dumps(value)), parse_json(json.dumps(value, indent=2, sort_keys=True)))


@given(JSON, JSON)
def test_json_differs_as_its_canonical_text_does(left: object, right: object) -> None:
    same_text = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert same_json(parse_json(json.dumps(left)), parse_json(json.dumps(right))) == same_text


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("1", "1.0", True),
        ("12.50", "12.5", True),
        ("1e2", "100", True),
        ("0.1", "0.10000000000000001", False),
        ("1", "true", False),
        ("0", "false", False),
        ("0", "null", False),
        ('""', "null", False),
        ('"1"', "1", False),
        ("[1]", "1", False),
        ("{}", "[]", False),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": null}', "{}", False),
    ],
)
def test_numbers_compare_by_value_and_the_rest_by_type(left: str, right: str, same: bool) -> None:
    assert same_json(parse_json(left), parse_json(right)) is same
    assert same_json(parse_json(right), parse_json(left)) is same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{'a': 1}",
        '{"a": 1, "a": 2}',
        '[{"b": {"c": 1, "c": 1}}]',
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999999999",
        "[" * 3000,
        "9" * 10_000,
        '{"a": 1} {"a": 1}',
        "```json\n{}\n```",
    ],
)
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(NotAnswered):
        parse_json(text)


def test_fractions_are_exact() -> None:
    assert parse_json("[1249.10]") == [Decimal("1249.10")]


def test_a_list_needs_each_part_in_its_place() -> None:
    assert same_list("a, b,c", ["a", "b", "c"], ",")
    assert not same_list("a, c, b", ["a", "b", "c"], ",")
    assert not same_list("a, b, c,", ["a", "b", "c"], ",")
    assert not same_list("a, b", ["a", "b", "c"], ",")
