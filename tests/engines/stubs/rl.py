"""Stub of `rl`, the launcher: writes the configurations and starts the other programs (prime_rl/entrypoints/rl.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from common import cleanup, hang, misbehaviour, say


def sub_configurations(config: dict[str, Any], run: Path) -> dict[str, dict[str, Any]]:
    shared = {"max_steps": config["max_steps"], "output_dir": str(run)}
    trainer, orchestrator = config["trainer"], config["orchestrator"]
    found = {
        "trainer": trainer | shared | {"model": trainer["model"] | config["model"]},
        "orchestrator": orchestrator | shared | {"model": orchestrator["model"] | config["model"]},
        "envs/train/job": orchestrator["train"]["source"][0],
    }
    if "inference" in config:
        found["inference"] = config["inference"]
    return found


def main() -> None:
    wrong = misbehaviour()
    config = tomllib.loads(Path(sys.argv[sys.argv.index("@") + 1]).read_text())
    if wrong == "refuses the configuration":
        sys.exit("ConfigFileError: Failed to validate config: 1 validation error for RLConfig")
    run = Path(config["output_dir"], config["run"]["name"])
    if run.exists():
        assert config["clean"]
        shutil.rmtree(run)
    for name, content in sub_configurations(config, run).items():
        path = run / "configs" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    visible = [int(token) for token in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    wanted = 1 + ("inference" in config)
    if wanted > len(visible):
        raise ValueError(
            f"Requested {wanted} GPUs via deployment settings, but only {len(visible)} physical GPU(s) are available"
        )
    logs = run / "logs" / "attempt_1"
    (logs / "envs" / "train").mkdir(parents=True)
    (run / "logs" / "latest").symlink_to("attempt_1")
    children: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, command: list[str], log: str, card: int | None = None) -> None:
        environment = os.environ | ({} if card is None else {"CUDA_VISIBLE_DEVICES": str(card)})
        with (logs / f"{log}.log").open("w") as file:
            children[name] = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    def terminate(*_: object) -> None:
        say("Received SIGTERM, terminating all processes...", "WARNING")
        cleanup(list(children.values()))
        sys.exit(1)

    signal.signal(signal.SIGTERM, terminate)
    configs = run / "configs"
    if "inference" in config:
        start("inference", ["inference", "@", f"{configs}/inference.json"], "inference", visible[0])
    start("train env server job", ["env-server", "@", f"{configs}/envs/train/job.json"], "envs/train/job")
    start("orchestrator", ["orchestrator", "@", f"{configs}/orchestrator.json"], "orchestrator")
    trainer = ["torchrun", "--role=trainer", "-m", "prime_rl.trainer.rl.train", "@", f"{configs}/trainer.json"]
    start("trainer", trainer, "trainer", visible[wanted - 1])
    if wrong == "is killed":
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    while children["orchestrator"].poll() is None or children["trainer"].poll() is None:
        for name, child in children.items():
            if child.poll():
                say(f"Error: {name.capitalize()} failed with exit code {child.returncode}", "ERROR")
                say("Terminating all processes...", "ERROR")
                cleanup(list(children.values()))
                sys.exit(1)
        time.sleep(0.02)
    if wrong == "hangs at its end":
        hang()
    if children["orchestrator"].returncode or children["trainer"].returncode or wrong == "fails at its end":
        sys.exit(1)
    say("Training finished!")
    cleanup(list(children.values()))


main()
