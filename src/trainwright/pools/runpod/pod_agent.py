#!/usr/bin/env python3
"""The pod agent: process 1 of a rented pod. One file, standard library only, Python 3.11 or newer.

It takes jobs from the controller over HTTP, runs them as another user with a scrubbed environment, and deletes its own
pod when the lease or the deadline passes. Two processes share the work, so that nothing a job does to the second can
stop the first:

- the **supervisor** (process 1) knows only the lease, the deadline and how to delete the pod; no sockets, no disk;
- the **server**, its child, speaks HTTP, runs jobs, and passes each renewed lease to the supervisor over a pipe. When
  it dies the supervisor starts a new one, which knows no jobs: the controller then sees that its job is gone. The
  boot id is the supervisor's, so a new one proves that the whole container is new and its disk wiped.

A container that exits doesn't end a pod, and Runpod has no time to live, so nothing here ever exits by itself: after
the lease it deletes the pod (REST v2, with the pod-scoped key that Runpod injects) and repeats until it's dead.

Every request carries the bearer token and is over within a minute. The job's files are checked by path, size and
SHA-256 before it starts; its logs, metrics and artifact are read in pieces by offset.

    PUT  /jobs/ID                     manifest (JSON): command, environment, wall_seconds, files {path: {size, sha256}}
    PUT  /jobs/ID/files?path=&offset= a piece of one file, 4 MiB at most
    POST /jobs/ID/start               check every file, then run        GET    /jobs/ID  state and how it ended
    GET  /jobs/ID/stream?file=&offset=&length=   piece of log|metrics|artifact, with its SHA-256
    POST /lease                       {"seconds", "now"}: renew         DELETE /jobs/ID  kill, wipe
    GET  /health                      boot id, lease, deadline, GPUs, jobs, service
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER_AGENT = "trainwright-pod-agent/1"  # Cloudflare turns urllib's own name away
MAX_LEASE_SECONDS = 3600.0
MAX_REQUEST_SECONDS = 55.0
MAX_CONNECTIONS = 32
MAX_MANIFEST_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
STREAM_BYTES = 256 << 10
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 64
MAX_LOG_BYTES = 32 << 20
ARTIFACT, METRICS, FAULT = "artifact", "metrics.jsonl", "fault.json"
PASSED_ON = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME")
JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
FILE_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/){0,4}[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Json = dict[str, Any]
Reply = Json | tuple[bytes, dict[str, str]]


@dataclass(frozen=True)
class Settings:
    """What the environment of the container says. `deadline` is in epoch seconds; `job_uid` None runs jobs as us."""

    token: str
    deadline: float
    lease_seconds: float
    pod_id: str
    api_key: str
    api_url: str
    port: int
    folder: str
    job_uid: int | None
    service: list[str]
    cgroup: str

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """Return the settings; raise `ValueError` naming the variable that is missing or wrong."""

        def number(name: str, default: str | None = None) -> float:
            text = env.get(name, default)
            if text is None:
                raise ValueError(f"{name} is not set")
            try:
                return float(text)
            except ValueError:
                raise ValueError(f"{name} must be a number, not {text!r}") from None

        if len(env.get("TRAINWRIGHT_TOKEN", "")) < 32:
            raise ValueError("TRAINWRIGHT_TOKEN must have at least 32 characters")
        if not env.get("RUNPOD_POD_ID"):
            raise ValueError("RUNPOD_POD_ID is not set")
        service = json.loads(env.get("TRAINWRIGHT_SERVICE") or "[]")
        if not isinstance(service, list) or not all(isinstance(word, str) for word in service):
            raise ValueError("TRAINWRIGHT_SERVICE must be a JSON list of strings")
        uid = env.get("TRAINWRIGHT_JOB_UID", "10001")
        return cls(
            token=env["TRAINWRIGHT_TOKEN"],
            deadline=number("TRAINWRIGHT_DEADLINE"),
            lease_seconds=min(number("TRAINWRIGHT_LEASE_SECONDS"), MAX_LEASE_SECONDS),
            pod_id=env["RUNPOD_POD_ID"],
            api_key=env.get("RUNPOD_API_KEY", ""),
            api_url=env.get("TRAINWRIGHT_RUNPOD_BASE_URL", "https://api.runpod.io/v2").rstrip("/"),
            port=int(number("TRAINWRIGHT_PORT", "8900")),
            folder=env.get("TRAINWRIGHT_FOLDER", "/var/lib/trainwright"),
            job_uid=None if uid == "same" else int(number("TRAINWRIGHT_JOB_UID", "10001")),
            service=service,
            cgroup=env.get("TRAINWRIGHT_CGROUP", "/sys/fs/cgroup"),
        )


# ---------------------------------------------------------------------------------------------------------------------
# The supervisor


def main() -> None:
    """Run the supervisor; never returns. Settings that can't be read leave a pod that deletes itself in a minute."""
    try:
        settings = Settings.read(os.environ)
    except ValueError as error:
        say(f"cannot run: {error}; deleting this pod in a minute")
        time.sleep(60)
        delete_pod(
            os.environ.get("TRAINWRIGHT_RUNPOD_BASE_URL", "https://api.runpod.io/v2").rstrip("/"),
            os.environ.get("RUNPOD_POD_ID", ""),
            os.environ.get("RUNPOD_API_KEY", ""),
        )
        return
    supervise(settings)


