"""Dollars from tokens, where a price is known, and a table whose entries say where they are from."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.agent import prices
from trainwright.agent.prices import Price, Tokens, price_of

counts = st.integers(0, 10**9)
tokens = st.builds(Tokens, counts, counts, counts, counts)


@given(tokens, tokens)
def test_dollars_add_up(first: Tokens, second: Tokens) -> None:
    price = Price(prefill=1.0, cached=0.2, sample=3.0, train=2.0)
    assert (first + second).dollars(price) == pytest.approx(first.dollars(price) + second.dollars(price))


def test_dollars_are_per_million() -> None:
    price = Price(prefill=1.0, cached=0.2, sample=3.0, train=2.0)
    assert Tokens(10**6, 10**6, 10**6, 10**6).dollars(price) == pytest.approx(6.2)
    assert Tokens(cached=10**6).dollars(Price(prefill=1.0)) == pytest.approx(1.0)


@given(tokens)
def test_what_has_no_price_is_counted_and_named(spent: Tokens) -> None:
    assert spent.dollars(Price()) == 0.0
    assert spent.unpriced(Price()) == [kind for kind in ("prefill", "sample", "train") if getattr(spent, kind)]
    assert "train" not in spent.unpriced(Price(train=1.0))


def test_every_entry_says_when_and_where_it_was_read() -> None:
    assert "Qwen/Qwen3.6-35B-A3B" in prices._table()
    for model, price in prices._table().items():
        assert price.read is not None, model
        assert datetime.date(2026, 1, 1) < price.read
        assert price.source, model
        assert price.cached is None or price.prefill is None or price.cached <= price.prefill


def test_an_unknown_model_has_an_empty_price() -> None:
    assert price_of("nobody/nothing") == Price()
