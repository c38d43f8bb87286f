"""The trusted side: starts the environment server, opens jobs in it, and waits no longer than it said.

A job's misbehaviour is a `JobFault` with a code of `answers.REASONS`; the loss of the server itself is an
`InfraFault("environment_server_lost")`, after which the next `open` starts a new one. Whatever went wrong, the job's
process is dead once the exception is out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn, Self

from trainwright.environment.answers import ENVIRONMENT_FILE, fault, parse_rewards, parse_rows, told_fault
from trainwright.environment.environment import Reward, Row
from trainwright.environment.protocol import (
    ConnectionClosed,
    ProtocolError,
    encode_frame,
    receive_frame,
    send_frame,
)
from trainwright.environment.sandbox import Sandbox
from trainwright.errors import InfraFault

FILES = (ENVIRONMENT_FILE, "dataset.jsonl")
"""The files of a job that its environment sees."""

_START_SECONDS = 120.0
_CONTROL_SECONDS = 30.0
_GRACE_SECONDS = 1.0
_ROWS_A_FRAME = 32
_DATAGRAM_LIMIT = 4096


@dataclass(frozen=True)
class Limits:
    """What a job may use. Seconds are wall clock a call, but for `cpu_seconds`, the whole process's total."""

    open_seconds: float = 20.0
    rows_seconds: float = 20.0
    score_seconds: float = 20.0
    cpu_seconds: int = 600
    memory_bytes: int = 2 * 1024**3
    """Address space, of which the preloaded libraries take about 0.3 GB."""
    prompt_characters: int = 32_768
    """Of one row, system prompt included."""
    reward_bound: float = 1e6
    """Largest absolute value of a reward."""


