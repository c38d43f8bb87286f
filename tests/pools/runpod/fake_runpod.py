"""A fake Runpod: its REST API v2 and its HTTP proxy over a real socket. A pod is a real process running the real agent.

What a pod is here: `pod_agent.py` as process 1 of a process namespace of its own (where the machine allows it), a
folder as its container disk, a user id as its jobs' user, a free port behind the proxy, a shell script as `nvidia-smi`.
The API follows the OpenAPI document of 2026-08-20: strict bodies, problem details, statuses and the actions each
allows. The pod-scoped key may see and delete only its own pod.

Faults are given beforehand (`Fault`) and fire on the n-th matching event, so that a seed means the same faults each
time. The fake keeps its own books, in real seconds, to check the controller's against.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trainwright.pools.runpod.pod_agent as pod_agent

ACCOUNT_KEY = "fake-account-key"
CREATE_FIELDS = {
    *("name", "image", "gpu", "cpu", "cloud", "dataCenterIds", "disk", "mounts", "env", "ports", "args", "registry"),
    *("startSsh", "startJupyter", "globalNetworking", "templateId"),
}
GPU_FIELDS = {"id", "count", "minCudaVersion", "allowedCudaVersions"}
ACTIONS = {
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "TERMINATED": [],
}
UIDS = itertools.count(200_000 + os.getpid() % 1000 * 1000, 2)  # an agent uses its jobs' uid and the next one
HOST = ["/bin/sh", "-c", '"$@" & read -r _; kill -9 $!', "host"]  # when we die, our pods die
NVIDIA_SMI = '#!/bin/sh\ncat "${0%/*}/gpus"\n'
TITLES = {400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found"}


@dataclass
class Fault:
    """Something that goes wrong at `where`: `create`, `api`, `pod`, `proxy:CATEGORY` or `proxy:any`.

    It lets `skip` matching events pass and then fires `times` times. A pod's fault happens `after` seconds from the
    start of its agent; `pod` restricts it to the n-th pod ever made.
    """

    where: str
    kind: str
    skip: int = 0
    times: int = 1
    after: float = 0.0
    pod: int | None = None


@dataclass
class FakePod:
    """One pod. `lease_until` is the latest moment its agent may live to, by what the fake saw granted."""

    number: int
    id: str
    name: str
    body: dict[str, Any]
    usd_per_hour: float
    created: float
    created_at: str
    folder: Path
    faults: list[Fault]
    status: str = "PROVISIONING"
    ended: float | None = None
    ended_by: str = ""
    started: float | None = None
    lease_until: float | None = None
    boots: int = 0
    port: int = 0
    reserved: socket.socket | None = None
    process: subprocess.Popen[bytes] | None = None
    shown: bool = False  # whether the account was ever told of it
    stopped: bool = False  # its agent hangs, and nothing on the pod can end it
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def key(self) -> str:
        """Return the pod-scoped key."""
        return f"pod-key-{self.id}"


@functools.cache
def own_namespace() -> list[str]:
    """Return the words that start a command as process 1, none where the machine doesn't allow it."""
    words = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    return words


