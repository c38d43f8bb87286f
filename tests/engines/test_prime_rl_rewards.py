"""The engine's end of the reward socket, asked by the package's own client."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwright.engines.job_package.rewards import NoReward, fetch_reward
from trainwright.engines.prime_rl_rewards import RewardServer
from trainwright.errors import InfraFault, JobFault


@pytest.fixture
def served(fake_environment: Any, tmp_path: Path) -> Iterator[tuple[Any, RewardServer, str]]:
    environment = fake_environment()
    with RewardServer(environment, tmp_path / "s") as server:
        yield environment, server, str(tmp_path / "s")


def test_many_questions_at_once_get_their_own_answers(served: tuple[Any, RewardServer, str]) -> None:
    environment, server, path = served

    async def ask() -> list[float]:
        return await asyncio.gather(*(fetch_reward(path, n, f"ü\n{n % 10}") for n in range(60)))

    assert asyncio.run(ask()) == [n % 10 for n in range(60)]
    assert server.scored == 60
    assert sorted(environment.asked)[7] == (7, "ü\n7")


@pytest.mark.parametrize("fault", [JobFault("reward_raised", "line 3"), InfraFault("lost", "gone"), IndexError("row")])
def test_a_fault_is_kept_and_every_later_question_is_refused(
    served: tuple[Any, RewardServer, str], fault: Exception
) -> None:
    environment, server, path = served
    environment.fault = fault
    for _ in range(2):
        with pytest.raises(NoReward, match=str(fault)[:3]):
            asyncio.run(fetch_reward(path, 0, "1"))
    assert len(environment.asked) == 1
    assert server.fault is fault or isinstance(server.fault, InfraFault)
    assert server.scored == 0


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"[]\n", b"\xff\n", b'{"row": "x", "reply": ""}\n'])
def test_a_bad_question_is_refused_and_the_next_is_answered(served: tuple[Any, RewardServer, str], line: bytes) -> None:
    _, server, path = served
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(line)
        client.shutdown(socket.SHUT_WR)
        assert "error" in json.loads(client.makefile().readline())
    assert asyncio.run(fetch_reward(path, 0, "3")) == 3.0
    assert server.fault is None


def test_no_server_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(NoReward):
        asyncio.run(fetch_reward(str(tmp_path / "nobody"), 0, ""))


def test_a_server_that_does_not_answer_is_no_reward(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(NoReward):
            asyncio.run(fetch_reward(str(tmp_path / "s"), 0, "", seconds=0.05))
