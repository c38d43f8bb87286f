from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.suites.qwen.transform import MEANING, WORLD, Transform, apply, draw_text

WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)


@pytest.mark.parametrize(
    ("rule", "text", "count", "expected"),
    [
        ("reverse", "cold tea", 0, "aet dloc"),
        ("words", "cold tea", 0, "dloc aet"),
        ("vowels", "cold tea", 0, "cld t"),
        ("rotate", "abcdef", 2, "cdefab"),
        ("pairs", "abcde", 0, "badce"),
        ("skip", "abcde", 0, "ace"),
    ],
)
def test_each_rule_does_what_its_wording_says(rule: str, text: str, count: int, expected: str) -> None:
    assert apply(rule, text, count) == expected


@given(WORDS, st.integers(1, 4))
def test_rules_keep_what_they_should(text: str, count: int) -> None:
    for rule in ("reverse", "words", "pairs"):
        assert apply(rule, apply(rule, text, 0), 0) == text
    assert sorted(apply("rotate", text, count)) == sorted(text)
    assert len(apply("skip", text, 0)) == (len(text) + 1) // 2
    assert apply("vowels", apply("vowels", text, 0), 0) == apply("vowels", text, 0)


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="shout"):
        apply("shout", "abc", 0)


@pytest.mark.parametrize("world", [WORLD, Transform().hidden_world()], ids=["visible", "hidden"])
def test_texts_have_the_length_of_their_world_and_no_space_at_an_end(world: Any) -> None:
    rng = random.Random(1)
    for rule in MEANING:
        for _ in range(300):
            text = draw_text((rule,), world, rng)
            assert world.lengths[0] <= len(text) <= world.lengths[1]
            assert text == text.strip()
            assert rule != "words" or " " in text
            assert rule in ("reverse", "words", "vowels") or " " not in text
            assert "" not in apply("vowels", text, 0).split(" ")


def test_pairs_of_rules_are_asked_only_where_the_world_has_them() -> None:
    assert not set(WORLD.pairs) & set(Transform().hidden_world().pairs)
