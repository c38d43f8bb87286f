"""Evaluation over a server that misbehaves: whatever is missing is an infrastructure fault, never a wrong answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import endpoint
from trainwright.endpoint import Endpoint
from trainwright.errors import InfraFault
from trainwright.students.nano import NanoStudent


class BrokenServer(HTTPServer):
    """A fake server: it answers each request with the next of its scripted answers, the last one ever after."""

    answers: list[tuple[int, bytes]]
    asked: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: BrokenServer

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenServer]:
    monkeypatch.setattr(endpoint, "base_student", lambda name: NanoStudent.untrained(name, seed=0))
    server = BrokenServer(("127.0.0.1", 0), _Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        yield server
        server.shutdown()


def choices(*texts: Any, reason: str = "stop") -> bytes:
    listed = [{"index": n, "text": text, "finish_reason": reason} for n, text in enumerate(texts)]
    return json.dumps({"choices": listed}).encode()


def replies(server: BrokenServer, *answers: tuple[int, bytes]) -> list[str]:
    server.answers = list(answers)
    one = Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", "served")
    return asyncio.run(one.generate("nano-48", None, ["abc", "de"], seed=7, max_tokens=4))


def test_a_request_has_the_students_own_prompt_tokens_and_all_of_the_sampling(server: BrokenServer) -> None:
    assert replies(server, (200, choices("x", ""))) == ["x", ""]
    student = NanoStudent.untrained("nano-48", seed=0)
    prompts = [student.encode([{"role": "user", "content": text}]) for text in ("abc", "de")]
    expected = {"model": "served", "prompt": prompts, "seed": 7, "max_tokens": 4, "temperature": 1.0, "n": 1}
    assert server.asked == [expected | {"top_p": 1.0, "top_k": -1}]


def test_choices_are_taken_by_their_index(server: BrokenServer) -> None:
    swapped = json.loads(choices("first", "second"))
    swapped["choices"].reverse()
    assert replies(server, (200, json.dumps(swapped).encode())) == ["first", "second"]


@pytest.mark.parametrize(
    "answer",
    [
        choices("only one"),
        choices("one", None),
        choices("one", "two", "three"),
        choices("one", "two", reason="error"),
        choices("one", "two").replace(b'"index": 1', b'"index": 0'),
        b"{}",
        b"[]",
        b"not json",
        b"",
    ],
)
def test_a_missing_completion_is_an_infrastructure_fault(server: BrokenServer, answer: bytes) -> None:
    with pytest.raises(InfraFault, match="the server's answer"):
        replies(server, (200, answer))


def test_a_server_that_stumbles_is_asked_again_with_the_same_seed(server: BrokenServer) -> None:
    assert replies(server, (503, b"busy"), (500, b"oops"), (200, choices("x", "y"))) == ["x", "y"]
    assert server.asked[0] == server.asked[1] == server.asked[2]


def test_a_server_that_stays_down_or_refuses_is_an_infrastructure_fault(server: BrokenServer) -> None:
    with pytest.raises(InfraFault, match="answers 503: busy"):
        replies(server, (503, b"busy"))
    assert len(server.asked) == endpoint.ATTEMPTS
    with pytest.raises(InfraFault, match="answers 404"):
        replies(server, (404, b"no such model"))
    assert len(server.asked) == endpoint.ATTEMPTS + 1


def test_no_server_at_all_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "base_student", lambda name: NanoStudent.untrained(name, seed=0))
    one = Endpoint("http://127.0.0.1:1/v1", "served")
    with pytest.raises(InfraFault, match="can't be reached"):
        asyncio.run(one.generate("nano-48", None, ["abc"], seed=0, max_tokens=4))


def test_weights_can_t_be_sent(server: BrokenServer) -> None:
    one = Endpoint("http://127.0.0.1:1/v1", "served")
    with pytest.raises(ValueError, match="name its adapter as the model"):
        asyncio.run(one.generate("nano-48", b"weights", ["abc"], seed=0, max_tokens=4))


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "index", "text", "finish_reason"]), inner, max_size=4
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_answer_is_ever_read_as_something_else(data: bytes) -> None:
    try:
        texts = endpoint._texts(data, 2)
    except InfraFault:
        return
    assert len(texts) == 2
    assert all(isinstance(text, str) for text in texts)
