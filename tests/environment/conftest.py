"""A warm environment server at each level of the sandbox that this machine has, and jobs to run in it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest

from trainwright.environment.client import EnvironmentServer
from trainwright.environment.sandbox import LEVEL_VARIABLE, Sandbox, detect
from trainwright.errors import SandboxError

JOB = """\
import asyncio, ctypes, errno, json, math, os, random, re, signal, socket, sys, threading, time
from pathlib import Path
import verifiers.v1 as vf
{module}

class Data(vf.TaskData):
    answer: str = ""


class Problem(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
{reward}


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self):
{load}


__all__ = {exported}
"""


def write_job(
    *,
    module: str = "",
    reward: str = "return float(trace.last_reply == self.data.answer)",
    load: str = "yield from (Problem(Data(prompt=str(n), answer=str(n + 1))) for n in range(100))",
    exported: str = '["Problems"]',
) -> dict[str, str]:
    """Return the files of a job, right but for the parts that are given."""
    source = JOB.format(
        module=textwrap.dedent(module),
        reward=textwrap.indent(textwrap.dedent(reward), " " * 8),
        load=textwrap.indent(textwrap.dedent(load), " " * 8),
        exported=exported,
    )
    return {"environment.py": source}


@pytest.fixture
def job() -> Callable[..., dict[str, str]]:
    return write_job


def sandbox_at(level: str) -> Sandbox:
    """Return the sandbox of one level; skip the test, with the reason, where this machine can't have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LEVEL_VARIABLE, level)
        try:
            return detect(unsafe_no_sandbox=level == "none")
        except SandboxError as error:
            pytest.skip(str(error))


CANARY = "TRAINWRIGHT_TEST_CANARY"
"""An environment variable that is set while the servers start; nobody inside may see it."""


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], EnvironmentServer]]:
    """Yield a function that returns the warm server of a level, one for the whole session."""
    started: dict[str, EnvironmentServer] = {}

    def server_at(level: str) -> EnvironmentServer:
        if level not in started:
            server = EnvironmentServer(sandbox_at(level))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(CANARY, "secret")
                server.start()
            started[level] = server
        return started[level]

    yield server_at
    for server in started.values():
        server.close()


@pytest.fixture(params=["full", "reduced"])
def server(request: pytest.FixtureRequest, servers: Callable[[str], EnvironmentServer]) -> EnvironmentServer:
    """Return a warm server, at each level in turn."""
    return servers(request.param)


@pytest.fixture
def best_server(servers: Callable[[str], EnvironmentServer]) -> EnvironmentServer:
    """Return a warm server at the best level, for what doesn't depend on the level."""
    return servers(detect().level)


@pytest.fixture
def fresh_server() -> Iterator[Callable[[str], EnvironmentServer]]:
    """Yield a function that makes a server of its own for a test that will hurt it."""
    servers: list[EnvironmentServer] = []

    def make(level: str) -> EnvironmentServer:
        servers.append(EnvironmentServer(sandbox_at(level)))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
