"""A fake Tinker server: the protocol of SDK 0.38.0 over a real socket, a model of a few hundred numbers, and faults.

Its model is a unigram: one logit a token, the same at every position. That is enough for sampling, log-probabilities,
gradients, AdamW and saved states to be what they claim to be, and for a policy to learn. Like the real server it takes
a training client's requests strictly in order and answers a repeated one with its first result. Each set of weights
knows the batches that it was trained on (`lineage`), so that one trained on twice, or lost, shows.

Nothing here is Tinker's code, and where the protocol is not public it is what the SDK accepts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

CHECKPOINT = re.compile(r"/api/v1/training_runs/([^/]+)/checkpoints/(.+)/ttl")
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class Weights:
    """Logits with AdamW's moments and step count, and the batches of each optimizer step behind them."""

    logits: np.ndarray
    first: np.ndarray
    second: np.ndarray
    lineage: tuple[str, ...] = ()

    @property
    def logprobs(self) -> np.ndarray:
        shifted = self.logits - self.logits.max()
        return shifted - np.log(np.exp(shifted).sum())

    def stepped(self, gradient: np.ndarray, batch: str, rate: float) -> Weights:
        first, second = 0.9 * self.first + 0.1 * gradient, 0.95 * self.second + 0.05 * gradient**2
        t = len(self.lineage) + 1
        change = rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.95**t)) + 1e-8)
        return Weights(self.logits - change, first, second, (*self.lineage, batch))


@dataclass
class Model:
    """A training client's model: its weights, the gradient so far, and its requests by sequence number."""

    session: str
    weights: Weights
    rank: int
    gradient: np.ndarray
    batches: list[str] = field(default_factory=list)
    done: int = 0
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)
    requests: dict[int, str] = field(default_factory=dict)


@dataclass
class Fault:
    """What happens to the next `times` requests of a route, after `skip` of them.

    `how`: a status code; `drop` (no reply, not carried out), `lose` (carried out, no reply), `hang` (no reply and the
    connection open), `pause` (a result that is never there, for want of capacity), `fail` (a result that is an error).
    """

    route: str
    how: int | str
    times: int = 1
    skip: int = 0
    body: dict[str, Any] = field(default_factory=dict)