def supervise(settings: Settings) -> None:
    """Keep a server running until the lease or the deadline passes, then delete the pod.

    The lease counts on the monotonic clock, so that a wrong clock can't stretch it. The deadline is absolute because
    it must survive container restarts; a renewed lease carries the controller's time and corrects it.
    """
    lease = time.monotonic() + settings.lease_seconds
    deadline = time.monotonic() + settings.deadline - time.time()
    boot_id = uuid.uuid4().hex
    server, news = start_server(settings, boot_id, lease, deadline)
    pending = b""
    while (left := min(lease, deadline) - time.monotonic()) > 0:
        ready, _, _ = select.select([news], [], [], min(left, 1.0))
        data = os.read(news, 4096) if ready else None
        if data:
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    asked, deadline = (float(number) for number in line.split())
                    lease = min(asked, time.monotonic() + MAX_LEASE_SECONDS)
        reap_children()
        if data == b"":
            say("the server died; starting another")
            os.close(news)
            kill_user(settings.job_uid)
            time.sleep(min(0.5, max(0.0, min(lease, deadline) - time.monotonic())))
            pending = b""
            server, news = start_server(settings, boot_id, lease, deadline)
    say("the lease or the deadline has passed; deleting this pod")
    with contextlib.suppress(OSError):
        os.kill(server, signal.SIGKILL)
    kill_user(settings.job_uid)
    delete_pod(settings.api_url, settings.pod_id, settings.api_key)


def start_server(settings: Settings, boot_id: str, lease: float, deadline: float) -> tuple[int, int]:
    """Fork the server; return its process id and the end of the pipe on which it reports lease and deadline."""
    news, report = os.pipe()
    child = os.fork()
    if child:
        os.close(report)
        return child, news
    os.close(news)
    try:
        serve(settings, boot_id, report, lease, deadline)
    except BaseException as error:
        say(f"server failed: {error!r}")
    finally:
        os._exit(1)


def reap_children() -> None:
    """Collect every dead child: as process 1 we inherit all orphans."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def delete_pod(api_url: str, pod_id: str, api_key: str) -> None:
    """Delete the pod that this runs in, by three ways in turn and for ever: success kills this process."""
    wait = 0.5
    while True:
        for method, path, body in (
            ("DELETE", f"/pods/{pod_id}", None),
            ("POST", f"/pods/{pod_id}/action", {"action": "terminate"}),
            ("POST", f"/pods/{pod_id}/action", {"action": "stop"}),
        ):
            request = urllib.request.Request(
                api_url + path,
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {api_key}",
                    "Content-Type": "application/json",
                    "User-Agent": USER_AGENT,
                },
            )
            try:
                with urllib.request.urlopen(request, timeout=20) as response:
                    say(f"{method} {path}: {response.status}")
                    break
            except urllib.error.HTTPError as error:
                say(f"{method} {path}: {error.code}")
                if error.code == 404:
                    break
            except Exception as error:
                say(f"{method} {path}: {error!r}")
        reap_children()
        time.sleep(wait)
        wait = min(wait * 2, 30.0)


def say(text: str) -> None:
    """Write one line to the container's log; a full disk or a closed pipe is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pod agent: {text}\n")
        sys.stderr.flush()


def kill_user(uid: int | None) -> None:
    """Kill every process of a user until none is left (a fork bomb needs more than one round)."""
    for _ in range(100):
        found = False
        for entry in os.listdir("/proc") if uid is not None else ():
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid:
                    with open(f"/proc/{entry}/stat") as file:
                        zombie = file.read().rpartition(")")[2].split()[0] == "Z"
                    if not zombie:
                        os.kill(int(entry), signal.SIGKILL)
                        found = True
        if not found:
            return
        time.sleep(0.02)


