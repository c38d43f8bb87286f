"""A fake OpenAI-compatible server on a real socket: it answers by a script, and does what servers do on bad days."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Answer = Callable[[dict[str, Any]], str]
Act = Callable[["Handler"], None]
KEY = "sk-test-0123456789"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    fake: FakeOpenAI
    body: dict[str, Any]

    def reply(self, status: int, content: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        known = not self.fake.key or self.headers.get("Authorization") == f"Bearer {self.fake.key}"
        self.reply(200 if known else 401, {"data": [{"id": "fake"}]})

    def do_POST(self) -> None:
        fake = self.fake
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            fake.requests.append((time.monotonic(), dict(self.headers), self.body))
            fake.open += 1
            fake.most_open = max(fake.most_open, fake.open)
            act = fake.acts.pop(0) if fake.acts else complete
        try:
            act(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with fake.lock:
                fake.open -= 1

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class FakeOpenAI:
    """The server; `acts` are what it does with the next requests, after that it answers."""

    answer: Answer = lambda body: "hello"
    key: str = ""
    acts: list[Act] = field(default_factory=list)
    requests: list[tuple[float, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    lock: Any = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> FakeOpenAI:
        handler = type("BoundHandler", (Handler,), {"fake": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"


def completion(text: str | None, **choice: Any) -> dict[str, Any]:
    """Return a chat completion as a server writes it: 1000 prompt tokens, 400 of them cached, 50 sampled."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 400}}
    message = {"role": "assistant", "content": text}
    whole = {"index": 0, "finish_reason": "stop", "message": message} | choice
    return {"id": "one", "model": "fake-2", "choices": [whole], "usage": usage}


# What it does with a request


def complete(handler: Handler) -> None:
    handler.reply(200, completion(handler.fake.answer(handler.body)))


def says(content: bytes | dict[str, Any], status: int = 200, **headers: str) -> Act:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(status, content, named)


def error(status: int, code: str = "", message: str = "no", **headers: str) -> Act:
    return says({"error": {"code": code, "message": message}}, status, **headers)


def hang(handler: Handler) -> None:
    handler.fake.closing.wait(60)
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """Send a byte now and then, for ever."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.fake.closing.wait(0.05):
        handler.wfile.write(b" ")


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def half(handler: Handler) -> None:
    """Hang up in the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def huge(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    for _ in range(1 << 10):
        handler.wfile.write(b" " * (1 << 20))
