"""The server over a student, by real HTTP requests: what it answers, what it refuses, and evaluation through it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import write_tiny_model

from trainwright.endpoint import Endpoint
from trainwright.environment.sandbox import Sandbox
from trainwright.measure import score_student
from trainwright.pools.worker import Worker
from trainwright.serve import StudentServer
from trainwright.students.huggingface import HuggingFaceStudent
from trainwright.students.nano import NanoStudent
from trainwright.suites.family import Item, Task

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"hf:{write_tiny_model(tmp_path_factory.mktemp('served') / 'model')}"


@pytest.fixture(scope="module")
def student(name: str) -> HuggingFaceStudent:
    return HuggingFaceStudent(name, Path(name.removeprefix("hf:")))


@pytest.fixture(scope="module")
def adapter(student: HuggingFaceStudent) -> bytes:
    copy = student.fresh()
    copy.add_adapter(4, 8.0, "all", seed=0)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return copy.save()


@pytest.fixture(scope="module")
def server(student: HuggingFaceStudent, adapter: bytes) -> Iterator[StudentServer]:
    yield from running(StudentServer(student, adapter))


def running(server: StudentServer) -> Iterator[StudentServer]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with server:
        yield server
        server.shutdown()


def ask(server: StudentServer, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Return status and answer of one request: GET without a body."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data), timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def chat(name: str, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "say something"}]
    return {"model": name, "messages": messages, "max_tokens": 8, "seed": 1} | changes


def test_the_models_are_the_student_and_its_adapter(server: StudentServer, name: str) -> None:
    status, answer = ask(server, "/models")
    assert (status, [model["id"] for model in answer["data"]]) == (200, [name, f"{name}:adapter"])


def test_a_chat_completion_is_what_the_student_samples(
    server: StudentServer, student: HuggingFaceStudent, name: str
) -> None:
    status, answer = ask(server, "/chat/completions", chat(name, n=3))
    prompt = student.encode([{"role": "user", "content": "say something"}])
    sampled = student.sample([prompt] * 3, temperature=1.0, max_tokens=8, generator=torch.Generator().manual_seed(1))
    assert status == 200
    assert answer["object"] == "chat.completion"
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [student.decode(row) for row in sampled.tokens_BT.tolist()]
    ends = [choice["finish_reason"] for choice in answer["choices"]]
    assert ends == ["stop" if finished else "length" for finished in sampled.finished_B]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == int(sampled.mask_BT.sum())


def test_the_seed_fixes_the_answer_and_no_seed_does_not(server: StudentServer, name: str) -> None:
    def text(**changes: Any) -> str:
        return str(ask(server, "/chat/completions", chat(name, max_tokens=24, **changes))[1]["choices"])

    assert text() == text()
    assert text(seed=2) != text()
    assert text(seed=None) != text(seed=None)


def test_the_adapter_answers_under_its_own_name(server: StudentServer, name: str) -> None:
    base, adapted = (ask(server, "/chat/completions", chat(model, max_tokens=24))[1]["choices"] for model in (
        name, f"{name}:adapter"
    ))  # fmt: skip
    assert base != adapted


def test_completions_take_text_token_ids_and_lists_of_either(
    server: StudentServer, student: HuggingFaceStudent, name: str
) -> None:
    tokens = student.encode_text("some text")
    answers = [
        ask(server, "/completions", {"model": name, "prompt": prompt, "seed": 4, "max_tokens": 6})[1]["choices"]
        for prompt in ("some text", tokens, ["some text"], [tokens])
    ]
    assert answers[0] == answers[1] == answers[2] == answers[3]
    two = ask(server, "/completions", {"model": name, "prompt": ["some text", "other"], "n": 2, "max_tokens": 6})[1]
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"model": "gpt-5"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 4000}]}, 400, "messages"),
        ({"temperature": 0}, 400, "temperature"),
        ({"temperature": True}, 400, "temperature"),
        ({"n": 0}, 400, "n"),
        ({"n": 2.0}, 400, "n"),
        ({"seed": -1}, 400, "seed"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"stream": True}, 400, "stream"),
        ({"prompt": "x"}, 400, "prompt"),
        ({"response_format": {}}, 400, "response_format"),
    ],
)
def test_a_request_that_can_t_be_met_names_the_field(
    server: StudentServer, name: str, changes: dict[str, Any], status: int, field: str
) -> None:
    got, answer = ask(server, "/chat/completions", chat(name, **changes))
    assert (got, answer["error"]["param"]) == (status, field)
    assert answer["error"]["type"] == "invalid_request_error"


def test_what_is_switched_off_may_be_said(server: StudentServer, name: str) -> None:
    assert ask(server, "/chat/completions", chat(name, stream=False, top_p=1.0, stop=None))[0] == 200


@pytest.mark.parametrize("prompt", [[999_999], [-1, 2], [[1, 2], [True]], 7, "", [[]]])
def test_a_prompt_that_is_no_prompt_is_refused(server: StudentServer, name: str, prompt: Any) -> None:
    assert ask(server, "/completions", {"model": name, "prompt": prompt, "max_tokens": 4})[0] == 400


def test_a_body_that_is_no_json_and_an_unknown_address_are_errors(server: StudentServer) -> None:
    assert ask(server, "/chat/completions", b"{")[0] == 400
    assert ask(server, "/chat/completions", [])[0] == 400
    assert ask(server, "/embeddings", {})[0] == 404
    assert ask(server, "/nothing")[0] == 404


class Letters:
    """A fake family whose items ask for a letter; a reply scores the share of its characters below `n`."""

    name, suite = "letters", "fake"

    def score(self, item: Item, reply: str) -> float:
        return sum(character < "n" for character in reply) / max(1, len(reply))


def items(count: int) -> list[Item]:
    return [Item(f"letter {n}", "") for n in range(count)]


def task(name: str) -> Task:
    return Task("fake", "letters", 0, {}, "", (), (), 8)


class Direct:
    """The direct path: a pool's worker, in this process and without a sandbox, which sampling does not use."""

    def __init__(self) -> None:
        self.worker = object.__new__(Worker)
        self.worker.sandbox = Sandbox("none")

    async def generate(
        self, student: str, weights: bytes | None, prompts: Any, *, seed: int, max_tokens: int, temperature: float
    ) -> list[str]:
        return self.worker.generate(student, weights, prompts, seed, max_tokens, temperature)


