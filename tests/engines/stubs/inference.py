"""Stub of `inference`, the model server: listens, and holds the GPU (prime_rl/entrypoints/inference.py)."""

from __future__ import annotations

import os
import socket
import sys
import time
import tomllib
from pathlib import Path

from common import BIN, configuration, hang, leave_an_orphan, misbehaviour, say

OUTPUT = {
    "does not fit": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "loses an adapter": "vllm.exceptions.LoRAAdapterNotFoundError: Loading lora r1-a32.0 failed: No adapter found",
    "has no file handles": "OSError: [Errno 24] Too many open files",
    "has an old driver": "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
    "finds no model": "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the cache",
}


def main() -> None:
    wrong = misbehaviour()
    path = Path(sys.argv[sys.argv.index("@") + 1])
    config = tomllib.loads(path.read_text()) if path.suffix == ".toml" else configuration()
    (BIN / "gpu.pid").write_text(str(os.getpid()))
    if wrong in OUTPUT:
        sys.exit(OUTPUT[wrong])
    server = socket.socket()
    server.bind(("127.0.0.1", config["server"]["port"]))
    server.listen()
    say(f"Starting vLLM with {config['vllm']['model']} on {os.environ['CUDA_VISIBLE_DEVICES']}")
    if wrong == "leaves an orphan":
        leave_an_orphan()
    if wrong == "ignores SIGTERM":
        hang()
    time.sleep(600)


main()
