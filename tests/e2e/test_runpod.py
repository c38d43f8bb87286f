"""`trainwright run` with rented pods: the real command, the real agent and job command on pods of a fake Runpod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from trainwright.cache import cache_folder
from trainwright.ledger import Ledger

pytest.importorskip("httpx", reason="needs the extra runpod")
PODS = Path(__file__).parents[1] / "pools" / "runpod"
sys.path.insert(0, str(PODS))

from fake_runpod import ACCOUNT_KEY, FakeRunpod  # noqa: E402

Trainwright = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[[Sequence[object], Path], subprocess.Popen[str]]
EPISODES = 4
TIMES = {"boot": 120, "restart": 120, "lease": 120, "heartbeat": 1, "lost": 60, "idle": 10, "pod": 3000, "job": 600}
TIMES |= {"evaluation": 600, "poll": 0.2, "listing": 0.2, "reaper": 1, "settle": 1, "backoff": 0.2}
EVALUATE = """
port="$TRAINWRIGHT_OUT/../../service/port"
until test -s "$port"; do sleep 0.1; done
TRAINWRIGHT_SERVER=http://127.0.0.1:$(cat "$port") exec "$0" -I -S "$1"
"""
pytestmark = pytest.mark.slow  # a job in a pod starts torch and verifiers anew: a minute, more on a busy machine


def table(fake: FakeRunpod, folder: Path, cap: float) -> dict[str, Any]:
    """Return a tiny run's settings, on pods that have this machine's interpreter and base students."""
    here = {"TRAINWRIGHT_CACHE": str(cache_folder()), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    here |= {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    words = [f"{name}={value}" for name, value in here.items()]
    serve = ["env", *words, sys.executable, str(PODS / "nano_server.py")]
    evaluate = PODS.parents[2] / "src" / "trainwright" / "pools" / "runpod" / "pod_evaluate.py"
    runpod = {
        "image": "stand-in/image@sha256:0",
        "job_command": [sys.executable, "-P", "-m", "trainwright.pools.runpod.run_job"],
        "job_env": here,
        "services": {student: [*serve, student] for student in ("nano-48", "nano-64")},
        "evaluation_command": ["/bin/sh", "-c", EVALUATE, sys.executable, str(evaluate)],
        "gpus": [{"id": "NVIDIA L40S", "max_usd_per_hour": 40.0}],
        "max_pods": 4,
        "base_url": fake.base_url,
        "proxy_template": fake.proxy_template,
        "money": {"max_usd_per_hour": 200.0, "max_usd_total": cap},
        "times": TIMES,
    }
    return {
        "folder": str(folder / "run"),
        "ask_above_usd": 1000.0,
        "steps": 1,
        "groups": 2,
        "group_size": 2,
        "agent": {"warm_start_steps": 200},
        "pool": {"backend": "runpod", "workers": 1, "runpod": runpod},
        "measure": {"items": 16, "reference_items": 16, "reference_seeds": 1},
        "probe": {"episodes": 0},
    }


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunpod]:
    monkeypatch.setenv("RUNPOD_API_KEY", ACCOUNT_KEY)
    with FakeRunpod(tmp_path_factory.mktemp("pods"), own_users=False, gpus={"NVIDIA L40S": 36.0}) as service:
        yield service


def write(path: Path, fake: FakeRunpod, cap: float = 100.0) -> Path:
    path.write_text(tomli_w.dumps(table(fake, path.parent, cap)))
    return path


def check(folder: Path, fake: FakeRunpod) -> dict[str, Any]:
    """Check what every finished run on pods must have left, and return its summary."""
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    episodes = ledger.all_episodes()
    ledger.close()
    assert len(episodes) == EPISODES
    assert {episode.outcome for episode in episodes} <= {"TRAINED", "REJECTED", "JOB_FAULT"}
    trained = [episode for episode in episodes if episode.outcome == "TRAINED"]
    assert trained
    assert {episode.worker for episode in trained} <= {pod.id for pod in fake.pods}
    assert all(episode.metrics and episode.usd > 0 and episode.sandbox == "pod" for episode in trained)
    assert fake.live() == []
    keys = [key for _, _, key in fake.orders]
    assert len(keys) == len(set(keys))  # no job ran twice
    assert {episode.id for episode in trained} <= set(keys)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert summary["usd"]["total"] == pytest.approx(fake.spent(), rel=0.2)
    assert summary["usd"]["pods"]["working"]["usd"] > 0
    assert summary["usd"]["pods"]["lost"]["usd"] < 0.1 * fake.spent()  # what a stop or a kill cut short
    return summary


def test_a_cap_ends_a_run_with_one_line_and_a_higher_one_finishes_it(
    fake: FakeRunpod, trainwright: Trainwright, tmp_path: Path
) -> None:
    cap = 2.5  # a pod's first lease, boot included, holds 2.40 of it
    poor = trainwright("run", write(tmp_path / "run.toml", fake, cap), "--plain")
    assert poor.returncode == 2, poor.stderr
    (line,) = poor.stderr.splitlines()
    assert "of pool.runpod.money.max_usd_total = 2.5 are spent" in line
    assert fake.pods
    assert fake.live() == []
    assert 0 < fake.spent() < cap
    done = trainwright("run", write(tmp_path / "run.toml", fake), "--plain")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "up to 4 Runpod pods, at most $200 an hour and $100 in all; gate: 1 workers" in done.stdout
    check(tmp_path / "run", fake)
    (shown,) = [line for line in done.stdout.splitlines() if line.startswith("spent $")]
    assert shown in trainwright("status", tmp_path / "run").stdout
    services = [pod for pod in fake.pods if "TRAINWRIGHT_SERVICE" in pod.body["env"]]
    assert services
    assert not {pod.number for pod in services} & {number for number, _, _ in fake.orders}


def test_a_killed_run_goes_on_with_its_pods_and_loses_nothing(
    fake: FakeRunpod, trainwright: Trainwright, start: Start, tmp_path: Path
) -> None:
    config = write(tmp_path / "run.toml", fake)
    process = start(["run", config, "--plain"], tmp_path / "log")
    while not any(key.startswith("train-") for _, _, key in fake.orders):
        assert process.poll() is None, (tmp_path / "log.err").read_text()
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = len(fake.live())
    assert left
    done = trainwright("run", config, "--plain")
    assert done.returncode == 0, done.stderr
    assert "pods taken over: " in done.stdout
    check(tmp_path / "run", fake)
