from __future__ import annotations

import json
import socket
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.environment.protocol import (
    FRAME_LIMIT,
    ConnectionClosed,
    ProtocolError,
    decode_body,
    encode_frame,
    receive_frame,
    send_frame,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
OBJECTS = st.dictionaries(
    TEXT, st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)
)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


@settings(max_examples=50)
@given(st.lists(OBJECTS, max_size=3))
def test_what_is_sent_is_received_in_order(payloads: list[dict[str, object]]) -> None:
    ours, theirs = pair()
    with ours, theirs:
        for payload in payloads:
            send_frame(ours, encode_frame(payload))
        assert [receive_frame(theirs) for _ in payloads] == payloads


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_object_or_an_error(body: bytes) -> None:
    try:
        payload = decode_body(body)
    except ProtocolError:
        return
    assert isinstance(payload, dict)
    encode_frame(payload)


@settings(max_examples=50)
@given(OBJECTS, st.data())
def test_a_cut_frame_is_a_closed_connection(payload: dict[str, object], data: st.DataObject) -> None:
    frame = encode_frame(payload)
    cut = data.draw(st.integers(0, len(frame) - 1))
    ours, theirs = pair()
    with theirs:
        ours.sendall(frame[:cut])
        ours.close()
        with pytest.raises(ConnectionClosed):
            receive_frame(theirs)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b"{",
        b"{} {}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
    ],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}, b"bytes", nested(100_000)])
def test_payloads_that_are_never_sent(value: object) -> None:
    with pytest.raises(ProtocolError):
        encode_frame({"value": value})


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=str(FRAME_LIMIT)):
        encode_frame({"text": "x" * FRAME_LIMIT})


def test_an_announced_length_over_the_limit_is_refused_before_it_is_read() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.sendall(struct.pack(">I", FRAME_LIMIT + 1))
        with pytest.raises(ProtocolError, match="announced"):
            receive_frame(theirs)


def test_waiting_for_a_frame_ends_at_the_deadline() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.sendall(encode_frame({"a": 1})[:-1])
        with pytest.raises(TimeoutError):
            receive_frame(theirs, time.monotonic() + 0.05)


def test_sending_to_one_who_does_not_read_ends_at_the_deadline() -> None:
    ours, theirs = pair()
    with ours, theirs, pytest.raises(TimeoutError):
        send_frame(ours, encode_frame({"text": "x" * (FRAME_LIMIT - 100)}), time.monotonic() + 0.05)


def test_sending_to_one_who_is_gone_is_a_closed_connection() -> None:
    ours, theirs = pair()
    theirs.close()
    with ours, pytest.raises(ConnectionClosed):
        send_frame(ours, encode_frame({}))


def test_large_objects_and_escapes_pass() -> None:
    payload = {"text": "\u0000\u2028\U0001f600" + "x" * 1_000_000, "number": 0.1}
    body = encode_frame(payload)[4:]
    assert decode_body(body) == payload == json.loads(body)
