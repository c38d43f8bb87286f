"""SkyRL's server as a process that tests start, kill and start again; its states outlive it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

HERE = Path(__file__).parent
BACKEND = {
    "max_lora_adapters": 6,
    "max_lora_rank": 32,
    "sample_max_num_sequences": 40,
    "train_micro_batch_size": 8,
}
"""Fixed batch sizes, since every new shape is compiled anew; room for the models of sessions that died."""


class SkyRL:
    """The server of one base model on a port of this machine."""

    def __init__(self, python: Path, model: Path, folder: Path) -> None:
        self.python, self.model, self.folder = python, model, folder
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> float:
        """Start it and return the seconds until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [
            self.python, HERE / "launcher.py", "--base-model", self.model, "--backend", "jax", "--port", self.port,
            "--backend-config", json.dumps(BACKEND), "--checkpoints-base", self.folder / "states",
            "--database-url", f"sqlite:///{self.folder / 'tinker.db'}",
            "--session-timeout-sec", "60", "--session-cleanup-interval-sec", "10",
        ]  # fmt: skip
        started = time.monotonic()
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), env=environment, stdout=log, stderr=log, start_new_session=True
            )
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        return time.monotonic() - started

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v1/healthz", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """Kill it and its engine at once, as a lost machine would."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
