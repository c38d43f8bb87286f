"""The environment server: a warm process inside the sandbox that forks one child a job. The untrusted side.

The parent imports verifiers once, then obeys two orders on its control socket, one datagram each: `open` (with a
channel for the new child attached) and `end`. It never reads a channel and never sees a job's code. The child
confines itself, loads the job's files that arrive first on its channel, and answers `rows` and `score` until the
channel closes. The parent ends when its client does.

The client starts it as `python -c` with the package path of these files, which is not trainwright's inside the
sandbox: nothing here may import from the rest of the package.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import confinement, landlock
from .confinement import Allowance
from .protocol import ConnectionClosed, ProtocolError, encode_frame, receive_frame, send_frame

DATAGRAM_LIMIT = 4096


@dataclass(frozen=True)
class Settings:
    """How the client starts the server; JSON on the command line.

    `control` and `client` are inherited descriptors: the control socket, and a pidfd of the client. `root` is the
    folder in which each job gets its own; `rules` are (path, Landlock rights) for the parent and all below it;
    `lock` is false only without a sandbox.
    """

    control: int
    client: int
    root: str
    rules: list[tuple[str, int]]
    lock: bool


@dataclass
class Child:
    """A job's process as the parent knows it."""

    pid: int
    pidfd: int
    folder: Path


class Server:
    """The parent's loop and its children by process id."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control = socket.socket(fileno=settings.control)
        self.children: dict[int, Child] = {}
        self.opened = 0

    def serve(self) -> None:
        """Obey until the client closes the control socket or ends."""
        waiting = select.poll()
        for descriptor in (self.settings.control, self.settings.client):
            waiting.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in waiting.poll()]
            if self.settings.client in ready:
                return
            data, descriptors, _, _ = socket.recv_fds(self.control, DATAGRAM_LIMIT, 1)
            if not data:
                return
            order = json.loads(data)
            if order["order"] == "open":
                answer = self.open(socket.socket(fileno=descriptors[0]), order)
            else:
                answer = self.end(order["pid"], order["grace_seconds"])
            self.control.send(json.dumps(answer).encode())

    def open(self, channel: socket.socket, order: dict[str, Any]) -> dict[str, Any]:
        """Fork a child that serves one job on `channel`; return its process id."""
        self.opened += 1
        folder = Path(self.settings.root, f"job-{self.opened}")
        folder.mkdir(mode=0o700)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.control.detach()
            allowance = Allowance(order["memory_bytes"], order["cpu_seconds"])
            serve_job(confinement.detach(parent, channel), folder, allowance, lock=self.settings.lock)
        channel.close()
        self.children[pid] = Child(pid, os.pidfd_open(pid), folder)
        return {"pid": pid}

    def end(self, pid: int, grace_seconds: float) -> dict[str, Any]:
        """Kill a child that doesn't end by itself within the grace, bury it, and return how it ended.

        `killed` says that we did it; `signal` and `status` are its own ending; `cpu_seconds` is what it used.
        """
        child = self.children.pop(pid)
        waiting = select.poll()
        waiting.register(child.pidfd, select.POLLIN)
        killed = not waiting.poll(grace_seconds * 1000)
        if killed:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        os.close(child.pidfd)
        shutil.rmtree(child.folder, ignore_errors=True)
        return {
            "killed": killed,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
        }

    def close(self) -> None:
        """End every child and remove the root folder."""
        for pid in list(self.children):
            self.end(pid, 0)
        shutil.rmtree(self.settings.root, ignore_errors=True)


def serve_job(channel: socket.socket, folder: Path, allowance: Allowance, *, lock: bool) -> NoReturn:
    """Serve one job on its channel until the client hangs up; the whole life of a child."""
    from . import scoring

    status = 1
    try:
        first = receive_frame(channel)
        package = folder / scoring.PACKAGE
        package.mkdir()
        for name, text in {"__init__.py": "", **first["files"]}.items():
            (package / name).write_text(text, encoding="utf-8", newline="")
        os.chdir(folder)
        os.environ.update(HOME=str(folder), TMPDIR=str(folder))
        confinement.confine(allowance, lock=lock)
        send_frame(channel, encode_frame({"confined": lock}))  # what goes wrong from here on is the job's doing
        taskset: scoring.Taskset | None = None
        request = first
        while True:
            answer: dict[str, Any]
            try:
                if taskset is None:
                    taskset = scoring.load(folder, first["seed"], first["prompt_limit"])
                    answer = {}
                elif "rows" in request:
                    answer = {"rows": taskset.rows(request["rows"])}
                else:
                    answer = {"rewards": taskset.score(request["score"])}
            except scoring.Fault as fault:
                answer = _fault(fault.code, fault.message, fault.line)
            try:
                frame = encode_frame(answer)
            except ProtocolError as error:
                frame = encode_frame(_fault("output", f"the answer can't be sent: {error}"))
            except MemoryError:
                frame = encode_frame(_fault("memory", "there is no memory left for the answer"))
            send_frame(channel, frame)
            request = receive_frame(channel)
    except ConnectionClosed:
        status = 0
    finally:
        os._exit(status)  # nothing of the job's may run at exit


def _fault(code: str, message: str, line: int = 0) -> dict[str, Any]:
    return {"fault": {"code": code, "message": message.encode(errors="replace").decode(), "line": line}}


def main(argument: str) -> None:
    """Start, say so on the control socket, serve, and leave nothing behind."""
    settings = Settings(**json.loads(argument))
    for interrupt in (signal.SIGINT, signal.SIGHUP):
        signal.signal(interrupt, signal.SIG_IGN)
    confinement.make_undumpable()
    from . import scoring

    scoring.warm_up()
    sys.dont_write_bytecode = True
    if settings.lock:
        confinement.forbid_new_privileges()
        if landlock.abi():
            landlock.restrict(settings.rules)
    gc.collect()
    gc.freeze()  # the children share these pages for as long as their collector leaves them alone
    server = Server(settings)
    server.control.send(json.dumps({"ready": True}).encode())
    try:
        server.serve()
    finally:
        server.close()
