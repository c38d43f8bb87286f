"""Deadlines, certain death, and recovery: the trusted side against jobs that don't cooperate, and lost servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.environment.client import EnvironmentServer, Limits
from trainwright.environment.sandbox import Sandbox
from trainwright.errors import InfraFault, JobFault

WriteJob = Callable[..., dict[str, str]]
SHORT = Limits(open_seconds=5.0, rows_seconds=0.4, score_seconds=0.4)

HANGS = {
    "sleeps": "time.sleep(60)",
    "sleeps in the event loop": "await asyncio.sleep(60)",
    "loops for ever": "while True: pass",
    "ignores signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "is stuck in a regular expression": "re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("name", HANGS)
def test_a_reward_that_hangs_is_a_timeout_and_its_process_is_dead(
    server: EnvironmentServer, job: WriteJob, processes: Any, name: str
) -> None:
    server.start()
    before = processes.descendants(server.pid)
    with server.open(job(reward=HANGS[name]), seed=1, limits=SHORT) as environment:
        environment.rows(1)
        with pytest.raises(JobFault) as caught:
            environment.score([(0, "")])
        assert caught.value.code == "timeout"
        assert processes.descendants(server.pid) == before
        with pytest.raises(RuntimeError):
            environment.rows(1)


def test_rows_that_never_come_are_a_timeout(server: EnvironmentServer, job: WriteJob) -> None:
    load = """
    while True:
        if False:
            yield
    """
    with server.open(job(load=load), seed=1, limits=SHORT) as environment, pytest.raises(JobFault) as caught:
        environment.rows(1)
    assert caught.value.code == "timeout"
    assert "0.4 seconds" in caught.value.message


def test_an_endless_taskset_gives_what_is_asked_for(server: EnvironmentServer, job: WriteJob) -> None:
    load = """
    n = 0
    while True:
        n += 1
        yield Problem(Data(prompt=str(n)))
    """
    with server.open(job(load=load), seed=1) as environment:
        assert len(environment.rows(100)) == 100
        assert environment.rows(1)[0].messages[0]["content"] == "101"


def test_an_endless_list_or_import_is_a_timeout(best_server: EnvironmentServer, job: WriteJob) -> None:
    limits = Limits(open_seconds=0.4)
    for files in (job(load="return [Problem(Data(prompt='x')) for n in iter(int, 1)]"), job(module="time.sleep(60)")):
        with pytest.raises(JobFault) as caught:
            best_server.open(files, seed=1, limits=limits)
        assert caught.value.code == "timeout"


def test_cpu_seconds_run_out(server: EnvironmentServer, job: WriteJob) -> None:
    with server.open(job(reward="while True: pass"), seed=1, limits=Limits(cpu_seconds=1)) as environment:
        environment.rows(1)
        with pytest.raises(JobFault) as caught:
            environment.score([(0, "")])
        assert caught.value.code == "timeout"
        assert "CPU" in caught.value.message
        assert environment.cpu_seconds > 0.5  # the kernel counts the limit in other ticks than the usage


def test_cpu_seconds_are_reported(best_server: EnvironmentServer, job: WriteJob) -> None:
    with best_server.open(job(), seed=1) as environment:
        environment.rows(1)
        assert environment.cpu_seconds == 0.0
    assert 0 < environment.cpu_seconds < 5


def test_memory_runs_out_for_the_job_alone(server: EnvironmentServer, job: WriteJob) -> None:
    hoard = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"
    with server.open(job(reward=hoard), seed=1, limits=Limits(memory_bytes=600 << 20)) as environment:
        environment.rows(1)
        with pytest.raises(JobFault) as caught:
            environment.score([(0, "")])
    assert caught.value.code == "memory"


def test_a_gigabyte_of_output_is_discarded(server: EnvironmentServer, job: WriteJob) -> None:
    reward = """
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))
        sys.stderr.write("x" * 1000)
    return 1.0
    """
    with server.open(job(reward=reward), seed=1) as environment:
        environment.rows(1)
        assert environment.score([(0, "")])[0].total == 1.0


HOSTILE = {
    "garbage": ("os.write(3, b'garbage' * 100)", "protocol"),
    "a huge length": (r"os.write(3, b'\xff\xff\xff\xff')", "protocol"),
    "a list": (r"os.write(3, b'\x00\x00\x00\x02[]')", "protocol"),
    "NaN": (r"""os.write(3, b'\x00\x00\x00\x0a{"a": NaN}')""", "protocol"),
    "a lone surrogate": (r"""os.write(3, b'\x00\x00\x00\x0f{"a": "\\ud800"}')""", "protocol"),
    "deep nesting": (r"os.write(3, b'\x00\x03\x0d\x40' + b'[' * 200_000)", "protocol"),
    "an empty object": (r"os.write(3, b'\x00\x00\x00\x02{}')", "protocol"),
    "half a frame": (r"os.write(3, b'\x00\x00\x00\x02{'); time.sleep(60)", "timeout"),
    "a drip of bytes": (
        r"os.write(3, b'\x00\x00\xff\xff')" "\nwhile True: os.write(3, b' '); time.sleep(0.01)",
        "timeout",
    ),
    "a flood": ("while True: os.write(3, b'\\x00' * 4096)", "protocol"),
    "a made-up reason": (r"""os.write(3, b'\x00\x00\x00\x0d{"fault": {}}')""", "protocol"),
    "nothing, and hangs up": ("os.close(3); time.sleep(60)", "protocol"),
    "nothing, and ends": ("os.close(3); os._exit(0)", "exited"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_job_writes_to_its_channel_only_it_is_hurt(
    server: EnvironmentServer, job: WriteJob, processes: Any, name: str
) -> None:
    reward, code = HOSTILE[name]
    server.start()
    before = processes.descendants(server.pid)
    with server.open(job(reward=reward), seed=1, limits=SHORT) as environment:
        environment.rows(1)
        with pytest.raises(JobFault) as caught:
            environment.score([(0, "")])
    assert caught.value.code == code, caught.value
    assert processes.descendants(server.pid) == before


def test_files_too_large_for_a_frame_are_a_fault(best_server: EnvironmentServer, job: WriteJob) -> None:
    with pytest.raises(JobFault) as caught:
        best_server.open(job() | {"dataset.jsonl": "\x01" * 4_000_000}, seed=1)
    assert caught.value.code == "input"


@pytest.mark.parametrize("level", ["full", "reduced"])
def test_a_killed_server_is_an_infrastructure_fault_and_the_next_job_gets_a_new_one(
    fresh_server: Callable[[str], EnvironmentServer], job: WriteJob, processes: Any, level: str
) -> None:
    server, before = fresh_server(level), processes.descendants(processes.own)
    environment, bystander = server.open(job(reward="time.sleep(60)"), seed=1), server.open(job(), seed=1)
    environment.rows(1)
    first, inside = server.pid, processes.descendants(server.pid)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(InfraFault) as caught:
        environment.score([(0, "1")])
    assert caught.value.code == "environment_server_lost"
    assert processes.eventually(lambda: not any(map(processes.alive, inside)))

    again = server.open(job(), seed=1)
    again.rows(1)
    assert server.pid != first
    with pytest.raises(InfraFault):
        bystander.rows(1)
    assert again.score([(0, "1")])[0].total == 1.0
    if level == "full":  # the outer process is bubblewrap; now kill the one inside
        os.kill(min(processes.children(server.pid)), signal.SIGKILL)
        assert processes.eventually(lambda: server.pid == 0)
    server.close()
    assert processes.descendants(processes.own) == before
    with pytest.raises(InfraFault):
        again.score([(0, "1")])
    again.close()


def test_without_a_sandbox_jobs_run_and_die_all_the_same(
    fresh_server: Callable[[str], EnvironmentServer], job: WriteJob, processes: Any
) -> None:
    before = processes.descendants(processes.own)
    with fresh_server("none") as server:
        for reward, code in (
            ("while True: pass", "timeout"),
            ("bytearray(4 << 30)", "memory"),
            ("1 / 0", "reward_raised"),
        ):
            with server.open(job(reward=reward), seed=1, limits=SHORT) as environment:
                environment.rows(1)
                with pytest.raises(JobFault) as caught:
                    environment.score([(0, "")])
                assert caught.value.code == code
    assert processes.descendants(processes.own) == before


CLIENT = """
from trainwright.environment.client import EnvironmentServer
from trainwright.environment.sandbox import detect
server = EnvironmentServer(detect())
environment = server.open({files!r}, seed=1)
environment.rows(1)
print(server.pid, server._root, flush=True)
environment.score([(0, "")])
"""


def test_killing_the_client_leaves_nothing_behind(server: EnvironmentServer, job: WriteJob, processes: Any) -> None:
    level = server.sandbox.level
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CLIENT).format(files=job(reward="while True: pass"))],
        env=os.environ | {"TRAINWRIGHT_SANDBOX": level},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    pid, root = client.stdout.readline().split()
    below = {int(pid)} | processes.descendants(int(pid))
    assert len(below) >= 2
    client.kill()
    client.communicate()
    assert processes.eventually(lambda: not any(map(processes.alive, below)))
    if level == "reduced":
        assert processes.eventually(lambda: not Path(root).exists())


class BrokenSandbox(Sandbox):
    """A fake sandbox in which nothing starts."""

    def command(self, module: str, function: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no verifiers here')"]


def test_a_server_that_does_not_start_is_an_infrastructure_fault_with_its_words(job: WriteJob) -> None:
    with EnvironmentServer(BrokenSandbox("reduced")) as server:
        with pytest.raises(InfraFault) as caught:
            server.open(job(), seed=1)
        assert caught.value.code == "environment_server_lost"
        assert "no verifiers here" in caught.value.message
        assert server.pid == 0