class FakeTinker:
    """A running server; use it as a context manager. `lose_sessions` and `restart` are a server that went down."""

    def __init__(self, vocabulary: int = 300, model: str = "fake/unigram", context: int | None = 512) -> None:
        self.vocabulary, self.model, self.context = vocabulary, model, context
        self.models: dict[str, Model] = {}
        self.states: dict[str, Weights] = {}
        self.expiry: dict[str, int | None] = {}
        self.samplers: dict[str, Weights] = {}
        self.sessions: dict[str, str] = {}
        self.results: dict[str, tuple[str, Any]] = {}
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.shift = 0.0
        """Added to the log-probabilities of a sampler: a sampler that is not the trainer's policy."""
        self.script: Callable[[int], list[int]] | None = None
        """Writes the answers instead of the model, given their number; the model scores them."""
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._count = itertools.count()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    # The server as a process

    def __enter__(self) -> FakeTinker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                fake._handle(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._stop.clear()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def lose_sessions(self) -> None:
        """Forget everything but saved states."""
        with self._lock:
            self.models.clear()
            self.samplers.clear()
            self.sessions.clear()
            self.results.clear()

    def inject(self, route: str, how: int | str, times: int = 1, skip: int = 0, **body: Any) -> Fault:
        fault = Fault(route, how, times, skip, body)
        with self._lock:
            self.faults.append(fault)
        return fault

    def count(self, route: str) -> int:
        with self._lock:
            return self.calls.count(route)

    def state(self, path: str) -> Weights:
        return self.states[path]

    # One request

    def _handle(self, http: BaseHTTPRequestHandler) -> None:
        body = http.rfile.read(int(http.headers.get("content-length") or 0))
        if http.server is not self._server:  # a connection that was kept from before the server stopped
            http.close_connection = True
            return
        route = http.path.removeprefix("/api/v1/").partition("?")[0]
        with self._lock:
            self.calls.append(route)
            fault = self._fault(route)
        kind = "" if fault is None else fault.how
        if isinstance(kind, int):
            self._reply(http, kind, {"detail": f"injected {kind}"} | fault.body)
            return
        if kind == "hang":
            self._stop.wait()
            http.close_connection = True
            return
        if kind == "drop":
            http.close_connection = True
            return
        if kind == "pause":
            self._stop.wait(0.1)
            self._reply(http, 200, {"type": "try_again", "request_id": "", "queue_state": "paused_capacity"})
            return
        if kind == "fail":
            self._reply(http, 200, {"error": "injected failure", "category": "server"} | fault.body)
            return
        try:
            with self._lock:
                status, answer = self._route(http, route, body)
        except KeyError as missing:
            status, answer = 404, {"detail": f"{missing.args[0]} is not here"}
        if kind == "lose":
            http.close_connection = True
            return
        self._reply(http, status, answer)

    def _fault(self, route: str) -> Fault | None:
        for fault in self.faults:
            if fault.route == route:
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def _reply(self, http: BaseHTTPRequestHandler, status: int, answer: Any) -> None:
        data, kind = (
            (answer, PROTOBUF) if isinstance(answer, bytes) else (json.dumps(answer).encode(), "application/json")
        )
        http.send_response(status)
        http.send_header("content-type", kind)
        http.send_header("content-length", str(len(data)))
        if status >= 400:
            http.send_header("retry-after-ms", "20")
        http.end_headers()
        http.wfile.write(data)

    def _route(self, http: BaseHTTPRequestHandler, route: str, body: bytes) -> tuple[int, Any]:
        if route == "healthz":
            return 200, {"status": "ok"}
        if not http.headers.get("x-api-key", "").startswith("tml-"):
            return 401, {"detail": "who are you?"}
        if route == "forward_backward":
            return self._forward_backward(body)
        if ttl := CHECKPOINT.fullmatch(http.path):
            path = f"tinker://{ttl[1]}/{ttl[2]}"
            self.states[path]  # a KeyError is a 404
            self.expiry[path] = json.loads(body)["ttl_seconds"]
            return 200, {}
        if route.startswith("samplers/"):
            return 200, {"sampler_id": route[9:], "base_model": self.model}
        if route.startswith("sessions/") and route.endswith("/finish"):
            self.sessions[route.split("/")[1]] = "finished"
            return 200, {}
        handler = getattr(self, f"_{route.replace('/', '_')}", None)
        if handler is None:
            return 404, {"detail": f"no route {route}"}
        answer = handler(json.loads(body or b"{}"))
        return answer if isinstance(answer, tuple) else (200, answer)

    # Routes, by name

    def _client_config(self, _: Any) -> Any:
        return {}

    _client_dynamic_config = _telemetry = _client_config

    def _get_server_capabilities(self, _: Any) -> Any:
        return {"supported_models": [{"model_name": self.model, "max_context_length": self.context}]}

    def _create_session(self, _: Any) -> Any:
        name = f"session{next(self._count)}"
        self.sessions[name] = "open"
        return {"session_id": name, "type": "create_session"}

    def _session_heartbeat(self, request: Any) -> Any:
        self.sessions[request["session_id"]]
        return {"type": "session_heartbeat"}

    def _future(self, kind: str, answer: Any) -> dict[str, Any]:
        name = f"future{next(self._count)}"
        self.results[name] = (kind, answer)
        return {"request_id": name}

    def _make(self, request: Any, weights: Weights, rank: int) -> str:
        self.sessions[request["session_id"]]
        name = f"{request['session_id']}:train:{request['model_seq_id']}"
        self.models[name] = Model(request["session_id"], weights, rank, np.zeros(self.vocabulary))
        return name

    def _create_model(self, request: Any) -> Any:
        if request["base_model"] != self.model:
            return 400, {"detail": f"no model {request['base_model']}"}
        zeros = np.zeros(self.vocabulary)
        name = self._make(request, Weights(zeros, zeros, zeros), request["lora_config"]["rank"])
        return self._future("json", {"model_id": name, "type": "create_model"})

    def _load_weights(self, request: Any) -> Any:
        weights = self.states[request["path"]]
        if not request["optimizer"]:
            zeros = np.zeros(self.vocabulary)
            weights = replace(weights, first=zeros, second=zeros)
        self._make(request, weights, 8)
        return self._future("json", {"path": request["path"], "type": "load_weights"})

    def _get_info(self, request: Any) -> Any:
        self.models[request["model_id"]]
        return {"model_id": request["model_id"], "model_data": {"model_name": self.model}, "type": "get_info"}

    def _weights_info(self, request: Any) -> Any:
        self.states[request["tinker_path"]]
        return {"base_model": self.model, "is_lora": True, "lora_rank": 8}

    def _retrieve_future(self, request: Any) -> Any:
        kind, answer = self.results[request["request_id"]]
        if kind == "waiting":
            return {"type": "try_again", "request_id": request["request_id"], "queue_state": "active"}
        return answer

    def _in_order(self, request: dict[str, Any], work: Callable[[Model], Any]) -> dict[str, Any]:
        """Carry out a training client's request when all before it are done; answer a repeated one as the first."""
        model, number = self.models[request["model_id"]], request["seq_id"]
        if number in model.requests:
            return {"request_id": model.requests[number]}
        future = self._future("waiting", None)
        model.requests[number] = future["request_id"]

        def run() -> None:
            self.results[future["request_id"]] = ("done", work(model))

        model.waiting[number] = run
        while (next_run := model.waiting.pop(model.done + 1, None)) is not None:
            next_run()
            model.done += 1
        return future

    def _forward_backward(self, body: bytes) -> tuple[int, Any]:
        request = pb.ForwardBackwardRequest.FromString(body)

        def work(model: Model) -> bytes:
            gradient, outputs = np.zeros(self.vocabulary), []
            config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2} | dict(request.loss_fn_config)
            for datum in request.data:
                one, logprobs = datum_gradient(model.weights, request.loss_fn, datum, config)
                gradient += one
                outputs.append(logprobs)
            if not request.forward_only:
                model.gradient = model.gradient + gradient
                content = b"".join(datum.SerializeToString(deterministic=True) for datum in request.data)
                model.batches.append(hashlib.sha256(content).hexdigest()[:8])
            return _pass_output(outputs)

        return 200, self._in_order({"model_id": request.model_id, "seq_id": request.seq_id}, work)

    def _optim_step(self, request: Any) -> Any:
        def work(model: Model) -> Any:
            rate = request["adam_params"]["learning_rate"]
            norm = float(np.linalg.norm(model.gradient))
            model.weights = model.weights.stepped(model.gradient, "+".join(model.batches), rate)
            model.gradient, model.batches = np.zeros(self.vocabulary), []
            return {"type": "optim_step", "metrics": {"grad_norm": norm}}

        return self._in_order(request, work)

    def _save_weights(self, request: Any) -> Any:
        path = f"tinker://{request['model_id']}/weights/{request['path']}"
        if request["seq_id"] not in self.models[request["model_id"]].requests and path in self.states:
            return 409, {"detail": f"{path} exists"}

        def work(model: Model) -> Any:
            self.states[path] = model.weights
            self.expiry[path] = request.get("ttl_seconds")
            return {"path": path, "type": "save_weights"}

        return self._in_order(request, work)

    def _save_weights_for_sampler(self, request: Any) -> Any:
        def work(model: Model) -> Any:
            name = f"sampler{next(self._count)}"
            self.samplers[name] = model.weights
            return {"sampling_session_id": name, "path": None, "type": "save_weights_for_sampler"}

        return self._in_order(request, work)

    def _asample(self, request: Any) -> Any:
        logprobs = self.samplers[request["sampling_session_id"]].logprobs
        parameters, count = request["sampling_params"], request["num_samples"]
        stop = parameters.get("stop") or []
        response = pb.SampleResponse()
        for number in range(count):
            rng = np.random.default_rng([parameters.get("seed") or 0, number])
            if self.script is not None:
                tokens = self.script(next(self._count))
            else:
                tokens = []
                while len(tokens) < parameters["max_tokens"] and not (tokens and tokens[-1] in stop):
                    tokens.append(int(rng.choice(self.vocabulary, p=np.exp(logprobs))))
            ended = bool(tokens) and tokens[-1] in stop
            response.sequences.add(
                stop_reason=pb.STOP_REASON_STOP if ended else pb.STOP_REASON_LENGTH,
                tokens=np.array(tokens, np.int32).tobytes(),
                logprobs=(logprobs[tokens] + self.shift).astype(np.float32).tobytes(),
            )
        future = self._future("done", response.SerializeToString())
        return future | {"sample_sequence_ids": [f"{future['request_id']}:{number}" for number in range(count)]}


