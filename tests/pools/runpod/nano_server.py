"""A small inference server over a nano student, for evaluation pods: `python nano_server.py STUDENT`.

Speaks the part of the OpenAI protocol that `pod_evaluate.py` uses, and vLLM's two calls for adapters; samples for real.
Listens on a free port of loopback and writes it to `$HOME/port`: the pods of a fake share one network.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from trainwright.students.registry import base_student

BASE = base_student(sys.argv[1])
MODELS = {"base": BASE}
LOCK = threading.Lock()
torch.set_num_threads(1)


def reply(body: dict[str, Any]) -> str:
    """Return one sampled reply."""
    student, generator = MODELS[body["model"]], torch.Generator().manual_seed(body["seed"])
    prompt = student.encode(body["messages"])
    with LOCK:
        sampled = student.sample(
            [prompt], temperature=body["temperature"], max_tokens=body["max_tokens"], generator=generator
        )
    return student.decode(sampled.tokens_BT[0, : int(sampled.mask_BT[0].sum())].tolist())


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "base"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            student = BASE.fresh()
            student.load(Path(body["lora_path"], "weights.safetensors").read_bytes())
            MODELS[body["lora_name"]] = student
            self._answer("ok")
        elif self.path == "/v1/unload_lora_adapter":
            del MODELS[body["lora_name"]]
            self._answer("ok")
        else:
            self._answer({"choices": [{"message": {"content": reply(body)}}]})

    def _answer(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
Path(os.environ["HOME"], "port").write_text(str(server.server_port))
server.serve_forever()