class EnvironmentServer:
    """A warm server in the sandbox; `open` starts it when none runs. Calls may come from several threads.

    The thread that starts it must outlive it: bubblewrap ends the sandbox with that thread.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._root = ""
        self._starts = 0

    @property
    def pid(self) -> int:
        """Return the process id of the server's outermost process, 0 when none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        """Start the server unless it runs, and wait until it is warm; raise `InfraFault` when it can't be."""
        with self._lock:
            if self.pid:
                return
            self.close()
            self._starts += 1
            self._root = self.sandbox.make_root()
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            watch = os.pidfd_open(os.getpid())
            try:
                with tempfile.TemporaryFile() as errors:
                    self._process = self._spawn(theirs, watch, errors)
                    theirs.close()
                    self._expect_ready(self._control, errors)
            except BaseException:
                self.close()
                raise
            finally:
                theirs.close()
                os.close(watch)

    def open(self, files: Mapping[str, str], seed: int, limits: Limits | None = None) -> JobEnvironment:
        """Return the running environment of a job; raise `JobFault` when it doesn't load, `InfraFault` if we fail.

        `files` are the job's texts by name; the environment sees environment.py and dataset.jsonl. The same files and
        seed give the same rows and rewards, as far as the job's code is deterministic.
        """
        limits = limits or Limits()
        order = {"order": "open", "memory_bytes": limits.memory_bytes, "cpu_seconds": limits.cpu_seconds}
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            try:
                self.start()
                child = (self._starts, int(self._order(order, theirs)["pid"]))
            except BaseException:
                ours.close()
                raise
        environment = JobEnvironment(self, ours, child, limits)
        environment.load({name: files[name] for name in FILES if name in files}, seed)
        return environment

    def end(self, child: tuple[int, int], grace_seconds: float) -> dict[str, Any]:
        """Have a job's process buried, killed unless it ends within the grace; return how it ended."""
        start, pid = child
        with self._lock:
            if start != self._starts or not self.pid:
                raise InfraFault("environment_server_lost", "the environment server ended while a job ran in it")
            return self._order({"order": "end", "pid": pid, "grace_seconds": grace_seconds})

    def close(self) -> None:
        """End the server and every job in it; safe to call twice."""
        with self._lock:
            control, self._control = self._control, None
            process, self._process = self._process, None
            root, self._root = self._root, ""
            if control is not None:
                control.close()
            if process is not None:
                try:
                    process.wait(_CONTROL_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if root and self.sandbox.level != "full":
                shutil.rmtree(root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, control: socket.socket, watch: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        settings = {
            "control": control.fileno(),
            "client": watch,
            "root": self._root,
            "rules": self.sandbox.rules(self._root),
            "lock": self.sandbox.locked,
        }
        return subprocess.Popen(
            self.sandbox.command("server", "main", json.dumps(settings)),
            env=self.sandbox.environment(self._root),
            pass_fds=(control.fileno(), watch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us; we close the server
        )

    def _expect_ready(self, control: socket.socket, errors: IO[bytes]) -> None:
        control.settimeout(_START_SECONDS)
        try:
            if control.recv(_DATAGRAM_LIMIT):
                return
            why = "it ended"
        except OSError as error:
            why = str(error)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or [why]
        raise InfraFault("environment_server_lost", f"the environment server did not start: {said[-1]}")

    def _order(self, order: Mapping[str, Any], channel: socket.socket | None = None) -> dict[str, Any]:
        """Return the server's answer to one order; without one, kill the server and raise `InfraFault`."""
        attached = [channel.fileno()] if channel is not None else []
        try:
            if self._control is None:
                raise ConnectionError("it was closed")
            self._control.settimeout(_CONTROL_SECONDS)
            socket.send_fds(self._control, [json.dumps(order).encode()], attached)
            data = self._control.recv(_DATAGRAM_LIMIT)
            if not data:
                raise ConnectionError("it hung up")
        except OSError as error:
            if self._process is not None:
                self._process.kill()
            self.close()
            raise InfraFault("environment_server_lost", f"the environment server was lost: {error}") from None
        answer: dict[str, Any] = json.loads(data)
        return answer


class JobEnvironment:
    """One job in the server; implements `environment.Environment`. Closed by any fault and by leaving its `with`."""

    def __init__(
        self, server: EnvironmentServer, channel: socket.socket, child: tuple[int, int], limits: Limits
    ) -> None:
        self.cpu_seconds = 0.0
        """CPU seconds that the job's process used, known once it is closed."""
        self._server, self._channel, self._child, self._limits = server, channel, child, limits
        self._closed = False
        self._taken = 0

    def load(self, files: Mapping[str, str], seed: int) -> None:
        """Send the job's files and wait until its taskset is loaded; the first call, made by the server's `open`."""
        limits = self._limits
        frame = self._encode({"files": dict(files), "seed": seed, "prompt_limit": limits.prompt_characters})
        deadline = time.monotonic() + _CONTROL_SECONDS
        try:
            send_frame(self._channel, frame, deadline)
            receive_frame(self._channel, deadline)  # it is confined; from here on it runs the job's code
        except (TimeoutError, ConnectionClosed, ProtocolError):
            self.close()
            raise InfraFault("environment_not_confined", "no confined process could be made for the job") from None
        except BaseException:
            self.close()
            raise
        with self._judged("loading", limits.open_seconds) as deadline:
            self._receive(deadline)

    def rows(self, count: int) -> list[Row]:
        """Return up to `count` further rows in the taskset's order; an empty list once it is exhausted."""
        rows: list[Row] = []
        with self._judged("taking rows", self._limits.rows_seconds) as deadline:
            while len(rows) < count:
                wanted = min(count - len(rows), _ROWS_A_FRAME)
                send_frame(self._channel, self._encode({"rows": wanted}), deadline)
                answer = self._receive(deadline)
                found = parse_rows(answer, self._taken, wanted, self._limits.prompt_characters)
                self._taken += len(found)
                rows += found
                if len(found) < wanted:
                    break
        return rows

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        """Return the reward of each `(row index, reply)`, in order; the row must have been taken before."""
        for index, _ in replies:
            if not 0 <= index < self._taken:
                raise IndexError(f"row {index} of {self._taken} rows taken so far")
        frame = self._encode({"score": [[index, reply] for index, reply in replies]})
        with self._judged(f"scoring {len(replies)} replies", self._limits.score_seconds) as deadline:
            started = time.monotonic()
            send_frame(self._channel, frame, deadline)
            answer = self._receive(deadline)
            return parse_rewards(answer, len(replies), time.monotonic() - started, self._limits.reward_bound)

    def close(self) -> None:
        """Kill the job's process and release everything; safe to call twice, and when the server is gone already."""
        if not self._closed:
            with suppress(InfraFault):  # then the job's process is gone as well
                self._end(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _judged(self, what: str, seconds: float) -> Iterator[float]:
        """Give the block its deadline; whatever ends it early closes the environment and says whose fault it was."""
        if self._closed:
            raise RuntimeError("this environment is closed")
        try:
            yield time.monotonic() + seconds
        except TimeoutError:
            self._fail("timeout", f"{what} took longer than {seconds:g} seconds")
        except ConnectionClosed:
            self._fail_by_ending()
        except ProtocolError as error:
            self._fail("protocol", f"the job's process broke the protocol: {error}")
        except BaseException:
            self.close()
            raise

    def _encode(self, request: Mapping[str, Any]) -> bytes:
        try:
            return encode_frame(request)
        except ProtocolError as error:
            self._fail("input", f"the request can't be sent: {error}")

    def _receive(self, deadline: float) -> dict[str, Any]:
        answer = receive_frame(self._channel, deadline)
        if "fault" in answer:
            raise told_fault(answer["fault"])
        return answer

    def _fail(self, code: str, message: str) -> NoReturn:
        self._end(0.0)
        raise fault(code, message)

    def _fail_by_ending(self) -> NoReturn:
        """Raise the fault that the closed channel stands for: how did the process end?"""
        ending = self._end(_GRACE_SECONDS)
        number, limit = int(ending["signal"]), self._limits.cpu_seconds
        if ending["killed"]:
            raise fault("protocol", "the job's process closed its channel but did not end")
        if number == signal.SIGXCPU or (number == signal.SIGKILL and self.cpu_seconds >= limit):
            raise fault("timeout", f"the job used more than {limit} CPU seconds")
        if number:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            raise fault("killed", f"the job's process died by {name}")
        raise fault("exited", f"the job ended its own process with exit status {ending['status']}")

    def _end(self, grace_seconds: float) -> dict[str, Any]:
        self._closed = True
        self._channel.close()
        ending = self._server.end(self._child, grace_seconds)
        self.cpu_seconds = float(ending["cpu_seconds"])
        return ending
