"""The replies with which the gate tries a reward: varied junk, the row's own fields, and those in common wrappings.

The gate does not know the right reply. A job keeps it in a field of its data in nearly every case, so the fields of
the row, sent back as replies, make a right exact-match reward show two values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainwright.environment.environment import Row

FIELDS_TRIED = 8
FIELD_CHARACTERS = 4096
TAGS_TRIED = 6

_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9_-]{0,31})>")


def plain_replies(row: Row, other: Row) -> list[str]:
    """Return junk, the prompt, this row's fields and another row's, each once."""
    prompt = row.messages[-1]["content"]
    junk = ["", "a", "0", "no idea", "abcdefghij" * 20, prompt, prompt[::-1]]
    return list(dict.fromkeys([*junk, *_fields(row), *_fields(other)]))


def wrapped_replies(row: Row, source: str) -> list[str]:
    """Return this row's fields as answers are commonly wrapped, with the tags that the job's source mentions."""
    tags = [*dict.fromkeys(_TAG.findall(source)), "answer"][:TAGS_TRIED]
    wrappers: Sequence[tuple[str, str]] = (
        *((f"<{tag}>", f"</{tag}>") for tag in tags),
        ("\\boxed{", "}"),
        ("Answer: ", ""),
        ("#### ", ""),
        ("```\n", "\n```"),
        ("The answer is ", "."),
        ('{"answer": "', '"}'),
    )
    wrapped = [before + value + after for value in _fields(row) for before, after in wrappers]
    return ["", *dict.fromkeys(wrapped)]


def _fields(row: Row) -> list[str]:
    values = [value for value in row.fields.values() if len(value) <= FIELD_CHARACTERS]
    return values[:FIELDS_TRIED]
