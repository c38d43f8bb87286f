"""The real agent as a real process, on a fake pod, spoken to as the controller does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fake_runpod import FakePod, FakeRunpod, Fault, own_namespace
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.pools.runpod import pod_agent
from trainwright.pools.runpod.agent_client import AgentClient, JobStatus, Misbehaved, Refused, Unreachable

pytestmark = pytest.mark.anyio
TOKEN = "t" * 40
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)
SHELL = ["/bin/sh", "-c", 'exec /bin/sh "$TRAINWRIGHT_JOB/job.sh"']


@asynccontextmanager
async def pod(
    folder: Path,
    *,
    lease: float = 30.0,
    left: float = 3600.0,
    faults: list[Fault] | None = None,
    service: str = "",
    token: str = TOKEN,
) -> AsyncIterator[tuple[FakeRunpod, FakePod, AgentClient]]:
    """Yield a fake, a pod on it whose agent answers, and a client."""
    with FakeRunpod(folder, faults) as fake:
        env = {
            "TRAINWRIGHT_TOKEN": token,
            "TRAINWRIGHT_DEADLINE": str(int(time.time() + left)),
            "TRAINWRIGHT_LEASE_SECONDS": str(lease),
            "TRAINWRIGHT_RUNPOD_BASE_URL": fake.base_url,
            "TRAINWRIGHT_SERVICE": service,
            "HF_TOKEN": "secret-of-the-controller",
        }
        one = fake.create({"name": "x", "image": "y", "gpu": {"id": "NVIDIA L40S"}, "env": env})
        async with httpx.AsyncClient(trust_env=False) as http:
            agent = AgentClient(http, fake.proxy_template, one.id, 8900, TOKEN, 20)
            await until(lambda: one.process is not None)
            yield fake, one, agent


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition; fail when it takes far too long."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        await asyncio.sleep(0.02)


async def healthy(agent: AgentClient, seconds: float = 30.0) -> str:
    """Return the boot id once the agent answers."""
    limit = time.monotonic() + seconds
    while True:
        try:
            return (await agent.health()).boot_id
        except Unreachable:
            assert time.monotonic() < limit, "the agent does not answer"
            await asyncio.sleep(0.02)


async def finished(agent: AgentClient, id: str) -> JobStatus:
    """Return the status of a job once it has ended."""
    while (status := await agent.status(id)).state != "DONE":
        await asyncio.sleep(0.02)
    return status


async def up(agent: AgentClient, id: str) -> None:
    """Return once a job has said `up`."""
    while await agent.stream(id, "log", 10) != b"up\n":
        await asyncio.sleep(0.02)


async def run(agent: AgentClient, id: str, script: str, wall: float = 20.0) -> JobStatus:
    """Run a shell script as a job and return how it ended."""
    await agent.upload(id, SHELL, {"GIVEN": "yes"}, wall, {"job.sh": script.encode()})
    await agent.start(id)
    return await finished(agent, id)


async def test_a_job_comes_back_with_artifact_metrics_and_log(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        script = """
            head -c 5000000 /dev/zero > "$TRAINWRIGHT_OUT/artifact"
            echo '{"reward": 0.5}' > "$TRAINWRIGHT_OUT/metrics.jsonl"
            echo hello
        """
        status = await run(agent, "one", script)
        assert (status.ended, status.exit_code, status.gpu_ok) == ("exited", 0, True)
        data = await agent.artifact("one", status.artifact_size, status.artifact_sha256)
        assert data == bytes(5_000_000)
        assert await agent.stream("one", "metrics", 1000) == b'{"reward": 0.5}\n'
        assert await agent.stream("one", "log", 1000) == b"hello\n"


async def test_endings_are_told_apart(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, one, agent):
        await healthy(agent)
        fault = json.dumps({"code": "Nan Loss!", "message": "a\tb"})
        said = f"""printf '%s' '{fault}' > "$TRAINWRIGHT_OUT/fault.json"; exit 3"""
        crash = await run(agent, "crash", said)
        assert (crash.ended, crash.exit_code, crash.fault_code, crash.fault_message) == (
            "exited",
            3,
            "nan_loss_",
            "a b",
        )
        await agent.delete("crash")
        killed = await run(agent, "killed", "kill -9 $$")
        assert (killed.ended, killed.exit_code) == ("signal", -9)
        await agent.delete("killed")
        late = await run(agent, "late", "trap '' TERM; while :; do sleep 0.1; done", wall=0.3)
        assert late.ended == "timeout"
        await agent.delete("late")
        await agent.upload("oom", SHELL, {}, 20, {"job.sh": b"echo up; sleep 0.3; kill -9 $$"})
        await agent.start("oom")
        await up(agent, "oom")
        (one.folder / "cgroup" / "memory.events").write_text("oom 1\noom_kill 1\n")
        assert (await finished(agent, "oom")).ended == "oom"


async def test_start_failure_is_not_the_jobs_fault(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        await agent.upload("none", ["/no/such/program"], {}, 5, {})
        await agent.start("none")
        assert (await finished(agent, "none")).ended == "start_failed"


async def test_a_job_sees_no_secret_and_leaves_nothing_behind(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, one, agent):
        await healthy(agent)
        script = """
            env > "$TRAINWRIGHT_OUT/artifact"
            cat /proc/1/environ /proc/*/environ >> "$TRAINWRIGHT_OUT/artifact" 2>/dev/null
            id -u >> "$TRAINWRIGHT_OUT/artifact"
            setsid sleep 300 &
            exit 0
        """
        status = await run(agent, "thief", script)
        seen = (await agent.artifact("thief", status.artifact_size, status.artifact_sha256)).decode(errors="replace")
        assert "GIVEN=yes" in seen
        if os.geteuid() == 0:
            for secret in (TOKEN, one.key, "secret-of-the-controller", "RUNPOD", "DEADLINE"):
                assert secret not in seen
            assert seen.splitlines()[-1].strip() not in ("0", "")
            assert one.process is not None
            assert not any(b"300" in command for command in commands(one.process.pid))
        await agent.delete("thief")
        with pytest.raises(Refused, match="no job"):
            await agent.status("thief")


def commands(pid: int) -> list[bytes]:
    """Return the command lines of a process's descendants."""
    from fake_runpod import tree

    found = []
    for one in tree(pid):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{one}/cmdline").read_bytes())
    return found


@pytest.mark.parametrize(
    "trap",
    ["ln -s /etc/passwd", "mkfifo", "mkdir", "ln -s ../../../../etc/shadow"],
)
async def test_an_artifact_is_a_plain_file_of_the_job(pods_folder: Path, trap: str) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        status = await run(agent, "trap", f'{trap} "$TRAINWRIGHT_OUT/artifact"')
        assert status.artifact_size == -1
        with pytest.raises(Refused):
            await agent._piece("trap", "artifact", 0, 100)


async def test_uploads_are_checked(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        good = {"size": 4, "sha256": hashlib.sha256(b"true").hexdigest()}
        base = {"command": SHELL, "env": {}, "wall_seconds": 5, "files": {"job.sh": good}}
        for files in ({"../x": good}, {"/etc/x": good}, {"a/../../b": good}, {".x": good}, {"job.sh": {"size": -1}}):
            with pytest.raises(Refused, match="bad manifest"):
                await agent._json("PUT", "/jobs/bad", json.dumps({**base, "files": files}).encode())
        with pytest.raises(Refused, match="bad manifest"):
            await agent._json("PUT", "/jobs/bad", b"[" * 100_000)
        await agent._json("PUT", "/jobs/ok", json.dumps(base).encode())
        with pytest.raises(Refused, match="larger than declared"):
            await agent._json("PUT", "/jobs/ok/files?path=job.sh&offset=2", b"true")
        with pytest.raises(Refused, match="not in the manifest"):
            await agent._json("PUT", "/jobs/ok/files?path=other&offset=0", b"true")
        await agent._json("PUT", "/jobs/ok/files?path=job.sh&offset=0", b"fals")
        with pytest.raises(Refused, match="does not match"):
            await agent.start("ok")
        with pytest.raises(Refused, match="another manifest"):
            await agent._json("PUT", "/jobs/ok", json.dumps({**base, "wall_seconds": 6}).encode())
        with pytest.raises(Refused, match="another job"):
            await agent._json("PUT", "/jobs/second", json.dumps(base).encode())
        await agent._json("PUT", "/jobs/ok/files?path=job.sh&offset=0", b"true")
        await agent.start("ok")
        assert (await finished(agent, "ok")).exit_code == 0
        await agent.start("ok")  # once more changes nothing
        assert (await agent.status("ok")).state == "DONE"


async def test_nobody_without_the_token_gets_an_answer(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, one, agent):
        await healthy(agent)
        async with httpx.AsyncClient(trust_env=False) as http:
            for headers in ({}, {"Authorization": "Bearer " + "u" * 40}, {"Authorization": TOKEN}):
                for method, path in (("GET", "/health"), ("POST", "/lease"), ("PUT", "/jobs/x")):
                    answer = await http.request(method, f"http://127.0.0.1:{one.port}{path}", headers=headers)
                    assert answer.status_code == 401
        with socket.create_connection(("127.0.0.1", one.port)) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
            await healthy(agent)  # a slow stranger keeps nobody waiting


async def test_a_renewed_lease_keeps_the_pod_and_a_lapsed_one_ends_it(pods_folder: Path) -> None:
    async with pod(pods_folder, lease=6.0) as (fake, one, agent):
        await healthy(agent)
        for _ in range(4):
            health = await agent.renew(6.0)
            assert 5.0 < health.lease_seconds <= 6.0
        await agent.renew(0.5)
        await until(lambda: one.ended is not None)
        assert one.ended_by == "itself"
        assert fake.overstayed(slack=5.0) == []


async def test_a_pod_ends_at_its_deadline_whatever_its_lease(pods_folder: Path) -> None:
    async with pod(pods_folder, left=3.0) as (_, one, _):
        await until(lambda: one.ended is not None)
        assert one.ended_by == "itself"


async def test_another_artifact_than_the_agent_measured_is_not_taken(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        status = await run(agent, "one", 'printf abc > "$TRAINWRIGHT_OUT/artifact"')
        with pytest.raises(Misbehaved, match="does not match its hash"):
            await agent.artifact("one", status.artifact_size, "0" * 64)


@pytest.mark.parametrize("kind", ["server_hang", "server_crash"])
async def test_a_broken_server_does_not_keep_the_pod_alive(pods_folder: Path, kind: str) -> None:
    faults = [Fault("pod", kind, after=0.5)]
    async with pod(pods_folder, lease=2.5, faults=faults) as (_, one, agent):
        first = await healthy(agent)
        if kind == "server_crash":
            await until(lambda: not one.faults)
            assert await healthy(agent) == first  # a new server in the same container
        await until(lambda: one.ended is not None)
        assert one.ended_by == "itself"


async def test_a_pod_deletes_itself_although_the_api_is_down_at_first(pods_folder: Path) -> None:
    async with pod(pods_folder, lease=0.5) as (fake, one, _):
        real_end = fake.end
        refusals = iter(range(1))

        def end(pod: FakePod, by: str) -> None:
            if next(refusals, None) is None:
                real_end(pod, by)

        fake.end = end  # type: ignore[method-assign]
        await until(lambda: one.ended is not None)
        assert one.ended_by == "itself"


async def test_a_pod_with_an_impossible_environment_ends_too(
    pods_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(pod_agent.time, "sleep", lambda seconds: calls.append(seconds))
    monkeypatch.setattr(pod_agent, "delete_pod", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(pod_agent.os, "environ", {"RUNPOD_POD_ID": "p", "RUNPOD_API_KEY": "k"})
    pod_agent.main()
    assert calls == [60, ("https://api.runpod.io/v2", "p", "k")]


async def test_a_restarted_container_has_a_new_boot_id_and_an_empty_disk(pods_folder: Path) -> None:
    async with pod(pods_folder) as (fake, one, agent):
        first = await healthy(agent)
        await run(agent, "one", "true")
        fake.restart(one)
        assert await healthy(agent) != first
        with pytest.raises(Refused, match="no job"):
            await agent.status("one")


async def test_a_log_flood_is_cut_and_the_job_goes_on(pods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pod(pods_folder) as (_, _, agent):
        await healthy(agent)
        status = await run(agent, "flood", "head -c 60000000 /dev/zero; exit 7")
        assert status.exit_code == 7
        response, data = await agent._request("GET", "/jobs/flood/stream?file=log&offset=0&length=10", 10)
        assert int(response.headers["X-Size"]) == pod_agent.MAX_LOG_BYTES
        assert len(data) == 10


async def test_a_service_runs_beside_jobs_and_survives_them(pods_folder: Path) -> None:
    service = json.dumps(["/bin/sh", "-c", "echo serving; exec sleep 301"])
    async with pod(pods_folder, service=service) as (_, one, agent):
        await healthy(agent)
        await run(agent, "one", "true")
        assert one.process is not None
        await until(lambda: any(b"301" in command for command in commands(one.process.pid)))


async def test_changed_gpus_show_in_the_status(pods_folder: Path) -> None:
    async with pod(pods_folder) as (_, one, agent):
        await healthy(agent)
        await agent.upload("gpu", SHELL, {}, 20, {"job.sh": b"echo up; sleep 0.3"})
        await agent.start("gpu")
        await up(agent, "gpu")
        (one.folder / "bin" / "gpus").write_text("")
        assert not (await finished(agent, "gpu")).gpu_ok


def test_the_agent_needs_only_the_standard_library() -> None:
    program = f"import runpy, sys; sys.argv = ['x']; runpy.run_path({pod_agent.__file__!r}, run_name='agent')"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=30)


def test_pods_run_in_a_namespace_of_their_own_where_the_machine_allows_it() -> None:
    if not own_namespace():
        pytest.skip("unshare can't make a process namespace here: pods share the machine's process table")


@settings(max_examples=50)
@given(JSON)
def test_any_manifest_is_taken_or_refused(value: object) -> None:
    with contextlib.suppress(pod_agent.Refusal):
        pod_agent.checked_manifest(json.dumps(value).encode())


@given(st.binary(max_size=200))
def test_any_bytes_as_a_manifest_are_refused(body: bytes) -> None:
    with pytest.raises(pod_agent.Refusal):
        pod_agent.checked_manifest(body)


@settings(max_examples=50)
@given(JSON)
def test_any_status_is_read_or_misbehaviour(value: object) -> None:
    with contextlib.suppress(Misbehaved):
        JobStatus.parse(value)