# ---------------------------------------------------------------------------------------------------------------------
# Jobs


class Refusal(Exception):
    """A request that can't be served: HTTP status and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Job:
    """One job on this pod. `files` holds the sizes and hashes promised; `ended` says how it ended."""

    id: str
    manifest_sha256: str
    command: list[str]
    env: dict[str, str]
    wall_seconds: float
    files: dict[str, Json]
    folder: str
    state: str = "UPLOADING"
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wall: float = 0.0
    ended: str = ""
    exit_code: int | None = None
    artifact: Json | None = None
    fault: Json | None = None
    gpu_ok: bool | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def out(self) -> str:
        """Return the folder the job may write to."""
        return os.path.join(self.folder, "out")

    @property
    def log(self) -> str:
        """Return the log file, written by the agent."""
        return os.path.join(self.folder, "log")

    def path(self, kind: str) -> str:
        """Return the file behind a stream: `log`, `metrics` or `artifact`; raise `Refusal`."""
        if kind == "log":
            return self.log
        names = {"metrics": METRICS, "artifact": ARTIFACT}
        if kind not in names:
            raise Refusal(404, f"no stream {kind!r}")
        return os.path.join(self.out, names[kind])

    def status(self) -> Json:
        """Return what the controller may know."""
        return {
            "id": self.id,
            "manifest_sha256": self.manifest_sha256,
            "state": self.state,
            "ended": self.ended,
            "exit_code": self.exit_code,
            "wall_seconds": time.monotonic() - self.started if self.state == "RUNNING" else self.wall,
            "artifact": self.artifact,
            "fault": self.fault,
            "gpu_ok": self.gpu_ok,
        }


class Jobs:
    """The jobs of this boot, one running at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._jobs: dict[str, Job] = {}
        self._lock = threading.RLock()
        shutil.rmtree(settings.folder, ignore_errors=True)
        os.makedirs(settings.folder, mode=0o755)

    def states(self) -> dict[str, str]:
        """Return the state of every job by id."""
        with self._lock:
            return {job.id: job.state for job in self._jobs.values()}

    def get(self, id: str) -> Job:
        """Return a job; raise `Refusal`."""
        with self._lock:
            if id not in self._jobs:
                raise Refusal(404, f"no job {id!r}")
            return self._jobs[id]

    def declare(self, id: str, body: bytes) -> Job:
        """Take a manifest. The same manifest twice is one job; another under the same id is refused."""
        digest = hashlib.sha256(body).hexdigest()
        with self._lock:
            known = self._jobs.get(id)
            if known:
                if known.manifest_sha256 != digest:
                    raise Refusal(409, f"job {id!r} exists with another manifest")
                return known
            if any(job.state != "DONE" for job in self._jobs.values()):
                raise Refusal(409, "another job has not ended")
            manifest = checked_manifest(body)
            job = Job(id=id, manifest_sha256=digest, folder=os.path.join(self._settings.folder, id), **manifest)
            for name in ("", "job", "out", "tmp"):
                os.makedirs(os.path.join(job.folder, name), mode=0o755)
            if self._settings.job_uid is not None:
                for name in ("out", "tmp"):
                    os.chown(os.path.join(job.folder, name), self._settings.job_uid, self._settings.job_uid)
            self._jobs[id] = job
            return job

    def write(self, id: str, path: str, offset: int, data: bytes) -> Json:
        """Write one piece of a declared file, never past its declared size."""
        job = self.get(id)
        with self._lock:
            if job.state != "UPLOADING":
                raise Refusal(409, f"job {id!r} has started")
            if path not in job.files:
                raise Refusal(422, f"file {path!r} is not in the manifest")
            if offset < 0 or offset + len(data) > job.files[path]["size"]:
                raise Refusal(422, f"file {path!r} would be larger than declared")
            target = os.path.join(job.folder, "job", path)
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.seek(offset)
                file.write(data)
        return {"path": path, "written": len(data)}

    def start(self, id: str) -> Job:
        """Check every file and run the job; starting twice is starting once."""
        job = self.get(id)
        with self._lock:
            if job.state != "UPLOADING":
                return job
            for path, promise in job.files.items():
                size, digest = measured(os.path.join(job.folder, "job", path))
                if size != promise["size"] or digest != promise["sha256"]:
                    raise Refusal(422, f"file {path!r} does not match its size and hash")
            job.state, job.started = "RUNNING", time.monotonic()
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return job

    def delete(self, id: str) -> Json:
        """Kill and wipe a job; its id is forgotten."""
        job = self.get(id)
        job.stop.set()
        limit = time.monotonic() + 30
        while job.state == "RUNNING" and time.monotonic() < limit:
            time.sleep(0.02)
        with self._lock:
            if job.state == "RUNNING":
                raise Refusal(503, "the job is still being killed")
            self._jobs.pop(id, None)
        shutil.rmtree(job.folder, ignore_errors=True)
        wipe_user(self._settings.job_uid)
        return {"deleted": id}

    def _run(self, job: Job) -> None:
        """Run one job to its end and record how it ended; nothing escapes."""
        try:
            self._execute(job)
        except Exception as error:
            job.ended = "start_failed"
            job.fault = {"code": "start_failed", "message": str(error)[:500]}
        finally:
            job.wall = time.monotonic() - job.started
            job.state = "DONE"

    def _execute(self, job: Job) -> None:
        uid = self._settings.job_uid
        gpus, kills = gpu_facts(), oom_kills(self._settings.cgroup)
        process = start_process(job.command, job_environment(job), uid, job.folder)
        job.process = process
        pump = threading.Thread(target=copy_log, args=(process, job.log), daemon=True)
        pump.start()
        reason = ""
        while process.poll() is None:
            if job.stop.wait(0.05) or time.monotonic() - job.started > job.wall_seconds:
                reason = "cancelled" if job.stop.is_set() else "timeout"
                kill_group(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(5.0, job.wall_seconds))
                kill_group(process, signal.SIGKILL)
                process.wait()
        kill_group(process, signal.SIGKILL)
        kill_user(uid)
        pump.join(5)
        job.exit_code = process.returncode
        if oom_kills(self._settings.cgroup) > kills:
            reason = reason or "oom"
        job.ended = reason or ("signal" if process.returncode < 0 else "exited")
        job.gpu_ok = gpus is not None and gpu_facts() == gpus
        size, digest = measured(job.path("artifact"))
        job.artifact = {"size": size, "sha256": digest} if size >= 0 else None
        with contextlib.suppress(Refusal, ValueError, TypeError, KeyError):
            fault = json.loads(read_piece(os.path.join(job.out, FAULT), 0, 4096)[0])
            job.fault = {"code": str(fault["code"])[:64], "message": str(fault["message"])[:500]}