class FakeRunpod:
    """The service. `with FakeRunpod(folder) as fake:` starts it; leaving kills every pod."""

    def __init__(
        self,
        folder: Path,
        faults: list[Fault] | None = None,
        *,
        boot_seconds: float = 0.05,
        gpus: dict[str, float] | None = None,
        centers: tuple[str, ...] = ("US-KS-2", "EU-RO-1"),
        balance: float = 1e9,
        own_users: bool = True,
    ) -> None:
        self.folder, self.faults, self.boot_seconds, self.balance = folder, faults or [], boot_seconds, balance
        self._own_users = own_users and os.geteuid() == 0
        self.gpus = gpus or {"NVIDIA GeForce RTX 4090": 0.69, "NVIDIA L40S": 0.86}
        self.centers = centers
        self.pods: list[FakePod] = []
        self.requests: list[str] = []
        self.proxied: list[str] = []
        self.uploads: list[tuple[int, bytes]] = []
        self.orders: list[tuple[int, int, str]] = []  # number of the pod, of its boot, key of the job
        self.unauthorized = 0
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._tick, daemon=True),
        ]

    @property
    def base_url(self) -> str:
        """Return the API's base URL."""
        return f"http://127.0.0.1:{self._server.server_port}/v2"

    @property
    def proxy_template(self) -> str:
        """Return the proxy template."""
        return f"http://127.0.0.1:{self._server.server_port}/pod/{{pod_id}}/{{port}}"

    def __enter__(self) -> FakeRunpod:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        for pod in self.pods:
            self._kill(pod)
            if pod.reserved is not None:
                pod.reserved.close()
            shutil.rmtree(pod.folder, ignore_errors=True)

    def groups(self) -> dict[tuple[int, int], set[str]]:
        """Return the trust groups whose jobs reached each container: by number of the pod, and of its boot."""
        found: dict[tuple[int, int], set[str]] = {}
        for number, boot, key in self.orders:
            found.setdefault((number, boot), set()).add(key.rpartition("-")[0])
        return found

    # Books

    def live(self) -> list[FakePod]:
        """Return the pods that exist."""
        with self.lock:
            return [pod for pod in self.pods if pod.ended is None]

    def spent(self, *, shown: bool = False) -> float:
        """Return what all pods have cost, or those that the account was told of, in USD."""
        now = time.monotonic()
        with self.lock:
            pods = [pod for pod in self.pods if pod.shown or not shown]
            return sum(pod.usd_per_hour * ((pod.ended or now) - pod.created) / 3600 for pod in pods)

    def overstayed(self, slack: float) -> list[str]:
        """Return the pods that lived, or live, longer than their lease plus some slack."""
        now = time.monotonic()
        with self.lock:
            late = [pod for pod in self.pods if pod.lease_until and (pod.ended or now) > pod.lease_until + slack]
        return [f"{pod.id}: {(pod.ended or now) - (pod.lease_until or 0):.2f} s, {pod.ended_by}" for pod in late]

    def fire(self, where: str, number: int | None = None) -> Fault | None:
        """Return the fault that this event triggers."""
        with self.lock:
            for fault in self.faults:
                if fault.where != where or fault.times == 0 or fault.pod not in (None, number):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    # Pods

    def create(self, body: dict[str, Any]) -> FakePod:
        """Make a pod; its process starts a little later."""
        with self.lock:
            number = len(self.pods)
            found = [fault for fault in (self.fire("pod", number),) if fault]
            pod = FakePod(
                number=number,
                id=f"pod{number}x{os.urandom(4).hex()}",
                name=body["name"],
                body=body,
                usd_per_hour=self.gpus[body["gpu"]["id"]],
                created=time.monotonic(),
                created_at=stamp(time.time()),
                folder=self.folder / f"pod{number}-{os.urandom(3).hex()}",
                faults=found,
            )
            self.pods.append(pod)
        return pod

    def end(self, pod: FakePod, by: str) -> None:
        """Terminate a pod for good."""
        with pod.lock:
            if pod.ended is None:
                self._kill(pod)
                pod.ended, pod.ended_by, pod.status = time.monotonic(), by, "TERMINATED"

    def restart(self, pod: FakePod) -> None:
        """Restart a pod's container: another process 1 on an empty disk."""
        with pod.lock:
            if pod.ended is None:
                self._kill(pod)
                self._start(pod)

    def _start(self, pod: FakePod) -> None:
        env = {name: str(value) for name, value in pod.body.get("env", {}).items()}
        kinds = {fault.kind for fault in pod.faults}
        disk = pod.folder / f"disk{pod.boots}"
        (pod.folder / "bin").mkdir(parents=True, exist_ok=True)
        (pod.folder / "bin" / "gpus").write_text(
            "" if "no_gpu" in kinds else f"{pod.body['gpu']['id']}, GPU-{pod.number}, 24564 MiB, 570.1\n"
        )
        smi = pod.folder / "bin" / "nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        for folder in (pod.folder.parent, pod.folder, pod.folder / "bin"):
            folder.chmod(0o755)
        cgroup = pod.folder / "cgroup"  # the kernel's counter; a job that plays out of memory writes it itself
        cgroup.mkdir(exist_ok=True)
        (cgroup / "memory.events").write_text("oom_kill 0\n")
        (cgroup / "memory.events").chmod(0o666)
        skew = 3600 if "clock_behind" in kinds else -3600 if "clock_ahead" in kinds else 0
        if pod.reserved is None:
            pod.reserved = reserve_port()
            pod.port = pod.reserved.getsockname()[1]
        uid = str(next(UIDS)) if self._own_users else "same"
        env |= {
            "PATH": f"{pod.folder / 'bin'}:/usr/bin:/bin",
            "RUNPOD_POD_ID": pod.id,
            "RUNPOD_API_KEY": pod.key,
            "TRAINWRIGHT_PORT": str(pod.port),
            "TRAINWRIGHT_FOLDER": str(disk),
            "TRAINWRIGHT_CGROUP": str(pod.folder / "cgroup"),
            "TRAINWRIGHT_JOB_UID": uid,
            "TRAINWRIGHT_DEADLINE": str(int(env["TRAINWRIGHT_DEADLINE"]) + skew),
        }
        with open(pod.folder / "container.log", "ab") as log:
            pod.process = subprocess.Popen(
                [*HOST, *own_namespace(), sys.executable, "-I", "-S", pod_agent.__file__],
                env=env,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pod.started, pod.status, pod.stopped = time.monotonic(), "RUNNING", False
        pod.boots += 1
        lease = pod.started + float(env["TRAINWRIGHT_LEASE_SECONDS"])
        pod.lease_until = max(pod.lease_until or 0.0, lease)

    def _kill(self, pod: FakePod) -> None:
        if pod.process is None:
            return
        for pid in tree(pod.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        pod.process.wait()
        assert pod.process.stdin is not None
        pod.process.stdin.close()

    def _tick(self) -> None:
        """Let time pass: boots, what goes wrong with pods later, and the balance."""
        while not self._stop.wait(0.02):
            if self.spent() > self.balance:
                for pod in self.live():
                    self.end(pod, "balance")
            for pod in self.live():
                with pod.lock, contextlib.suppress(OSError):
                    if pod.ended is None:
                        self._step(pod)

    def _step(self, pod: FakePod) -> None:
        now, kinds = time.monotonic(), {fault.kind for fault in pod.faults}
        if pod.started is None:
            if "never_boots" in kinds or "pull_failure" in kinds:
                pod.status = "ERROR" if "pull_failure" in kinds and now - pod.created > 0.2 else "STARTING"
            elif now - pod.created > self.boot_seconds * (20 if "slow_boot" in kinds else 1):
                self._start(pod)
            return
        for fault in list(pod.faults):
            if now - pod.started < fault.after:
                continue
            if fault.kind == "vanish":
                self.end(pod, "vanished")
            elif fault.kind == "boot_loop":
                self.restart(pod)
            elif fault.kind == "gpu_changes":
                pod.faults.remove(fault)
                (pod.folder / "bin" / "gpus").write_text("another GPU\n")
            elif fault.kind in {"restart", "hang", "server_hang", "server_crash", "exited"}:
                pod.faults.remove(fault)
                self._break(pod, fault.kind)

    def _break(self, pod: FakePod, kind: str) -> None:
        if kind == "restart":
            return self.restart(pod)
        assert pod.process is not None
        family = tree(pod.process.pid)
        depth = 3 if own_namespace() else 2  # the host's shell, unshare, process 1, its server
        if kind == "exited":
            self._kill(pod)
            pod.status = "EXITED"
        elif kind == "hang":
            pod.stopped = True
            for pid in family[depth - 1 :]:
                os.kill(pid, signal.SIGSTOP)
        elif len(family) > depth:
            os.kill(family[depth], signal.SIGSTOP if kind == "server_hang" else signal.SIGKILL)
        return None

    # The API

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 30

            def _serve(self) -> None:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    length = int(self.headers.get("Content-Length") or 0)
                    body = self.rfile.read(length)
                    if self.path.startswith("/pod/"):
                        fake.proxy(self, body)
                    else:
                        fake.api(self, body)

            do_GET = do_PUT = do_POST = do_DELETE = _serve

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def api(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Answer one call of the API."""
        url = urlsplit(handler.path)
        words = [word for word in url.path.split("/") if word][1:]
        with self.lock:
            self.requests.append(f"{handler.command} /{'/'.join(words)}")
        key = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        own = next((pod for pod in self.pods if pod.key == key), None)
        if key != ACCOUNT_KEY and own is None:
            self.unauthorized += 1
            return problem(handler, 401, "invalid bearer token")
        creating = handler.command == "POST" and words == ["pods"]
        if own is None and not creating and (fault := self.fire("api")):
            return self._api_fault(handler, fault)
        if own is not None and words[:2] != ["pods", own.id]:
            return problem(handler, 403, "access denied")
        if creating:
            return self._create(handler, body)
        if handler.command == "GET" and words == ["pods"]:
            return reply(handler, 200, {"pods": [self.shown(pod) for pod in self.live()]})
        if handler.command == "GET" and words == ["catalog", "gpus"]:
            return self._catalog(handler, {name: values[0] for name, values in parse_qs(url.query).items()})
        if words[:1] == ["pods"] and len(words) in (2, 3):
            pod = next((pod for pod in self.live() if pod.id == words[1]), None)
            if pod is None:
                return problem(handler, 404, "pod not found")
            return self._pod(handler, pod, words[2:], body)
        return problem(handler, 404, "resource not found")

    def _api_fault(self, handler: BaseHTTPRequestHandler, fault: Fault) -> None:
        if fault.kind == "rate_limit":
            problem(handler, 429, "rate limit exceeded for the minute window", {"Retry-After": "1"})
        elif fault.kind == "drop":
            handler.close_connection = True
        elif fault.kind == "nonsense":
            raw(handler, 200, b"<html>Bad gateway</html>")
        elif fault.kind == "redirect":
            raw(handler, 302, b"", {"Location": "http://127.0.0.1:9/"})
        else:
            problem(handler, 503, "upstream failure")

    def _pod(self, handler: BaseHTTPRequestHandler, pod: FakePod, rest: list[str], body: bytes) -> None:
        by = "itself" if handler.headers.get("Authorization", "").endswith(pod.key) else "the account"
        if handler.command == "GET" and not rest:
            reply(handler, 200, self.shown(pod))
        elif handler.command == "GET" and rest == ["logs"]:
            self._logs(handler, pod)
        elif handler.command == "DELETE" and not rest:
            self._terminate(handler, pod, by)
        elif handler.command == "POST" and rest == ["action"]:
            action = json.loads(body).get("action")
            if action not in {"start", "stop", "restart", "terminate"} or set(json.loads(body)) != {"action"}:
                problem(handler, 422, "Request validation failed.")
            elif action not in ACTIONS[pod.status]:
                problem(handler, 409, f"{action} is not valid for status {pod.status}")
            elif action == "terminate":
                self._terminate(handler, pod, by)
            else:
                if action == "restart" and not self.fire("restart", pod.number):
                    threading.Thread(target=self.restart, args=(pod,), daemon=True).start()
                elif action == "stop":
                    self._break(pod, "exited")
                reply(handler, 200, self.shown(pod))
        else:
            problem(handler, 404, "resource not found")

    def _terminate(self, handler: BaseHTTPRequestHandler, pod: FakePod, by: str) -> None:
        if by == "itself":  # it won't live to read the reply otherwise
            raw(handler, 204, b"")
            self.end(pod, by)
        else:
            self.end(pod, by)
            raw(handler, 204, b"")

    def _create(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        try:
            wanted = json.loads(body)
        except ValueError:
            return problem(handler, 400, "malformed body")
        if errors := contract_errors(wanted):
            return problem(handler, 422, "Request validation failed.", errors=errors)
        fault = self.fire("create")
        kind = fault.kind if fault else ""
        refusals = {
            "no_capacity": (400, "There are no instances currently available with the requested specifications"),
            "no_capacity_500": (500, "create pod: There are no longer any instances available"),
            "rule": (400, "request could not be processed"),
            "balance": (402, "Insufficient balance."),
            "forbidden": (403, "access denied"),
            "error": (503, "upstream failure"),
        }
        if kind in refusals:
            return problem(handler, *refusals[kind])
        if kind == "rate_limit":
            return problem(handler, 429, "rate limit exceeded for the minute window", {"Retry-After": "1"})
        if kind == "drop_request":
            handler.close_connection = True
            return None
        if self.spent() > self.balance:
            return problem(handler, 402, "Insufficient balance.")
        if wanted["gpu"]["id"] not in self.gpus or set(wanted.get("dataCenterIds", [])) - set(self.centers):
            return problem(handler, 400, "this GPU and data center combination could not be placed")
        pod = self.create(wanted)
        if kind == "duplicate":
            self.create(wanted)
        if kind in {"drop_reply", "duplicate"}:
            handler.close_connection = True
            return None
        if kind == "created_but_502":
            return raw(handler, 502, b"<html>Bad Gateway</html>")
        if kind == "dearer":
            pod.usd_per_hour *= 100
        return reply(handler, 201, self.shown(pod))

    def _catalog(self, handler: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        if query.get("include") == "AVAILABILITY" and "product" not in query:
            return problem(handler, 400, "product is required with include=AVAILABILITY")
        centers = [{"id": id, "name": id, "availability": "HIGH"} for id in self.centers]
        gpus = [
            {
                "id": id,
                "name": id.removeprefix("NVIDIA "),
                "pool": None,
                "manufacturer": "NVIDIA",
                "memory": 24,
                "secure": True,
                "community": True,
                "price": {"secure": price, "community": price * 0.7},
                "maxCount": {"secure": 8, "community": 4},
                "availability": "HIGH" if centers else "NONE",
                **({"dataCenters": centers} if centers else {}),
            }
            for id, price in self.gpus.items()
        ]
        return reply(handler, 200, {"gpus": gpus})

    def _logs(self, handler: BaseHTTPRequestHandler, pod: FakePod) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        lines = ["system: pulling image"]
        with contextlib.suppress(OSError):
            lines += [f"container: {line}" for line in (pod.folder / "container.log").read_text().splitlines()[-20:]]
        for line in lines:
            source, _, text = line.partition(": ")
            event = {"source": source, "line": text, "ts": stamp(time.time())}
            handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def shown(self, pod: FakePod) -> dict[str, Any]:
        """Return a pod as the API shows it, every field that the document requires."""
        running = pod.status == "RUNNING"
        pod.shown = True
        return {
            "id": pod.id,
            "name": pod.name,
            "status": pod.status,
            "actions": ACTIONS[pod.status],
            "image": pod.body["image"],
            "args": "",
            "disk": pod.body.get("disk", 50),
            "mounts": {},
            "ports": pod.body.get("ports", []),
            "env": pod.body.get("env", {}),
            "registry": None,
            "gpu": {"id": pod.body["gpu"]["id"], "count": 1},
            "cloud": pod.body.get("cloud", "SECURE"),
            "dataCenterId": (pod.body.get("dataCenterIds") or [None])[0],
            "cudaVersion": "12.8",
            "ssh": {"proxy": None, "direct": None},
            "template": None,
            "cost": 0.0 if pod.status in {"EXITED", "TERMINATED"} else pod.usd_per_hour,
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": {"uptime": int(time.monotonic() - (pod.started or 0)), "ports": []} if running else None,
            "createdAt": pod.created_at,
            "startedAt": None,
        }

    # The proxy

    def proxy(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Forward a request to a pod's agent, or do what a proxy or a hostile pod might."""
        _, _, pod_id, _, rest = handler.path.split("/", 4)
        pod = next((pod for pod in self.live() if pod.id == pod_id), None)
        if pod is None or not pod.port:
            return raw(handler, 404, b"<html>no such pod</html>")
        category = categorize(handler.command, "/" + rest)
        with self.lock:
            self.proxied.append(category)
            if category in {"declare", "files"}:
                self.uploads.append((pod.number, rest.encode() + body))
            if "path=settings.json" in rest:
                self.orders.append((pod.number, pod.boots, json.loads(body)["key"]))
        fault = self.fire(f"proxy:{category}", pod.number) or self.fire("proxy:any", pod.number)
        if fault and self._proxy_fault(handler, fault):
            return None
        connection = http.client.HTTPConnection("127.0.0.1", pod.port, timeout=20)
        try:
            headers = {"Authorization": handler.headers.get("Authorization", ""), "Content-Length": str(len(body))}
            granted = time.monotonic()
            connection.request(handler.command, "/" + rest, body, headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            return raw(handler, 502, b"<html>Bad Gateway</html>")
        finally:
            connection.close()
        if category == "lease" and response.status == 200:
            until = time.monotonic() + json.loads(body)["seconds"]
            pod.lease_until = until if until > granted else pod.lease_until
        kept = {name: value for name, value in response.getheaders() if name.startswith("X-")}
        if fault and fault.kind == "truncate":
            data = data[: len(data) // 2]
        elif fault and fault.kind == "forge":
            data = data.replace(b"0.5", b"9.5") if b"0.5" in data else bytes(byte ^ 1 for byte in data)
        return raw(handler, response.status, data, kept)

    def _proxy_fault(self, handler: BaseHTTPRequestHandler, fault: Fault) -> bool:
        """Answer instead of the agent; return false for the faults that only change its answer."""
        if fault.kind in {"502", "524"}:
            raw(handler, int(fault.kind), b"<html>error</html>")
        elif fault.kind == "redirect":
            raw(handler, 302, b"", {"Location": self.base_url + "/pods"})
        elif fault.kind == "drop":
            handler.close_connection = True
        elif fault.kind == "nonsense":
            raw(handler, 200, b"[" * 5000)
        elif fault.kind == "huge":
            stream(handler, repeated(b"\0" * 65536, 5 << 30))
        elif fault.kind == "slow_loris":
            stream(handler, slowly(b"{", 0.05, self._stop))
        else:
            return False
        return True


def contract_errors(body: Any) -> list[str]:
    """Return the violations of CreatePodRequest."""
    if not isinstance(body, dict):
        return ["$: must be an object"]
    errors = [f"$: additional properties '{name}' not allowed" for name in sorted(set(body) - CREATE_FIELDS)]
    errors += [f"$: missing property '{name}'" for name in ("name", "image") if not body.get(name)]
    gpu = body.get("gpu")
    if not isinstance(gpu, dict) or "id" not in gpu or set(gpu) - GPU_FIELDS:
        errors.append("$.gpu: not a GPU request")
    env = body.get("env", {})
    if len(env) > 50 or not all(isinstance(value, str) for value in env.values()):
        errors.append("$.env: at most 50 strings")
    if body.get("cloud", "SECURE") not in {"SECURE", "COMMUNITY"}:
        errors.append("$.cloud: unknown")
    return errors


def categorize(method: str, path: str) -> str:
    """Return what a request to an agent is about."""
    url = urlsplit(path)
    last = url.path.rsplit("/", 1)[-1]
    if last in {"health", "lease", "start", "files"}:
        return last
    if last == "stream":
        return parse_qs(url.query)["file"][0]
    return {"GET": "status", "PUT": "declare", "DELETE": "wipe"}.get(method, "other")


def reply(handler: BaseHTTPRequestHandler, status: int, value: Any) -> None:
    """Send JSON."""
    raw(handler, status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def problem(
    handler: BaseHTTPRequestHandler,
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    errors: list[str] | None = None,
) -> None:
    """Send problem details (RFC 9457)."""
    value = {"title": TITLES.get(status, "Error"), "status": status, "detail": detail}
    data = json.dumps(value | ({"errors": errors} if errors else {})).encode()
    raw(handler, status, data, {"Content-Type": "application/problem+json", **(headers or {})})


def raw(handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
    """Send bytes."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def stream(handler: BaseHTTPRequestHandler, pieces: Iterator[bytes]) -> None:
    """Send pieces until the client has had enough."""
    handler.send_response(200)
    handler.end_headers()
    for piece in pieces:
        handler.wfile.write(piece)


def repeated(piece: bytes, total: int) -> Iterator[bytes]:
    """Yield a piece until so many bytes are out."""
    for _ in range(total // len(piece)):
        yield piece


def slowly(piece: bytes, seconds: float, stop: threading.Event) -> Iterator[bytes]:
    """Yield a byte now and then."""
    while not stop.wait(seconds):
        yield piece


def tree(pid: int) -> list[int]:
    """Return a process and its descendants, parents first."""
    family, index = [pid], 0
    while index < len(family):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{family[index]}/task"):
                text = Path(f"/proc/{family[index]}/task/{thread}/children").read_text()
                family += [int(child) for child in text.split()]
        index += 1
    return family


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port from everyone but an agent: bound, never listening, address reusable."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("0.0.0.0", 0))
    return one


def stamp(seconds: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