def test_scores_through_the_server_are_those_of_the_direct_path(
    server: StudentServer, name: str, adapter: bytes
) -> None:
    for weights, model in ((None, name), (adapter, f"{name}:adapter")):
        scores = [
            asyncio.run(score_student(path, Letters(), task(name), name, given, items(300), seed=2**63 - 100))  # type: ignore[arg-type]
            for path, given in ((Direct(), weights), (Endpoint(server.url, model), None))
        ]
        assert scores[0] == scores[1]
        assert 0 < sum(scores[0]) < 300


def test_a_request_a_prompt_gives_every_prompt_its_own_seed(server: StudentServer, name: str) -> None:
    one = Endpoint(server.url, name, batch=1)
    replies = asyncio.run(one.generate(name, None, ["same"] * 6, seed=0, max_tokens=16))
    assert len(set(replies)) == 6


def test_nano_students_are_served_as_well() -> None:
    student = NanoStudent.untrained("nano-48", seed=0)
    for server in running(StudentServer(student)):
        prompt = student.encode([{"role": "user", "content": "abc"}])
        answer = ask(server, "/completions", {"model": "nano-48", "prompt": prompt, "seed": 3, "max_tokens": 5})[1]
        sampled = student.sample([prompt], temperature=1.0, max_tokens=5, generator=torch.Generator().manual_seed(3))
        assert answer["choices"][0]["text"] == student.decode(sampled.tokens_BT[0].tolist())
        status, answer = ask(server, "/completions", {"model": "nano-48", "prompt": "abc"})
        assert (status, answer["error"]["message"]) == (400, "'prompt' must be token ids")


def test_the_command_serves_until_it_is_interrupted(name: str, adapter: bytes, tmp_path: Path) -> None:
    (tmp_path / "adapter").write_bytes(adapter)
    command = [sys.executable, "-m", "trainwright.cli", "serve", name, "--adapter", str(tmp_path / "adapter")]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" at ")[1].split()[0]
        with urllib.request.urlopen(f"{url}/models", timeout=60) as response:
            assert [model["id"] for model in json.loads(response.read())["data"]] == [name, f"{name}:adapter"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_an_adapter_that_does_not_fit_is_one_message(name: str, tmp_path: Path) -> None:
    (tmp_path / "adapter").write_bytes(b"nothing")
    command = [sys.executable, "-m", "trainwright.cli", "serve", name, "--adapter", str(tmp_path / "adapter")]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--adapter: not the saved weights of a student" in done.stderr