def checked_manifest(body: bytes) -> Json:
    """Return command, env, wall_seconds and files of a manifest; raise `Refusal` that says what is wrong."""
    try:
        manifest = json.loads(body)
        command, env, files = manifest["command"], manifest["env"], manifest["files"]
        wall = float(manifest["wall_seconds"])
        texts = [*command, *env, *env.values(), *files]
        whole = [entry["size"] for entry in files.values()] + [0]
        hashes = [entry["sha256"] for entry in files.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refusal(422, f"bad manifest: {error!r}") from None
    if not isinstance(command, list) or not command or not all(isinstance(text, str) for text in texts):
        raise Refusal(422, "bad manifest: command, env and file names must be strings")
    if not 0 < wall < 7 * 86400 or len(files) > MAX_FILES:
        raise Refusal(422, "bad manifest: wall_seconds or number of files out of range")
    if not all(FILE_PATH.fullmatch(path) for path in files):
        raise Refusal(422, "bad manifest: a file path must be relative, plain and at most five folders deep")
    if not all(type(size) is int and 0 <= size <= MAX_FILE_BYTES for size in whole) or sum(whole) > MAX_FILE_BYTES:
        raise Refusal(422, "bad manifest: files too large")
    if not all(isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) for digest in hashes):
        raise Refusal(422, "bad manifest: sha256 must be 64 hex digits")
    return {"command": command, "env": env, "wall_seconds": wall, "files": files}


def job_environment(job: Job) -> dict[str, str]:
    """Return the job's whole environment: nothing of ours, no token, no key."""
    own = {"TRAINWRIGHT_JOB": os.path.join(job.folder, "job"), "TRAINWRIGHT_OUT": job.out}
    return {**clean_environment(), **job.env, **home_in(os.path.join(job.folder, "tmp")), **own}


