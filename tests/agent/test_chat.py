"""The agent behind an OpenAI-compatible server, against a real socket: answers, costs, and a server's bad days."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from fake_openai import KEY, FakeOpenAI, complete, completion, drip, error, half, hang, hang_up, huge, says
from hypothesis import given
from hypothesis import strategies as st

from trainwright.agent.chat import ChatPolicy, preflight
from trainwright.agent.chat_client import read_reply, retry_after
from trainwright.agent.chat_settings import OPENAI, ChatSettings, chat_changes
from trainwright.agent.policy import Completion, is_concurrent, is_trainable
from trainwright.agent.prices import Price, Tokens
from trainwright.config import RunConfig
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.estimate import estimate_run
from trainwright.messages import Message

BRIEF: list[Message] = [{"role": "user", "content": "write a job"}]
QUICK = {"pause": 0.01, "timeout": 20.0}


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def settings_for(server: FakeOpenAI, **changes: Any) -> ChatSettings:
    return ChatSettings.model_validate({"model": "fake", "base_url": server.url} | QUICK | changes)


def ask(
    server: FakeOpenAI, folder: Path, conversations: list[list[Message]] | None = None, key: str = "", **changes: Any
) -> list[Completion]:
    """Return what a policy made for this alone answers."""
    policy = ChatPolicy(settings_for(server, **changes), key, folder / "chat.jsonl")

    async def go() -> list[Completion]:
        try:
            return await policy.sample(conversations or [BRIEF], 7)
        finally:
            await policy.close()

    return asyncio.run(go())


def test_each_conversation_gets_its_answer(server: FakeOpenAI, tmp_path: Path) -> None:
    server.answer = lambda body: body["messages"][-1]["content"].upper()
    told: list[list[Message]] = [[*BRIEF, {"role": "assistant", "content": "x"}, {"role": "user", "content": "again"}]]
    many: list[list[Message]] = [[{"role": "user", "content": f"task {number}"}] for number in range(20)]
    answers = ask(server, tmp_path, told + many, in_flight=3)
    assert [answer.text for answer in answers] == ["AGAIN", *(f"TASK {number}" for number in range(20))]
    assert all(answer.finished and not answer.tokens for answer in answers)
    assert server.most_open <= 3
    seeds = [body["seed"] for _, _, body in server.requests]
    assert len(set(seeds)) == 21
    assert told[0] in [body["messages"] for _, _, body in server.requests]


def test_the_same_seed_asks_the_same(server: FakeOpenAI, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        ask(server, tmp_path / name)
    (_, _, one), (_, _, other) = server.requests
    assert one == other == {"model": "fake", "messages": BRIEF, "max_tokens": 8192, "seed": one["seed"]}


def test_settings_shape_the_request(server: FakeOpenAI, tmp_path: Path) -> None:
    more = {"temperature": 0.0, "max_tokens": 99, "length_field": "max_completion_tokens", "send_seed": False}
    ask(server, tmp_path, key=KEY, **more, body={"reasoning_effort": "low"})
    ((_, headers, body),) = server.requests
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "fake", "messages": BRIEF, "max_completion_tokens": 99, "temperature": 0.0, "reasoning_effort": "low"
    }  # fmt: skip
    assert "max_completion_tokens" in ChatSettings(model="m").request(BRIEF, 1)


def test_costs_come_from_the_servers_counts(server: FakeOpenAI, tmp_path: Path) -> None:
    price = {"prefill": 2.0, "cached": 0.5, "sample": 10.0}
    policy = ChatPolicy(settings_for(server, price=price), "", tmp_path / "chat.jsonl")

    async def go() -> tuple[list[Completion], list[dict[str, float]]]:
        answers = await policy.sample([BRIEF, BRIEF], 7)
        metrics = [await policy.update([]), await policy.update([])]
        await policy.close()
        return answers, metrics

    answers, metrics = asyncio.run(go())
    each = (600 * 2.0 + 400 * 0.5 + 50 * 10.0) / 1e6
    assert [answer.usd for answer in answers] == pytest.approx([each, each])
    assert metrics[0] == {"tokens_prefill": 1200.0, "tokens_cached": 800.0, "tokens_sample": 100.0}
    assert set(metrics[1].values()) == {0.0}
    assert not is_trainable(policy)
    assert is_concurrent(policy)
    lines = [json.loads(line) for line in (tmp_path / "chat.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [{"prompt": 600, "cached": 400, "sampled": 50}] * 2
    assert {(line["model"], line["finish_reason"], line["text"]) for line in lines} == {("fake-2", "stop", "hello")}


def test_an_answer_paid_before_its_batch_failed_is_not_asked_for_again(server: FakeOpenAI, tmp_path: Path) -> None:
    price = {"prefill": 2.0, "cached": 0.5, "sample": 10.0}
    batch: list[list[Message]] = [[{"role": "user", "content": f"task {number % 3}"}] for number in range(6)]
    server.acts = [complete] * 4 + [error(400)]
    with pytest.raises(TrainwrightError, match="refuses"):
        ask(server, tmp_path, batch, in_flight=1, price=price)
    transcript = tmp_path / "chat.jsonl"
    paid = transcript.read_text().splitlines()
    assert 1 <= len(paid) <= 4
    transcript.write_text("\n".join([*paid, paid[0][: len(paid[0]) // 2]]))  # a kill cut the last line
    asked = len(server.requests)
    answers = ask(server, tmp_path, batch, in_flight=1, price=price)
    assert len(server.requests) - asked == len(batch) - len(paid)
    each = (600 * 2.0 + 400 * 0.5 + 50 * 10.0) / 1e6
    assert [answer.usd for answer in answers] == pytest.approx([each] * 6)
    assert all(answer.finished and answer.text == "hello" for answer in answers)
    assert ask(server, tmp_path, batch) == answers
    assert len(server.requests) - asked == len(batch) - len(paid)


# What is tried again


PASSING = {
    "429": error(429),
    "429 with a number": error(429, Retry_After="0.2"),
    "429 with a date of the past": error(429, Retry_After=format_datetime(datetime.now(UTC) - timedelta(days=1))),
    "429 with nonsense": error(429, Retry_After="soon"),
    "500": error(500),
    "502 of a proxy": says(b"<html>bad gateway</html>", 502),
    "503 without a word": says(b"", 503),
    "529": error(529),
    "hang up": hang_up,
    "half an answer": half,
    "broken JSON": says(b'{"choices": ['),
    "no JSON": says(b"\xff\xfe"),
    "a list": says(b"[]"),
    "nested too deep": says(b"[" * 100_000),
    "no choices": says({"choices": []}),
    "no message": says({"choices": [{"finish_reason": "stop"}]}),
    "content that is no text": says(completion(None, message={"content": 5})),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_tried_again(server: FakeOpenAI, tmp_path: Path, name: str) -> None:
    server.acts = [PASSING[name], PASSING[name]]
    (answer,) = ask(server, tmp_path)
    assert answer.text == "hello"
    assert len(server.requests) == 3
    assert len({json.dumps(body) for _, _, body in server.requests}) == 1


@pytest.mark.parametrize("act", [hang, drip])
def test_an_answer_that_does_not_end_is_given_up_and_asked_for_again(
    server: FakeOpenAI, tmp_path: Path, act: Any
) -> None:
    server.acts = [act]
    (answer,) = ask(server, tmp_path, timeout=0.5)
    assert answer.text == "hello"
    assert len(server.requests) == 2


def test_retry_after_is_kept_by_all_requests(server: FakeOpenAI, tmp_path: Path) -> None:
    server.acts = [error(429, Retry_After="0.6")]
    answers = ask(server, tmp_path, [BRIEF] * 6, in_flight=1)
    assert [answer.text for answer in answers] == ["hello"] * 6
    times = [moment for moment, _, _ in server.requests]
    assert min(times[1:]) - times[0] >= 0.55  # the others waited as well


def test_pauses_grow_and_end(server: FakeOpenAI, tmp_path: Path) -> None:
    server.acts = [error(503)] * 50
    with pytest.raises(TrainwrightError) as caught:
        ask(server, tmp_path, pause=0.05, patience=1.0)
    assert "503" in str(caught.value)
    assert "Nothing is lost" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert 2 <= len(server.requests) <= 7  # 0.05, 0.1, 0.2, 0.4, (0.8), each less up to a half


def test_a_pause_longer_than_patience_ends_at_once(server: FakeOpenAI, tmp_path: Path) -> None:
    server.acts = [error(429, Retry_After="86400")]
    with pytest.raises(TrainwrightError, match="asks to wait 86400 s"):
        ask(server, tmp_path)
    assert len(server.requests) == 1


def test_no_server_is_a_passing_fault_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    table = {"model": "m", "base_url": f"http://127.0.0.1:{port}/v1", "pause": 0.01, "patience": 0.2}
    policy = ChatPolicy(ChatSettings.model_validate(table), "", tmp_path / "chat.jsonl")
    with pytest.raises(TrainwrightError, match="no answer"):
        asyncio.run(policy.sample([BRIEF], 1))


# What is not


STUBBORN = {"no choices": says({"choices": []}), "broken JSON": says(b"{"), "huge": huge}


@pytest.mark.parametrize("name", STUBBORN)
def test_what_is_no_completion_three_times_is_an_error(server: FakeOpenAI, tmp_path: Path, name: str) -> None:
    server.acts = [STUBBORN[name]] * 3
    with pytest.raises(TrainwrightError) as caught:
        ask(server, tmp_path)
    assert len(server.requests) == 3
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (error(401, "invalid_api_key", f"Incorrect key {KEY}\n in line 2"), r"401 .*\*\*\* in line 2; .*\$THE_KEY"),
        (error(403), "403"),
        (error(404, "model_not_found", "no model fake"), "no model fake; check model and base_url"),
        (error(400, "", "unknown field seed"), "400 Bad Request: unknown field seed"),
        (error(402), "402"),
        (error(422, "", "x" * 9000), "422"),
        (error(429, "insufficient_quota", "You exceeded your quota"), "You exceeded your quota"),
        (says(b"", 307, Location="https://elsewhere.example/v1"), "elsewhere.example/v1: set base_url"),
        (says(b"plain words", 418), "plain words"),
    ],
)
def test_what_does_not_pass_is_one_line_at_once(server: FakeOpenAI, tmp_path: Path, act: Any, said: str) -> None:
    server.acts = [act]
    with pytest.raises(TrainwrightError, match=said) as caught:
        ask(server, tmp_path, key=KEY, key_env="THE_KEY")
    assert len(server.requests) == 1
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600
    assert KEY not in str(caught.value)


def test_one_refusal_stops_the_other_requests(server: FakeOpenAI, tmp_path: Path) -> None:
    server.acts = [hang, error(401), hang, hang]
    with pytest.raises(TrainwrightError, match="401"):
        ask(server, tmp_path, [BRIEF] * 4)


@pytest.mark.parametrize(
    "act",
    [
        error(400, "context_length_exceeded", "too many"),
        error(400, "", "This model's maximum context length is 4096 tokens"),
        error(413, "", "prompt is too long: 9 tokens"),
    ],
)
def test_a_conversation_that_does_not_fit_has_an_empty_answer(server: FakeOpenAI, tmp_path: Path, act: Any) -> None:
    server.acts = [complete, act]
    answers = ask(server, tmp_path, [BRIEF, BRIEF], in_flight=1)
    assert sorted(answer.text for answer in answers) == ["", "hello"]
    assert sorted(answer.finished for answer in answers) == [False, True]


# Reading


@pytest.mark.parametrize(
    ("answer", "text", "finished"),
    [
        (completion("job"), "job", True),
        (completion("half a j", finish_reason="length"), "half a j", False),
        (completion(None, finish_reason="length"), "", False),
        (completion("", finish_reason="content_filter"), "", False),
        (completion("job", finish_reason=None), "job", True),
        (completion("<think>\n```python environment.py\n```\n</think>\n\njob"), "\n\njob", True),
        (completion("<think>no end", finish_reason="length"), "", False),
        (completion(None, message={"content": [{"text": "jo"}, {"type": "text", "text": "b"}]}), "job", True),
    ],
)  # fmt: skip
def test_a_reply_is_read(answer: dict[str, Any], text: str, finished: bool) -> None:
    reply = read_reply(answer)
    assert (reply.text, reply.finished) == (text, finished)
    assert reply.tokens == Tokens(prefill=600, cached=400, sample=50)


def test_thoughts_are_for_the_transcript() -> None:
    apart = completion(None, message={"content": "job", "reasoning_content": "hm"})
    assert (read_reply(apart).text, read_reply(apart).facts["reasoning"]) == ("job", "hm")
    assert read_reply(completion("<think>hm</think>job")).facts["reasoning"] == "<think>hm"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "message", "content", "usage", "prompt_tokens", "completion_tokens", "text",
                         "prompt_tokens_details", "cached_tokens", "finish_reason"]), inner, max_size=4
    ), max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_any_json_is_a_reply_or_a_value_error(answer: Any) -> None:
    try:
        reply = read_reply(answer)
    except ValueError:
        return
    assert isinstance(reply.text, str)
    assert min(reply.tokens.prefill, reply.tokens.cached, reply.tokens.sample) >= 0


@given(st.text(max_size=40) | st.floats().map(str) | st.datetimes().map(lambda date: format_datetime(date)))
def test_any_retry_after_is_a_number_of_seconds(text: str) -> None:
    seconds = retry_after({"retry-after": text})
    assert seconds >= 0
    assert math.isfinite(seconds)


def test_retry_after_as_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after({"retry-after": format_datetime(now + timedelta(seconds=90), usegmt=True)}, now) == 90
    assert retry_after({}) == 0


# Before the run


def run_config(**chat: Any) -> RunConfig:
    return RunConfig.model_validate({"agent": {"backend": "chat", "chat": {"model": "m"} | chat}})


def test_a_missing_key_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="export OPENAI_API_KEY="):
        preflight(run_config())
    monkeypatch.setenv("MINE", "a\nb")
    with pytest.raises(ConfigError, match=r"\$MINE has characters"):
        preflight(run_config(key_env="MINE"))
    with pytest.raises(ConfigError, match=r"needs a table \[agent.chat\]"):
        preflight(RunConfig.model_validate({"agent": {"backend": "chat"}}))


def test_openais_key_goes_to_openai_alone(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert ChatSettings(model="m").key_variable == "OPENAI_API_KEY"
    assert settings_for(server).key_variable == ""


def test_a_refused_key_and_a_server_that_is_not_there(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = KEY
    monkeypatch.setenv("MINE", "wrong")
    with pytest.raises(ConfigError, match=r"refuses the key in \$MINE"):
        preflight(run_config(base_url=server.url, key_env="MINE"))
    with pytest.raises(ConfigError, match=r"set agent\.chat\.key_env"):
        preflight(run_config(base_url=server.url))
    monkeypatch.setenv("MINE", KEY)
    preflight(run_config(base_url=server.url, key_env="MINE"))
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    with pytest.raises(ConfigError, match="can't be reached"):
        preflight(run_config(base_url=f"http://127.0.0.1:{port}/v1"))


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host/v1", "http:///v1", "http://me:word@host/v1", "http://h/v1?a=b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        ChatSettings(model="m", base_url=url)


def test_addresses_are_brought_to_one_form() -> None:
    for url in ("http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"):
        assert ChatSettings(model="m", base_url=url).base_url == "http://h:1/v1"
    assert ChatSettings(model="m").base_url == OPENAI
    for url in ("http://localhost:1/v1", "http://127.0.0.1/v1", "http://[::1]:2/v1"):
        assert ChatSettings(model="m", base_url=url).own_server
    assert not ChatSettings(model="m").own_server


def test_the_options_of_the_command_line_are_settings() -> None:
    assert chat_changes("", "") == []
    assert chat_changes("openai:a/b", "") == ["agent.backend=chat", 'agent.chat.model="a/b"']
    assert chat_changes("openai:m", "http://h/v1")[-1] == 'agent.chat.base_url="http://h/v1"'
    for agent, url in (("m", ""), ("openai:", ""), ("", "http://h/v1"), ("tinker:m", "")):
        with pytest.raises(ConfigError, match="openai:MODEL"):
            chat_changes(agent, url)


def test_an_estimate_counts_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    price = Price(prefill=1.0, sample=4.0)
    found = estimate_run(run_config(price=price.model_dump(exclude_none=True), max_tokens=2000))
    assert found.expected.train == found.most.train == 0
    assert found.most.sample == (found.training_episodes + found.probe_episodes) * 2000
    assert found.probe_episodes == RunConfig().probe.episodes  # it is measured once
    assert found.agent_usd.expected > 0
    assert estimate_run(run_config()).unpriced == ["prefill", "sample"]
    assert estimate_run(run_config(base_url="http://localhost:1/v1")).unpriced == []
