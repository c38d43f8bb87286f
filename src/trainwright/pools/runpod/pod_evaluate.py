#!/usr/bin/env python3
"""The evaluation command of an evaluation pod: prompts in, replies out. One file, standard library only.

Talks to the inference server that the pod agent keeps running (`Service`): vLLM with `--enable-lora` and
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`, on loopback, reachable by nobody else. Loads the adapter of the request, sends
every prompt as one user message with a seed of its own (so that base and adapter are paired), and writes the replies as
a JSON list. A prompt without a reply fails the whole request. Checked against vLLM's documents, not on a GPU.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SERVER = os.environ.get("TRAINWRIGHT_SERVER", "http://127.0.0.1:8000")
PARALLEL = 64
TRIES = 3


def call(path: str, body: Any = None, seconds: float = 300.0) -> Any:
    """Return the JSON (or text) that the server answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as response:
        text = response.read()
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def wait_for_server() -> str:
    """Return the name of the base model once the server is up; the pod agent's wall clock ends the wait."""
    while True:
        try:
            return str(call("/v1/models", seconds=5)["data"][0]["id"])
        except (OSError, KeyError, IndexError, TypeError):
            time.sleep(0.2)


def seed_of(seed: int, index: int) -> int:
    """Return the sampling seed of one prompt, 31 bits, the same for base and adapter."""
    digest = hashlib.sha256(f"{seed}\x1f{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def answer(model: str, request: dict[str, Any], index: int) -> str:
    """Return the reply to one prompt; raise `RuntimeError` when there's none after a few tries."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": request["prompts"][index]}],
        "seed": seed_of(request["seed"], index),
        "max_tokens": request["max_tokens"],
        "temperature": request["temperature"],
        "top_p": 1.0,  # else vLLM takes the model's own settings of generation, which for Qwen3 cut the distribution
        "top_k": -1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    problem: object = None
    for number in range(TRIES):
        if number:
            time.sleep(0.5 * 2**number)
        try:
            content = call("/v1/chat/completions", body)["choices"][0]["message"]["content"]
            if isinstance(content, str):
                return content
            problem = "no content"
        except (OSError, KeyError, IndexError, TypeError) as error:
            problem = error
    raise RuntimeError(f"prompt {index} has no reply: {problem!r}")


def main() -> None:
    """Answer the request in `$TRAINWRIGHT_JOB`, write `$TRAINWRIGHT_OUT/artifact`."""
    job, out = Path(os.environ["TRAINWRIGHT_JOB"]), Path(os.environ["TRAINWRIGHT_OUT"])
    request = json.loads((job / "request.json").read_text())
    model = wait_for_server()
    if request["adapter"]:
        model = f"adapter-{job.parent.name}"
        call("/v1/load_lora_adapter", {"lora_name": model, "lora_path": str(job / "adapter")})
    try:
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as threads:
            replies = list(threads.map(lambda index: answer(model, request, index), range(len(request["prompts"]))))
    finally:
        if request["adapter"]:
            call("/v1/unload_lora_adapter", {"lora_name": model})
    (out / "artifact").write_text(json.dumps(replies))


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        sys.exit(f"evaluation failed: {error!r}")
