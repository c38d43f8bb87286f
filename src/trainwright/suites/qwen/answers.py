"""Strict reading of replies: the one answer block, and JSON without room for tricks.

A benchmark that a student is trained against must not pay for form: two blocks, a duplicated key, `true` for `1` or a
full-width digit is not an answer. Everything here returns a value or says "no answer"; nothing raises on odd input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal

REPLY_FORMAT = "Write the final result between <answer> and </answer>."
MAX_CHARACTERS = 4000
"""A longer block is no answer: the longest right one in the suite has about 500 characters."""

_TAG = re.compile(r"<\s*/?\s*answer[^>]*>", re.IGNORECASE)
_SPACE = " \t\r\n"


class NotAnswered(ValueError):
    """A block that does not hold what the format asks for."""


def answer_block(reply: str) -> str | None:
    """Return the text of the only answer block, stripped of ASCII white space.

    None when there is no block, more than one tag of a kind in any spelling, or more than `MAX_CHARACTERS` inside.
    """
    if _TAG.findall(reply) != ["<answer>", "</answer>"]:
        return None
    inside = reply.partition("<answer>")[2].partition("</answer>")[0].strip(_SPACE)
    return inside if len(inside) <= MAX_CHARACTERS else None


def parse_json(text: str) -> object:
    """Return the JSON value of `text`, fractions as `Decimal`; raise `NotAnswered` for anything but strict JSON.

    Duplicate keys, NaN and infinities (which Python's parser lets pass), absurd nesting and absurd numbers are refused.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse, parse_float=_decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise NotAnswered(str(error)) from None


def same_json(left: object, right: object) -> bool:
    """Return whether two parsed JSON values are equal: numbers by value, everything else by type and value.

    Python's own `==` takes `True` for `1`, which would make a type error in a reply a right answer.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    if _is_number(left) and _is_number(right):
        return left == right
    return type(left) is type(right) and left == right


def same_list(text: str, expected: Sequence[str], separator: str) -> bool:
    """Return whether `text` is exactly the expected parts between separators, spaces around each part ignored."""
    return [part.strip(_SPACE) for part in text.split(separator)] == list(expected)


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _decimal(digits: str) -> Decimal:
    value = Decimal(digits)
    if abs(value.adjusted()) > 30:
        raise NotAnswered("a number out of range")
    return value


def _refuse(name: str) -> object:
    raise NotAnswered(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise NotAnswered("a key is given twice")
    return value
