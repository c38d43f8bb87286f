from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.environment.answers import REASONS, fault, parse_rewards, parse_rows, told_fault
from trainwright.errors import JobFault

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NEARLY_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": JSON}), max_size=2
            )
            | JSON,
            "fields": st.dictionaries(st.text(max_size=4), st.text(max_size=4) | JSON, max_size=2) | JSON,
        }
    )
    | JSON,
    max_size=3,
)
NEARLY_REWARDS = st.lists(
    st.fixed_dictionaries({"parts": st.dictionaries(st.text(max_size=4), JSON, max_size=3) | JSON, "seconds": JSON})
    | JSON,
    max_size=3,
)


def row(content: object = "2+2", role: object = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}], "fields": {"answer": "4"}}


def reward(**parts: object) -> dict[str, Any]:
    return {"parts": parts, "seconds": 0.25}


@given(NEARLY_ROWS | JSON)
def test_rows_are_well_formed_or_a_fault(rows: Any) -> None:
    try:
        found = parse_rows({"rows": rows}, first=5, wanted=3, prompt_characters=10)
    except JobFault:
        return
    assert [row.index for row in found] == list(range(5, 5 + len(found)))
    assert all(message["role"] in ("system", "user", "assistant") for row in found for message in row.messages)
    assert all(sum(len(message["content"]) for message in row.messages) <= 10 for row in found)


@given(NEARLY_REWARDS | JSON)
def test_rewards_are_bounded_floats_or_a_fault(rewards: Any) -> None:
    try:
        found = parse_rewards({"rewards": rewards}, wanted=1, elapsed=0.5, bound=10.0)
    except JobFault:
        return
    assert len(found) == 1
    assert -10 <= found[0].total <= 10
    assert found[0].total == sum(found[0].parts.values())
    assert all(type(value) is float for value in found[0].parts.values())
    assert 0 <= found[0].seconds <= 0.5


@given(JSON)
def test_whatever_is_told_becomes_a_fault_that_is_safe_to_print(told: Any) -> None:
    found = told_fault(told)
    assert found.code in REASONS
    assert found.message.isprintable() or found.message == ""


def test_a_told_fault_keeps_code_message_and_line() -> None:
    found = told_fault({"code": "reward_raised", "message": "it raised\x1b[31m\nValueError", "line": 7})
    assert (found.code, found.message, found.file, found.line) == (
        "reward_raised",
        "it raised [31m ValueError",
        "environment.py",
        7,
    )
    assert str(found) == "environment.py:7: it raised [31m ValueError [reward_raised]"


def test_a_long_message_is_cut() -> None:
    assert len(fault("output", "x" * 10_000).message) == 500


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row()] * 4, "protocol"),
        ([row(role="tool")], "protocol"),
        ([row(content=None)], "protocol"),
        ([{"messages": [], "fields": {}}], "protocol"),
        ([row() | {"fields": {"answer": 4}}], "protocol"),
        ([row("x" * 101)], "row_too_large"),
    ],
)
def test_rows_that_are_refused(rows: object, code: str) -> None:
    with pytest.raises(JobFault) as caught:
        parse_rows({"rows": rows}, first=0, wanted=3, prompt_characters=100)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], "protocol"),
        ([reward(a=1.0), reward(a=1.0)], "protocol"),
        ([reward()], "protocol"),
        ([reward(a="1.0")], "protocol"),
        ([reward(a=True)], "protocol"),
        ([reward(a=None)], "protocol"),
        ([{"parts": {"a": 1.0}}], "protocol"),
        ([reward(a=10**400)], "reward_not_finite"),
        ([reward(a=1e308)], "reward_out_of_range"),
        ([reward(a=1e308, b=1e308)], "reward_out_of_range"),
        ([reward(a=1e308, b=-1e308)], "reward_out_of_range"),
        ([reward(a=-1000.5)], "reward_out_of_range"),
        ([reward(**{f"r{n}": 0.0 for n in range(65)})], "output"),
        ([reward(**{"r" * 101: 0.0})], "output"),
    ],
)
def test_rewards_that_are_refused(found: object, code: str) -> None:
    with pytest.raises(JobFault) as caught:
        parse_rewards({"rewards": found}, wanted=1, elapsed=1.0, bound=1000.0)
    assert caught.value.code == code


def test_a_reward_is_the_sum_of_its_parts() -> None:
    [found] = parse_rewards({"rewards": [reward(a=1, b=0.5)]}, wanted=1, elapsed=1.0, bound=1000.0)
    assert (found.total, found.parts, found.seconds) == (1.5, {"a": 1.0, "b": 0.5}, 0.25)
