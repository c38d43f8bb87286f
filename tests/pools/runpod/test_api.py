"""The API client against scripted replies, and against the fake's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fake_runpod import ACCOUNT_KEY, FakeRunpod
from hypothesis import given
from hypothesis import strategies as st

from trainwright.pools.runpod import api as module
from trainwright.pools.runpod.api import Create, Pod, Retry, RunpodApi, Wait

pytestmark = pytest.mark.anyio
CREATE = Create("n", "i", "NVIDIA L40S", "SECURE", "US-KS-2", "12.8", 60, 8900, {"A": "b"})


def client(handler: Callable[[httpx.Request], httpx.Response]) -> RunpodApi:
    """Return a client whose requests a function answers."""
    api = RunpodApi("https://runpod.test/v2", "key", seconds=1.0)
    api._client = httpx.AsyncClient(base_url="https://runpod.test/v2", transport=httpx.MockTransport(handler))
    return api


def problem(status: int, detail: str = "words", **headers: str) -> httpx.Response:
    """Return problem details."""
    return httpx.Response(status, json={"title": "t", "status": status, "detail": detail}, headers=headers)


@pytest.mark.parametrize(
    ("status", "detail", "error"),
    [
        (400, "There are no instances currently available", module.NoCapacity),
        (400, "request could not be processed", module.NoCapacity),
        (401, "missing bearer token", module.WrongKey),
        (402, "Insufficient balance.", module.NoBalance),
        (403, "access denied", module.Skip),
        (404, "resource not found", module.NotThere),
        (409, "not valid now", module.Retry),
        (418, "teapot", module.OursToFix),
        (422, "Request validation failed.", module.OursToFix),
        (429, "rate limit exceeded", module.Wait),
        (500, "create pod: There are no longer any instances available", module.NoCapacity),
        (500, "upstream", module.Retry),
        (503, "upstream", module.Retry),
        (302, "moved", module.Retry),
    ],
)
async def test_a_status_says_what_to_do(status: int, detail: str, error: type[Exception]) -> None:
    async with client(lambda _: problem(status, detail)) as api:
        with pytest.raises(error, match=detail) as caught:
            await api.create(CREATE)
        assert caught.type is error


async def test_a_400_outside_of_create_is_ours_to_fix() -> None:
    async with client(lambda _: problem(400, "product is required")) as api:
        with pytest.raises(module.OursToFix):
            await api.pods()


async def test_no_capacity_and_a_broken_rule_are_told_apart_by_their_words() -> None:
    for detail, certain in (
        ("this GPU and data center combination could not be placed", True),
        ("Insufficient capacity for the requested GPU type", True),
        ("There are no longer any instances available with enough disk space", True),
        ("allowedCudaVersions and minCudaVersion are mutually exclusive", False),
        ("mounts.persistent and mounts.network are exclusive", False),
    ):
        async with client(lambda _, detail=detail: problem(400, detail)) as api:
            with pytest.raises(module.NoCapacity) as caught:
                await api.create(CREATE)
            assert caught.value.certain is certain, detail


async def test_validation_errors_are_passed_on() -> None:
    errors = ["$: additional properties 'bogus' not allowed"]
    reply = httpx.Response(422, json={"title": "t", "status": 422, "detail": "failed.", "errors": errors})
    async with client(lambda _: reply) as api:
        with pytest.raises(module.OursToFix, match="bogus"):
            await api.create(CREATE)


async def test_after_a_429_nothing_is_sent_until_the_pause_is_over() -> None:
    sent = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return problem(429, **{"Retry-After": "7"})

    async with client(handler) as api:
        for _ in range(2):
            with pytest.raises(Wait) as caught:
                await api.pods()
            assert 6 < caught.value.seconds <= 7
        assert len(sent) == 1


@pytest.mark.parametrize(("text", "seconds"), [("12", 12), ("0", 1), ("99999", 600), ("soon", 5), ("", 5), ("-3", 5)])
def test_retry_after_is_bounded(text: str, seconds: float) -> None:
    assert module.retry_after(httpx.Response(429, headers={"Retry-After": text})) == seconds


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b'{"pods": {}}', b"[]", b"null", b'{"pods": [{}]}'])
async def test_nonsense_is_never_an_empty_list(body: bytes) -> None:
    async with client(lambda _: httpx.Response(200, content=body)) as api:
        with pytest.raises(Retry):
            await api.pods()


async def test_pages_are_followed_to_their_end_or_refused() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("cursor", 0))
        pods = [{"id": f"p{page}", "name": "n", "status": "RUNNING", "cost": 0.5}]
        more = {"hasNextPage": page < last, "nextCursor": str(page + 1)}
        return httpx.Response(200, json={"pods": pods, "pagination": more})

    last = 3
    async with client(handler) as api:
        assert [pod.id for pod in await api.pods()] == ["p0", "p1", "p2", "p3"]
        last = 10**9
        with pytest.raises(Retry, match="more than 50 pages"):
            await api.pods()


async def test_a_reply_without_end_is_cut() -> None:
    async def endless():  # type: ignore[no-untyped-def]
        while True:
            yield bytes(1 << 20)

    async with client(lambda _: httpx.Response(200, content=endless())) as api:
        with pytest.raises(Retry, match="larger than"):
            await api.pods()


async def test_a_slow_reply_ends_in_time() -> None:
    async def slow(request: httpx.Request) -> httpx.Response:
        await module.asyncio.sleep(60)
        raise AssertionError

    async with client(slow) as api:  # type: ignore[arg-type]
        api._seconds = 0.05
        with pytest.raises(Retry, match="no whole reply"):
            await api.pods()


async def test_no_request_leaves_without_a_safe_pod_id() -> None:
    async with client(lambda _: httpx.Response(204)) as api:
        for id in ("", "a/b", "../x", "a?b", "a" * 65, "a b"):
            with pytest.raises(ValueError, match="not a pod id"):
                await api.delete(id)
    for id in ("", "a/b", "x" * 65, 7):
        with pytest.raises(Retry):
            Pod.parse({"id": id, "name": "n", "status": "RUNNING", "cost": 0.5})


@given(st.recursive(st.none() | st.floats() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_any_entry_is_a_pod_or_a_reason_to_retry(value: object) -> None:
    with pytest.raises(Retry):
        Pod.parse(value)


async def test_a_pod_lives_and_ends_on_the_fake(pods_folder: Path) -> None:
    with FakeRunpod(pods_folder) as fake:
        async with RunpodApi(fake.base_url, ACCOUNT_KEY) as api:
            offers = await api.offers("SECURE", "12.8")
            assert {offer.gpu: offer.usd_per_hour for offer in offers} == fake.gpus
            assert offers[0].stock == dict.fromkeys(fake.centers, "HIGH")
            fake.boot_seconds = 1e9
            pod = await api.create(CREATE)
            assert (pod.status, pod.name, pod.gpu, pod.data_center) == ("PROVISIONING", "n", CREATE.gpu, "US-KS-2")
            assert await api.get(pod.id) == (await api.pods())[0]
            with pytest.raises(Retry, match="restart is not valid"):
                await api.restart(pod.id)
            assert await api.logs(pod.id) == ["system: pulling image"]
            assert await api.delete(pod.id)
            assert not await api.delete(pod.id)
            assert await api.pods() == []


async def test_the_fake_refuses_what_the_contract_refuses(pods_folder: Path) -> None:
    with FakeRunpod(pods_folder) as fake:
        async with RunpodApi(fake.base_url, ACCOUNT_KEY) as api:
            good = CREATE.body()
            for change in ({"ttl": 5}, {"image": ""}, {"gpu": {"id": "x", "spot": True}}, {"env": {"A": 1}}):
                with pytest.raises(module.OursToFix):
                    await api._json("POST", "/pods", json={**good, **change})
        async with RunpodApi(fake.base_url, "somebody") as api:
            with pytest.raises(module.WrongKey):
                await api.pods()


def test_log_lines_are_printable() -> None:
    line = module.log_line(json.dumps({"source": "container", "line": "a\x1b[31mb\n", "ts": "t"}))
    assert line == "container: a [31mb "
    assert re.fullmatch(r"[ -~]*", module.log_line("\x00\x07nonsense"))
