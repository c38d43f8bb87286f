"""Names of pods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainwright.pools.runpod.names import PodName


def test_a_name_says_whose_and_until_when() -> None:
    name = PodName.new("0123abcd", 1_800_000_000.9)
    assert PodName.parse(str(name)) == name
    assert name.deadline == 1_800_000_000
    assert PodName.new("0123abcd", 1_800_000_000.9) != name


@given(st.text() | st.from_regex(r"trainwright-.*"))
def test_no_strangers_pod_is_ours(text: str) -> None:
    name = PodName.parse(text)
    assert name is None or str(name) == text
