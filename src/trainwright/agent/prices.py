"""Tokens and what they cost: kinds of tokens, the price table `prices.toml`, and dollars where a price is known."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pydantic import Field

from trainwright.section import Section

MILLION = 1_000_000


class Price(Section):
    """USD a million tokens by kind; None where it is not known."""

    prefill: float | None = Field(None, ge=0)
    """Prompt tokens."""
    cached: float | None = Field(None, ge=0)
    """Prompt tokens that the server had seen before; `prefill` where left out."""
    sample: float | None = Field(None, ge=0)
    """Sampled tokens."""
    train: float | None = Field(None, ge=0)
    """Tokens of a forward and backward pass, prompt included."""
    read: datetime.date | None = None
    """The day on which it was read."""
    source: str = ""
    """Where it was read."""


@dataclass(frozen=True)
class Tokens:
    """Tokens by kind; `prefill` does not contain `cached`."""

    prefill: int = 0
    cached: int = 0
    sample: int = 0
    train: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prefill + other.prefill,
            self.cached + other.cached,
            self.sample + other.sample,
            self.train + other.train,
        )

    def dollars(self, price: Price) -> float:
        """Return what they cost in USD, as far as the price is known."""
        cached = price.prefill if price.cached is None else price.cached
        rates = ((self.prefill, price.prefill), (self.cached, cached), (self.sample, price.sample))
        return sum(count * (rate or 0.0) for count, rate in (*rates, (self.train, price.train))) / MILLION

    def unpriced(self, price: Price) -> list[str]:
        """Return the kinds of tokens, of those there are, whose price is not known."""
        kinds = ("prefill", "sample", "train")
        return [kind for kind in kinds if getattr(self, kind) and getattr(price, kind) is None]


def price_of(model: str) -> Price:
    """Return the price of a model by its name on the server; an empty one when the table has none."""
    return _table().get(model, Price())


@cache
def _table() -> dict[str, Price]:
    text = files("trainwright.agent").joinpath("prices.toml").read_text(encoding="utf-8")
    return {model: Price.model_validate(entry) for model, entry in tomllib.loads(text).items()}