def clean_environment() -> dict[str, str]:
    """Return what any command needs of ours, by an allow-list."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    kept.update({name: value for name, value in os.environ.items() if name.startswith("NVIDIA_")})
    return {"PATH": os.defpath, **kept}


def home_in(folder: str) -> dict[str, str]:
    """Return the variables that send caches and temporary files to a folder."""
    return {"HOME": folder, "TMPDIR": folder}


def start_process(command: list[str], env: dict[str, str], uid: int | None, folder: str) -> subprocess.Popen[bytes]:
    """Start a command as a user in a session of its own, first in line for the out-of-memory killer."""
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
    )
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        if uid is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NPROC, (8192, 8192))
        with open(f"/proc/{process.pid}/oom_score_adj", "w") as file:
            file.write("1000")
    return process


def kill_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process's group."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)


def copy_log(process: subprocess.Popen[bytes], path: str) -> None:
    """Copy a process's output to a file up to a limit, then keep draining so that the process never blocks."""
    assert process.stdout is not None
    written = 0
    with contextlib.suppress(OSError, ValueError), open(path, "wb") as file:
        while data := os.read(process.stdout.fileno(), 65536):
            kept = data[: MAX_LOG_BYTES - written]
            if kept:
                with contextlib.suppress(OSError):
                    file.write(kept)
                    file.flush()
                written += len(kept)


