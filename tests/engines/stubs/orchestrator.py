"""Stub of `orchestrator`: asks for rewards and hands batches to the trainer (prime_rl/orchestrator/orchestrator.py)."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import BIN, append, configuration, hang, misbehaviour, say, wait_for

EMPTY = "RuntimeError: 10 consecutive empty train batches — check algorithm credit and task difficulty."
ZERO = "RuntimeError: 10 consecutive zero-output batch equivalents — check the curriculum admission policy"


def reachable(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) == 0


def rewards_of(taskset: dict[str, Any]) -> Any:
    """Return a function that scores replies as the job's package does, by its own client."""
    [folder] = [path for path in map(Path, sys.path) if (path / "trainwright_job").is_dir()]
    spec = importlib.util.spec_from_file_location("rewards", folder / "trainwright_job" / "rewards.py")
    assert spec is not None
    assert spec.loader is not None
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)

    async def rollout(row: int, reply: str) -> float | None:
        try:
            reward: float = await client.fetch_reward(taskset["task"]["socket"], row, reply)
        except client.NoReward:
            return None  # an errored rollout
        return reward

    async def batch(rollouts: list[tuple[int, str]]) -> list[float | None]:
        return await asyncio.gather(*(rollout(row, reply) for row, reply in rollouts))

    return lambda rollouts: asyncio.run(batch(rollouts))


def main() -> None:
    wrong, config = misbehaviour(), configuration()
    run = Path(config["output_dir"])
    taskset = config["train"]["source"][0]["env"]["taskset"]
    rows = itertools.cycle([json.loads(line)["row"] for line in Path(taskset["rows"]).read_text().splitlines()])
    wait_for((BIN / "env-server.ready").exists)
    wait_for(lambda: reachable(config["model"]["client"]["base_url"]))
    wait_for((run / "broadcasts" / "step_0" / "STABLE").exists)
    if wrong == "can't reach the model":
        sys.exit(ZERO)
    score = rewards_of(taskset)
    for step in range(1, config["max_steps"] + 1):
        wait_for((run / "broadcasts" / f"step_{step - 1}" / "STABLE").exists)
        groups = [next(rows) for _ in range(config["batch_size"] // config["group_size"])]
        rollouts = [(row, f"reply {member}") for row in groups for member in range(config["group_size"])]
        rewards = score(rollouts)
        if wrong == "learns nothing":
            sys.exit(EMPTY)
        if wrong == f"dies in step {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        if wrong == f"hangs in step {step}":
            hang()
        while wrong == f"only logs from step {step}":
            say("Train batch 0/8 (0.0%); 8 inflight episodes (train=8, eval=0)")
            time.sleep(0.05)
        known = [reward for reward in rewards if reward is not None]
        mean = sum(known) / len(known) if known else 0.0
        prefix = "train/agg"
        append(
            run / "metrics.jsonl",
            step=step,
            **{
                f"{prefix}/effective/agent/reward/mean": mean,
                f"{prefix}/effective/agent/is_truncated/mean": 0.0,
                f"{prefix}/effective/agent/is_trainable/mean": 1.0,
                f"{prefix}/all/agent/has_error/mean": 1 - len(known) / len(rewards),
                "progress/rollouts": len(rewards),
                "off_policy/mean": 0.5,
                "time/step": 0.1,
            },
        )
        (run / f"stub_batch_{step}").touch()  # upstream sends it over ZMQ
        say(f"Step {step} | Reward {mean:.4f} | Trainable {len(known)}/{len(rewards)}", "SUCCESS")
    say("Orchestrator finished.", "SUCCESS")


main()
