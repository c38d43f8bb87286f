"""A stand-in for vLLM on an evaluation pod: answers with what it was asked, by which model and with which seed."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADAPTERS: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    """The part of the OpenAI protocol that `pod_evaluate.py` uses, and vLLM's two calls for adapters."""

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "base"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            ADAPTERS[body["lora_name"]] = (Path(body["lora_path"]) / "adapter_model.safetensors").read_text()
            self._reply("ok")
        elif self.path == "/v1/unload_lora_adapter":
            del ADAPTERS[body["lora_name"]]
            self._reply("ok")
        else:
            model = "base" if body["model"] == "base" else ADAPTERS[body["model"]]
            text = f"{model}|{body['messages'][0]['content']}|{body['seed']}"
            content = None if "no reply" in text else text
            self._reply({"choices": [{"message": {"content": content}}]})

    def _reply(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