def datum_gradient(weights: Weights, loss: str, datum: Any, config: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of a loss over the logits for one datum, and the log-probabilities of its targets."""
    inputs = {name: np.frombuffer(tensor.dense, np.int64 if tensor.dtype == pb.DTYPE_INT64 else np.float32)
              for name, tensor in datum.loss_fn_inputs.items()}  # fmt: skip
    if loss != "cross_entropy" and "weights" in inputs:
        raise AssertionError("Tinker takes no weights for a policy loss")
    targets = inputs["target_tokens"]
    logprobs = weights.logprobs[targets]
    if loss == "cross_entropy":
        pull = inputs["weights"].astype(float)
    else:
        ratio, advantages = np.exp(logprobs - inputs["logprobs"]), inputs["advantages"]
        low, high = config["clip_low_threshold"], config["clip_high_threshold"]
        if loss == "cispo":
            pull = np.clip(ratio, low, high) * advantages
        elif loss == "ppo":
            inside = np.where(advantages >= 0, ratio <= high, ratio >= low)
            pull = ratio * advantages * inside
        else:
            pull = ratio * advantages
    gradient = np.exp(weights.logprobs) * pull.sum()
    np.subtract.at(gradient, targets, pull)
    return gradient, logprobs


def _pass_output(outputs: list[np.ndarray]) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(outputs))
    rows = [row.astype(np.float32) for row in outputs]
    tensor = record.fields["logprobs"]
    tensor.dtype = pb.DTYPE_FLOAT32
    tensor.data = b"".join(row.tobytes() for row in rows)
    tensor.offsets = np.cumsum([0, *(row.nbytes for row in rows)]).astype(np.int64).tobytes()
    return message.SerializeToString()