def wipe_user(uid: int | None) -> None:
    """Remove what a job's user left in the shared temporary folders."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm") if uid is not None else ():
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(folder)):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


@contextlib.contextmanager
def plain_file(path: str) -> Iterator[tuple[int, int]]:
    """Open a file a job may have written, refusing links, pipes and devices; yield descriptor and size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refusal(404, f"no such file: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise Refusal(404, "not a plain file")
        yield descriptor, facts.st_size
    finally:
        os.close(descriptor)


def read_piece(path: str, offset: int, length: int) -> tuple[bytes, int]:
    """Return a piece of a file and the file's whole size; raise `Refusal`."""
    if offset < 0 or length < 0:
        raise Refusal(422, "offset and length must not be negative")
    with plain_file(path) as (descriptor, size):
        return os.pread(descriptor, length, offset), size


def measured(path: str) -> tuple[int, str]:
    """Return size and SHA-256 of a plain file, or -1 and nothing."""
    digest = hashlib.sha256()
    try:
        with plain_file(path) as (descriptor, size):
            while data := os.read(descriptor, 1 << 20):
                digest.update(data)
            return size, digest.hexdigest()
    except (Refusal, OSError):
        return -1, ""


def gpu_facts() -> list[str] | None:
    """Return a line for each GPU (name, UUID, memory, driver), or None when `nvidia-smi` fails."""
    query = ["nvidia-smi", "--query-gpu=name,uuid,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=20, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def oom_kills(cgroup: str) -> int:
    """Return how often the kernel killed for memory in this container (cgroup v2, then v1), 0 when unknown."""
    for path in (f"{cgroup}/memory.events", f"{cgroup}/memory/memory.oom_control"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# The server


class Service:
    """A trusted long-running command of an evaluation pod, such as an inference server; restarted when it ends.

    It has a user of its own, the one after the job's, because every process of the job's user is killed after a job.
    """

    def __init__(self, settings: Settings) -> None:
        self.starts = 0
        self._settings = settings
        if settings.service:
            threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        log, home = (os.path.join(self._settings.folder, name) for name in ("service.log", "service"))
        os.makedirs(home, mode=0o755, exist_ok=True)
        uid = None
        if self._settings.job_uid is not None:
            uid = self._settings.job_uid + 1
            os.chown(home, uid, uid)
        env = {**clean_environment(), **home_in(home)}
        while True:
            self.starts += 1
            try:
                process = start_process(self._settings.service, env, uid, "/")
                copy_log(process, log)
                process.wait()
            except OSError as error:
                say(f"service failed: {error}")
            time.sleep(min(30.0, float(self.starts)))


class Agent:
    """Everything the handlers share."""

    def __init__(self, settings: Settings, boot_id: str, report: int, lease: float, deadline: float) -> None:
        self.settings, self.boot_id, self.lease, self.deadline = settings, boot_id, lease, deadline
        self.jobs = Jobs(settings)
        self.service = Service(settings)
        self.gpus = gpu_facts()
        self._report = report

    def renew(self, body: bytes) -> Json:
        """Extend the lease, up to the limit and the deadline, and correct the deadline by the controller's clock."""
        try:
            asked = json.loads(body)
            seconds, now = float(asked["seconds"]), float(asked["now"])
        except (ValueError, TypeError, KeyError) as error:
            raise Refusal(422, f"bad lease: {error!r}") from None
        if not (0 <= seconds <= MAX_LEASE_SECONDS and 0 < now < 1e11):
            raise Refusal(422, "bad lease: out of range")
        self.deadline = time.monotonic() + self.settings.deadline - now
        self.lease = time.monotonic() + seconds
        os.write(self._report, f"{self.lease!r} {self.deadline!r}\n".encode())
        return self.health()

    def health(self) -> Json:
        """Return who and how this pod is."""
        return {
            "boot_id": self.boot_id,
            "pod_id": self.settings.pod_id,
            "now": time.time(),
            "lease_seconds": self.lease - time.monotonic(),
            "deadline_seconds": self.deadline - time.monotonic(),
            "gpus": self.gpus,
            "jobs": self.jobs.states(),
            "service_starts": self.service.starts,
            "job_uid": self.settings.job_uid,
        }

    def answer(self, method: str, path: str, query: dict[str, str], body: Callable[[int], bytes]) -> Reply:
        """Serve one authorised request; raise `Refusal`."""
        if (method, path) == ("GET", "/health"):
            return self.health()
        if (method, path) == ("POST", "/lease"):
            return self.renew(body(1024))
        match = re.fullmatch(r"/jobs/([^/]+)(?:/(files|start|stream))?", path)
        if not match or not JOB_ID.fullmatch(match[1]):
            raise Refusal(404, "no such path")
        id, part = match[1], match[2]
        if (method, part) == ("PUT", None):
            return self.jobs.declare(id, body(MAX_MANIFEST_BYTES)).status()
        if (method, part) == ("PUT", "files"):
            return self.jobs.write(id, query.get("path", ""), whole(query, "offset", 0), body(PIECE_BYTES))
        if (method, part) == ("POST", "start"):
            return self.jobs.start(id).status()
        if (method, part) == ("GET", None):
            return self.jobs.get(id).status()
        if (method, part) == ("DELETE", None):
            return self.jobs.delete(id)
        if (method, part) == ("GET", "stream"):
            kind = query.get("file", "")
            limit = PIECE_BYTES if kind == "artifact" else STREAM_BYTES
            length = min(whole(query, "length", limit), limit)
            data, size = read_piece(self.jobs.get(id).path(kind), whole(query, "offset", 0), length)
            return data, {"X-Size": str(size), "X-SHA256": hashlib.sha256(data).hexdigest()}
        raise Refusal(405, "method not allowed")


def whole(query: dict[str, str], name: str, default: int) -> int:
    """Return a whole number from the query; raise `Refusal`."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"\d{1,15}", text):
        raise Refusal(422, f"{name} must be a whole number")
    return int(text)


class Handler(BaseHTTPRequestHandler):
    """One request. Anyone on the internet can reach this port: no token, no answer but 401."""

    timeout = 20
    server: Server

    def _serve(self) -> None:
        try:
            given = self.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.server.agent.settings.token}".encode()):
                raise Refusal(401, "wrong token")
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            reply = self.server.agent.answer(self.command, url.path, query, self._body)
            status = 200
        except Refusal as refusal:
            reply, status = {"error": refusal.message}, refusal.status
        except OSError as error:
            reply, status = {"error": f"pod agent: {error}"}, 500
        data, headers = reply if isinstance(reply, tuple) else (json.dumps(reply).encode(), {})
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _body(self, limit: int) -> bytes:
        text = self.headers.get("Content-Length", "")
        if not text.isdigit() or int(text) > limit:
            raise Refusal(413, f"the body must state its length, {limit} bytes at most")
        data = self.rfile.read(int(text))
        if len(data) != int(text):
            raise Refusal(400, "the body ended early")
        return data

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the port is public, and its visitors shall not fill the log."""


class Server(ThreadingHTTPServer):
    """An HTTP server with a limit on connections and on how long each may live."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._open: dict[socket.socket, float] = {}
        super().__init__(("0.0.0.0", agent.settings.port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Refuse a connection too many, remember when the others began."""
        if len(self._open) >= MAX_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close and forget a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections older than the limit (called twice a second by `serve_forever`)."""
        for request, began in list(self._open.items()):
            if time.monotonic() - began > MAX_REQUEST_SECONDS:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that hangs up is no news."""


def serve(settings: Settings, boot_id: str, report: int, lease: float, deadline: float) -> None:
    """Serve until killed."""
    os.umask(0o022)
    agent = Agent(settings, boot_id, report, lease, deadline)
    say(f"boot {agent.boot_id}, {len(agent.gpus or [])} GPUs, port {settings.port}")
    Server(agent).serve_forever()


if __name__ == "__main__":
    main()
