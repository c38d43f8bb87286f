"""`trainwright serve`: a small OpenAI-compatible server over one student, on the standard library's HTTP server.

| request | answer |
|---|---|
| `GET /v1/models` | the student, and with an adapter `STUDENT:adapter` |
| `POST /v1/chat/completions` | `messages`, in the student's chat template with thinking off |
| `POST /v1/completions` | `prompt`: a text, token ids, or a list of either; no template (nano: token ids only) |

Both take `model`, `n`, `seed`, `temperature` (0.01 to 2) and `max_tokens` (or `max_completion_tokens`); what else asks
for something is an error rather than left out in silence. Completions of one request are sampled together: prompt i,
choice k draws the random numbers i * n + k of the seed, as `Worker.generate` does. One request at a time is worked on.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainwright.errors import ConfigError
from trainwright.students.student import Student, UnreadablePrompt

if TYPE_CHECKING:
    import torch

MAX_BODY = 16 * 1024 * 1024
MAX_SEQUENCES = 1024
DEFAULT_MAX_TOKENS = 256
KNOWN = {"model", "messages", "prompt", "n", "seed", "temperature", "max_tokens", "max_completion_tokens", "user"}
OFF = {"stream": False, "logprobs": None, "top_p": 1, "top_k": -1, "echo": False, "best_of": 1, "frequency_penalty": 0}
OFF |= {"presence_penalty": 0, "stop": None, "tools": None, "logit_bias": None, "suffix": None}
"""What a client may say explicitly as long as it leaves it switched off."""


@runtime_checkable
class ReadsText(Protocol):
    """A student that takes text without a chat template around it."""

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...


class BadRequest(Exception):
    """A request that can't be answered: HTTP status, sentence, and the field it is about."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.field, self.status = message, field, status


@dataclass(frozen=True)
class Request:
    """What both kinds of request share, checked."""

    model: str
    n: int
    seed: int
    temperature: float
    max_tokens: int


