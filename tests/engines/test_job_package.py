"""The verifiers package: whole rollouts in process, at every version of verifiers that is at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainwright.engines import job_package
from trainwright.engines.prime_rl_rewards import RewardServer
from trainwright.environment.environment import Reward, Row
from trainwright.errors import JobFault

OTHER_PYTHONS = "TRAINWRIGHT_VERIFIERS_PYTHONS"
"""Interpreters with other versions of verifiers, separated by colons; PYTHONPATH may name a source tree."""

ROWS = [
    {"row": 0, "messages": [{"role": "user", "content": "hello"}]},
    {"row": 1, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "world"}]},
    {
        "row": 2,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "last ü"},
        ],
    },
]


class FakeEnvironment:
    """Rewards a reply with its length over ten; row 3 and later faults."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def rows(self, count: int) -> list[Row]:
        raise AssertionError

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        self.asked += replies
        if any(row > 2 for row, _ in replies):
            raise JobFault("reward_raised", "a reward raised")
        return [Reward(len(reply) / 10, {}, 0.0) for _, reply in replies]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = Path(job_package.__file__ or job_package.__path__[0]).parent
    shutil.copytree(source, tmp_path / "trainwright_job", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[FakeEnvironment, RewardServer, Path]]:
    environment = FakeEnvironment()
    with RewardServer(environment, folder / "s") as server:
        yield environment, server, folder / "s"


def play(python: str, folder: Path, socket: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"rows": str(folder / "rows.jsonl"), "socket": str(socket), "count": len(rows)}
    done = subprocess.run(
        [python, str(Path(__file__).with_name("rollout.py"))],
        input=json.dumps(given),
        env=os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("python", [sys.executable, *filter(None, os.environ.get(OTHER_PYTHONS, "").split(":"))])
def test_rollouts_get_the_engine_s_rewards(
    python: str, folder: Path, served: tuple[FakeEnvironment, RewardServer, Path]
) -> None:
    environment, server, socket = served
    found = play(python, folder, socket, [*ROWS, {"row": 3, "messages": [{"role": "user", "content": "bad"}]}])
    assert found["sent"][:3] == [row["messages"] for row in ROWS]
    assert environment.asked == [(0, "HELLO"), (1, "WORLD"), (2, "LAST Ü"), (3, "BAD")]
    assert [result["reward"] for result in found["results"][:3]] == [0.5, 0.5, 0.6]
    assert [result["ok"] for result in found["results"]] == [True, True, True, False]
    assert "a reward raised" in str(found["results"][3]["errors"])
    assert isinstance(server.fault, JobFault)
    assert server.scored == 3
