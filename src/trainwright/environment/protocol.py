"""Frames between the trusted and the untrusted side: a 4-byte big-endian length, then one JSON object.

Both sides check both directions. A frame that is too large, not UTF-8, not JSON, too deeply nested, not an object, or
that holds NaN, an infinity or a lone surrogate is a `ProtocolError`. Nothing is ever pickled. This module runs on both
sides and uses the standard library only.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NoReturn

FRAME_LIMIT = 16 * 1024 * 1024
"""Bytes of JSON a frame may hold."""

_LENGTH = struct.Struct(">I")


class ProtocolError(Exception):
    """The other side sent, or we were about to send, what is not a frame."""


class ConnectionClosed(Exception):
    """The other side hung up."""


def encode_frame(payload: Mapping[str, Any]) -> bytes:
    """Return the frame of a JSON object; raise `ProtocolError` when it has none."""
    try:
        body = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise ProtocolError(f"not a JSON object: {error}") from None
    if len(body) > FRAME_LIMIT:
        raise ProtocolError(f"{len(body)} bytes in one frame, more than {FRAME_LIMIT}")
    return _LENGTH.pack(len(body)) + body


def decode_body(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object of a frame's body; raise `ProtocolError` when it is anything else."""
    try:
        payload = json.loads(body.decode(), parse_constant=_refuse_constant, parse_float=_finite)
        if b"\\u" in body:
            json.dumps(payload, ensure_ascii=False).encode()  # an escape can hide a lone surrogate
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {str(error)[:200]}") from None
    if not isinstance(payload, dict):
        raise ProtocolError(f"a JSON {type(payload).__name__} where an object is due")
    return payload


def send_frame(channel: socket.socket, frame: bytes, deadline: float | None = None) -> None:
    """Send one frame before `deadline` (of `time.monotonic`); raise `TimeoutError` or `ConnectionClosed`."""
    channel.settimeout(_remaining(deadline))
    try:
        channel.sendall(frame)
    except (BrokenPipeError, ConnectionResetError):
        raise ConnectionClosed from None


def receive_frame(channel: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """Return the next frame's object before `deadline`; raise as `send_frame` and `decode_body` do."""
    (length,) = _LENGTH.unpack(_receive(channel, _LENGTH.size, deadline))
    if length > FRAME_LIMIT:
        raise ProtocolError(f"a frame of {length} bytes announced, more than {FRAME_LIMIT}")
    return decode_body(_receive(channel, length, deadline))


def _receive(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    buffer = bytearray()
    while len(buffer) < size:
        channel.settimeout(_remaining(deadline))
        try:
            part = channel.recv(min(size - len(buffer), 1 << 18))
        except ConnectionResetError:
            part = b""
        if not part:
            raise ConnectionClosed
        buffer += part
    return buffer


def _remaining(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:30]} is not a finite number")
    return number