class StudentServer(ThreadingHTTPServer):
    """Serves a base student and, if given, the same student with an adapter. `port` 0 takes a free one.

    Raises `OSError` when the address can't be had, `ValueError` when the adapter does not fit.
    """

    daemon_threads = True

    def __init__(self, student: Student, adapter: bytes | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.models = {student.name: student}
        if adapter is not None:
            adapted = student.fresh()
            adapted.load(adapter)
            self.models[f"{student.name}:adapter"] = adapted
        self.working = threading.Lock()
        self.started = int(time.time())
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Return the address for `base_url` of a client."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: StudentServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a byte from the client

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            return self._error(BadRequest(f"no such address: {self.path[:200]}", status=404))
        models = [
            {"id": name, "object": "model", "created": self.server.started, "owned_by": "trainwright"}
            for name in self.server.models
        ]
        return self._send(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
        answers = {"/v1/chat/completions": self._chat, "/v1/completions": self._completions}
        try:
            body = self._body()
            answer = answers.get(self.path.rstrip("/"))
            if answer is None:
                raise BadRequest(f"no such address: {self.path[:200]}", status=404)
            result = answer(body)
        except BadRequest as error:
            return self._error(error)
        except UnreadablePrompt as error:
            return self._error(BadRequest(str(error), "messages" if "chat" in self.path else "prompt"))
        except Exception as error:  # a bug of ours, or the memory: the client must learn that there is no answer
            return self._error(BadRequest(f"{type(error).__name__}: {error}", status=500))
        return self._send(200, result)

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        request = _checked(body, self.server.models, other="prompt")
        student = self.server.models[request.model]
        prompts = [student.encode(_messages(body.get("messages")))]
        choices, usage = self._sampled(student, prompts, request)
        for choice in choices:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        return _envelope("chat.completion", request.model, choices, usage)

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        request = _checked(body, self.server.models, other="messages")
        student = self.server.models[request.model]
        prompts = [_tokens(student, prompt) for prompt in _prompts(body.get("prompt"))]
        choices, usage = self._sampled(student, prompts, request)
        return _envelope("text_completion", request.model, choices, usage)

    def _sampled(
        self, student: Student, prompts: Sequence[list[int]], request: Request
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        if len(prompts) * request.n > MAX_SEQUENCES:
            raise BadRequest(f"{len(prompts)} prompts x n = {request.n}: at most {MAX_SEQUENCES} completions", "n")
        with self.server.working:
            sampled = _sample(student, [prompt for prompt in prompts for _ in range(request.n)], request)
        lengths = sampled.mask_BT.sum(1).long().tolist()
        choices = [
            {
                "index": index,
                "text": student.decode(row[:length]),
                "finish_reason": "stop" if finished else "length",
                "logprobs": None,
            }
            for index, (row, length, finished) in enumerate(
                zip(sampled.tokens_BT.tolist(), lengths, sampled.finished_B.tolist(), strict=True)
            )
        ]
        prompt_tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": sum(lengths)}
        return choices, usage | {"total_tokens": prompt_tokens + sum(lengths)}

    def _body(self) -> dict[str, Any]:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True  # what follows is not read
            raise BadRequest(f"a request needs a Content-Length of at most {MAX_BODY} bytes", status=413)
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            raise BadRequest("the body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequest("the body is not a JSON object")
        return body

    def _error(self, error: BadRequest) -> None:
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        content = {"message": error.message, "type": kind, "param": error.field, "code": error.status}
        self._send(error.status, {"error": content})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a benchmark makes thousands of requests."""


def _sample(student: Student, prompts: Sequence[Sequence[int]], request: Request) -> Any:
    import torch

    generator: torch.Generator = torch.Generator().manual_seed(request.seed)
    return student.sample(prompts, temperature=request.temperature, max_tokens=request.max_tokens, generator=generator)


def _checked(body: dict[str, Any], models: dict[str, Student], other: str) -> Request:
    """Return the request without its prompt; raise `BadRequest` that names the field."""
    for field, value in body.items():
        if field in OFF and (value == OFF[field] or value is None):
            continue
        if field not in KNOWN or field == other:
            raise BadRequest(f"{field!r} is not supported here", field)
    model = body.get("model")
    if not isinstance(model, str) or model not in models:
        raise BadRequest(f"no model {str(model)[:100]!r}; there is {', '.join(models)}", "model", status=404)
    longest = body.get("max_completion_tokens", body.get("max_tokens"))
    return Request(
        model,
        n=_number(body.get("n"), "n", 1, 1, MAX_SEQUENCES, int),
        seed=_number(body.get("seed"), "seed", uuid.uuid4().int >> 65, 0, 2**63 - 1, int),
        temperature=float(_number(body.get("temperature"), "temperature", 1.0, 0.01, 2.0, float)),
        max_tokens=_number(longest, "max_tokens", DEFAULT_MAX_TOKENS, 1, 32_768, int),
    )


def _number(value: Any, field: str, default: Any, low: float, high: float, kind: type) -> Any:
    if value is None:
        return default
    fits = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        word = "an integer" if kind is int else "a number"
        raise BadRequest(f"{field} = {str(value)[:40]} must be {word} from {low:g} to {high:g}", field)
    return value


def _messages(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise BadRequest("'messages' must be a list of messages", "messages")
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant"):
            raise BadRequest("a message has a role: system, user or assistant", "messages")
        if set(message) != {"role", "content"} or not isinstance(message["content"], str):
            raise BadRequest("a message has a role and a content that is text, nothing else", "messages")
    return value


def _prompts(value: Any) -> list[Any]:
    """Return the prompts of a completions request: each a text or a list of token ids."""
    if isinstance(value, list) and value and not _are_tokens(value):
        return value
    return [value]


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _tokens(student: Student, prompt: Any) -> list[int]:
    if _are_tokens(prompt):
        size = _vocabulary(student)
        if not all(0 <= token < size for token in prompt):
            raise BadRequest(f"a token is not one of the {size} of {student.name}", "prompt")
        return list(prompt)
    if isinstance(prompt, str) and isinstance(student, ReadsText):
        return student.encode_text(prompt)
    kinds = "a text, a list of token ids, or a list of either"
    raise BadRequest(f"'prompt' must be {kinds if isinstance(student, ReadsText) else 'token ids'}", "prompt")


def _vocabulary(student: Any) -> int:
    config = student.config
    return int(config.vocab_size if hasattr(config, "vocab_size") else config.vocab)


def _envelope(kind: str, model: str, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }


def serve_forever(name: str, adapter: bytes | None, host: str, port: int) -> None:
    """Serve a student by name until interrupted; raise `ConfigError`."""
    from trainwright.students.registry import base_student, prepare_student

    prepare_student(name)
    try:
        server = StudentServer(base_student(name), adapter, host, port)
    except ValueError as error:
        raise ConfigError(f"--adapter: {error}") from None
    print(f"serving {', '.join(server.models)} at {server.url} (stop with Ctrl-C)", flush=True)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
