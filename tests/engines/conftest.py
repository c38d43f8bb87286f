"""Stub programs in place of an installation of prime-rl, and an environment without a sandbox."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainwright.engines.prime_rl import PrimeRL
from trainwright.engines.prime_rl_settings import PrimeRLSettings
from trainwright.environment.environment import Reward, Row
from trainwright.errors import InfraFault, JobFault

STUBS = Path(__file__).with_name("stubs")
REAL_LAUNCHER = "TRAINWRIGHT_PRIME_RL_LAUNCHER"
"""A real `rl` of prime-rl 559b447, to be used in place of the stub."""


@dataclass
class FakeEnvironment:
    """Eight rows; a reply earns its last digit. `fault` is raised from the given call of `score` on."""

    fault: JobFault | InfraFault | None = None
    from_call: int = 0
    count: int = 8
    prompt: str = "say something"
    asked: list[tuple[int, str]] = field(default_factory=list)

    def rows(self, count: int) -> list[Row]:
        return [Row(n, ({"role": "user", "content": self.prompt},)) for n in range(min(count, self.count))]

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        self.asked += replies
        if self.fault is not None and len(self.asked) > self.from_call:
            raise self.fault
        return [Reward(float(reply[-1]), {}, 0.0) for _, reply in replies]


@dataclass
class Installation:
    """A folder of stub programs, the scenario they play, and where runs go."""

    bin: Path
    work: Path

    def engine(self, scenario: dict[str, str] | None = None, **settings: Any) -> PrimeRL:
        """Return an engine that uses them, impatient enough for a test."""
        (self.bin / "scenario.json").write_text(json.dumps(scenario or {}))
        defaults = {"bin": self.bin, "work": self.work, "first_port": free_ports(), "poll": 0.02, "grace": 5.0}
        return PrimeRL(PrimeRLSettings(**defaults | {"gpu_free": 0.3} | settings))


def free_ports() -> int:
    """Return a port in a range that nothing else of the tests uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return 1024 + number % 28_000


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    made = Installation(tmp_path / "bin", tmp_path / "work")
    made.bin.mkdir()
    for stub in STUBS.glob("*.py"):
        script = f'#!/bin/sh\nSTUB_BIN={made.bin} exec {sys.executable} -S {stub} "$@"\n'
        (made.bin / stub.stem).write_text(script)
        (made.bin / stub.stem).chmod(0o755)
    if launcher := os.environ.get(REAL_LAUNCHER):
        (made.bin / "rl").unlink()
        shutil.copy(launcher, made.bin / "rl")
    (made.bin / "scenario.json").write_text("{}")
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def fake_environment() -> Callable[..., FakeEnvironment]:
    return FakeEnvironment
