"""The proof on a server that we did not write: SkyRL's, over the real SDK, with real nano jobs.

`make test-tinker` makes the server's environment and names its interpreter in `TRAINWRIGHT_SKYRL`. One run: warm start
by supervised steps, then `trainwright run`, which is killed with -9 and started again, and whose server is killed and
started again. Numbers are printed, and are in docs/LOG.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from skyrl_model import write_tiny_model
from skyrl_server import SkyRL
from skyrl_warm_start import warm_start

from trainwright.agent.tinker_renderer import make_renderer
from trainwright.agent.tinker_settings import TinkerSettings
from trainwright.ledger import Ledger

pytestmark = pytest.mark.tinker

BASE_STEPS, SUPERVISED_STEPS, STEPS = 250, 50, 40
KILL_RUN_AFTER, KILL_SERVER_AFTER = 3, 8
RANK = 32
TOML = """\
folder = "{folder}"
steps = {steps}
groups = 4
group_size = 8

[agent]
backend = "tinker"
max_tokens = 160

[agent.tinker]
base_model = "{model}"
base_url = "{url}"
server = "skyrl"
rank = {rank}
start_from = "{start}"
brief = "compact"
learning_rate = 2e-3
warmup_steps = 3

[agent.tinker.deadlines]
start = 600
sample = 600
train = 600
save = 300
pause = 3

[pool]
workers = 2

[measure]
items = 128
reference_items = 256
reference_seeds = 1

[probe]
episodes = 0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRL]:
    python = os.environ.get("TRAINWRIGHT_SKYRL", "")
    if not python:
        pytest.skip("TRAINWRIGHT_SKYRL names no interpreter with SkyRL; use `make test-tinker`")
    folder = tmp_path_factory.mktemp("skyrl")
    write_tiny_model(folder / "model", BASE_STEPS, seed=0)
    found = SkyRL(Path(python), folder / "model", folder / "server")
    print(f"\nserver ready after {found.start():.0f} s")
    yield found
    found.kill()


def committed(folder: Path) -> int:
    path = folder / "ledger.sqlite"
    if not path.exists():
        return 0
    ledger = Ledger(path, read_only=True)
    try:
        return len(ledger.steps())
    finally:
        ledger.close()


class Run:
    """`trainwright run` as a process."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder, self.log = file, folder, folder.with_suffix(".log")

    def start(self) -> None:
        program = Path(sys.executable).with_name("trainwright")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [program, "run", self.file, "--plain", "--yes"], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def until(self, condition: Any) -> None:
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.2)


def test_warm_start_grpo_kill_and_resume(server: SkyRL, tmp_path: Path) -> None:
    clock = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - clock:6.0f} s  {what}", flush=True)

    # Supervised steps through the SDK
    settings = TinkerSettings.model_validate(
        {"base_model": str(server.model), "base_url": server.url, "server": "skyrl", "rank": RANK}
    )
    renderer = make_renderer(str(server.model), thinking=False)
    start, before, after = asyncio.run(warm_start(settings, renderer, SUPERVISED_STEPS, learning_rate=4e-3))
    tell(f"{SUPERVISED_STEPS} supervised steps: {before:.3f} to {after:.3f} nats a token of unseen jobs")
    assert after < before - 0.002

    # Killed in the middle of a step, and started again
    folder = tmp_path / "run"
    file = tmp_path / "run.toml"
    file.write_text(TOML.format(folder=folder, steps=STEPS, model=server.model, url=server.url, rank=RANK, start=start))
    run = Run(file, folder)
    run.start()
    run.until(lambda: committed(folder) >= KILL_RUN_AFTER)
    time.sleep(2.0)
    run.kill()
    done = committed(folder)
    tell(f"run killed after {done} steps")
    run.start()
    run.until(lambda: committed(folder) > done)
    assert f"resuming after step {done} of {STEPS}" in run.log.read_text()
    tell("resumed, and took the next step")

    # The server is gone for a while
    run.until(lambda: committed(folder) >= KILL_SERVER_AFTER)
    server.kill()
    tell(f"server killed after {committed(folder)} steps")
    time.sleep(5.0)
    tell(f"server ready again after {server.start():.0f} s")
    assert run.process.wait(3600) == 0, run.log.read_text()[-3000:]
    tell("finished")

    # What it gave
    ledger = Ledger(folder / "ledger.sqlite", read_only=True)
    steps, episodes = ledger.steps(), ledger.all_episodes()
    ledger.close()
    rewards = [step.metrics["reward"] for step in steps]
    print("rewards: " + " ".join(f"{reward:.3f}" for reward in rewards))
    for name in ("gain", "validity", "policy/entropy", "policy/logprob_mismatch_max"):
        print(f"{name}: " + " ".join(f"{step.metrics.get(name, float('nan')):.2g}" for step in steps))
    print(f"seconds a step: {' '.join(f'{step.wall_seconds:.0f}' for step in steps)}")
    assert len(steps) == STEPS
    assert len(episodes) == len({episode.id for episode in episodes}) == STEPS * 32
    updates = sum("policy/loss" in step.metrics for step in steps)
    assert json.loads((folder / steps[-1].checkpoint / "tinker.json").read_text())["steps"] == updates
    mismatches = [step.metrics["policy/logprob_mismatch_max"] for step in steps if "policy/loss" in step.metrics]
    assert max(mismatches) < 1e-3
    print(f"mean reward: {fmean(rewards[:5]):.3f} over the first 5 steps, {fmean(rewards[-10:]):.3f} over the last 10")
    assert fmean(rewards[-10:]) > fmean(rewards[:5]) + 0.03
