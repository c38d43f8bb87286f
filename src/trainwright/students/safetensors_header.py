"""Reads the header of a safetensors file that nobody vouches for, in plain Python and without its tensors.

The format is eight bytes of little-endian length, that much JSON, then the tensors without gaps: the README of
huggingface/safetensors, checked against safetensors 0.8.0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

HEADER_LIMIT = 1 << 20
"""Bytes of JSON. An adapter of 28 layers and seven modules has 60 kB."""

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes an element, for the types that an adapter may have."""

_LENGTH_BYTES, _MAX_DIMENSIONS = 8, 8


class HeaderError(ValueError):
    """What is wrong with a file, in one sentence."""


@dataclass(frozen=True)
class Entry:
    """One tensor: type, shape, and the bytes it takes of the whole file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """The tensors by name, in the order of their bytes, and the free-form metadata."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str] = field(default_factory=dict)


def parse_header(data: bytes) -> Header:
    """Return the header of a whole file; raise `HeaderError` unless the tensors fill the rest of it exactly."""
    if len(data) < _LENGTH_BYTES:
        raise HeaderError(f"the file has {len(data)} bytes, too few for a header")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise HeaderError(f"the header claims {length} bytes; at most {HEADER_LIMIT} are read")
    begin = _LENGTH_BYTES + length
    if begin > len(data):
        raise HeaderError(f"the header claims {length} bytes, more than the file has")
    content = strict_json(data[_LENGTH_BYTES:begin])
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("the metadata is not a table of strings")
    entries = sorted(((name, _entry(name, value, begin)) for name, value in content.items()), key=lambda e: e[1].start)
    position = begin
    for name, entry in entries:
        if entry.start != position:
            raise HeaderError(f"tensor {name[:80]!r} leaves a gap or overlaps another")
        position = entry.stop
    if position != len(data):
        raise HeaderError(f"the tensors end at byte {position} of {len(data)}")
    return Header(dict(entries), metadata)


def strict_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object; raise `HeaderError` for anything else, repeated keys, NaN and infinities included."""
    try:
        content = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise HeaderError(f"not JSON: {str(error)[:200] or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise HeaderError("not a JSON object")
    return content


def _entry(name: str, value: Any, begin: int) -> Entry:
    label = f"tensor {name[:80]!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"{label} does not have exactly a dtype, a shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise HeaderError(f"{label} has the type {str(dtype)[:20]!r}; known are {', '.join(BYTES)}")
    if not _sizes(shape) or len(shape) > _MAX_DIMENSIONS or not _sizes(offsets) or len(offsets) != 2:
        raise HeaderError(f"{label} has a shape or offsets that are no lists of sizes")
    if offsets[1] - offsets[0] != math.prod(shape) * BYTES[dtype]:
        raise HeaderError(f"{label} does not have the bytes that its shape takes")
    return Entry(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 48 for size in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
