"""The trusted side: starts the environment server, opens jobs in it, and judges everything that comes back.

A job's misbehaviour is a `JobFault` whose code is one of `REASONS`; the loss of the server itself is an
`InfraFault("environment_server_lost")`, after which the next `open` starts a new one. Whatever is wrong, the job's
process is dead once the exception is out, and no call waits longer than its limit.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from trainwright.environment.environment import Reward, Row
from trainwright.environment.protocol import (
    ConnectionClosed,
    ProtocolError,
    receive_frame,
    send_frame,
)
from trainwright.environment.sandbox import Sandbox
from trainwright.errors import InfraFault, JobFault
from trainwright.messages import Message

ENVIRONMENT_FILE, DATASET_FILE = "environment.py", "dataset.jsonl"

REASONS: Mapping[str, str] = {
    "import_error": "importing environment.py raised",
    "no_taskset": "`__all__` is missing or exports not exactly one Taskset",
    "load_raised": "the taskset's construction, load(), or taking its next row raised",
    "bad_row": "a row is not a Task, or its prompt is missing, empty or not plain text",
    "row_too_large": "a row's prompt has too many characters",
    "no_reward": "the task has no @vf.reward",
    "reward_not_coroutine": "a reward or metric is not an `async def`",
    "reward_needs_runtime": "a reward or metric takes `runtime`, which verifiers would skip in silence",
    "reward_raised": "a reward or metric raised",
    "reward_not_number": "a reward or metric returned what is no number",
    "reward_not_finite": "a reward is NaN or infinite",
    "reward_out_of_range": "a reward is finite but beyond the bound",
    "timeout": "a call took too long, or the job used up its CPU seconds",
    "memory": "the job ran out of memory",
    "output": "an answer is too large or not JSON",
    "input": "the job's files or the replies to score are too large for one frame",
    "exited": "the job ended its own process",
    "killed": "the job's process died by a signal that we didn't send, such as a segmentation fault",
    "protocol": "the job's process said what no honest one says, or hung up",
}
"""Every reason code of a `JobFault` raised here, with its meaning."""

_START_SECONDS = 120.0
_CONTROL_SECONDS = 30.0
_GRACE_SECONDS = 1.0
_ROWS_A_FRAME = 32
_MAX_PARTS, _MAX_NAME = 64, 100


@dataclass(frozen=True)
class Limits:
    """What a job may use. Seconds are wall clock a call, but for `cpu_seconds`, which is the whole process's total."""

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
    """A warm server in the sandbox; `open` starts it when it isn't running. Calls may come from several threads.

    The thread that starts it must outlive it: bubblewrap ends the sandbox with that thread.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._root = ""

    @property
    def pid(self) -> int:
        """Return the process id of the server's outermost process, 0 when none was started."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the server unless it runs, and wait until it is warm; raise `InfraFault` when it can't be."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self.close()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            watch = os.pidfd_open(os.getpid())
            self._root = self.sandbox.make_root()
            self._control = ours
            try:
                with tempfile.TemporaryFile() as errors:
                    self._process = self._spawn(theirs, watch, errors)
                    theirs.close()
                    self._expect_ready(errors)
            finally:
                theirs.close()
                os.close(watch)

    def open(self, files: Mapping[str, str], seed: int, limits: Limits | None = None) -> JobEnvironment:
        """Return the running environment of a job; raise `JobFault` when it doesn't load, `InfraFault` without a server.

        `files` are the texts of environment.py and, when the job has one, dataset.jsonl, by name.
        """
        limits = limits or Limits()
        self.start()
        ours, theirs = socket.socketpair()
        with theirs:
            order = {"order": "open", "memory_bytes": limits.memory_bytes, "cpu_seconds": limits.cpu_seconds}
            try:
                pid = int(self._order(order, theirs)["pid"])
            except BaseException:
                ours.close()
                raise
        environment = JobEnvironment(self, ours, pid, limits)
        environment._load(files, seed)
        return environment

    def close(self) -> None:
        """End the server and every job in it; safe to call twice."""
        with self._lock:
            control, self._control = self._control, None
            process, self._process = self._process, None
            if control is not None:
                control.close()
            if process is not None:
                try:
                    process.wait(_CONTROL_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if self._root and self.sandbox.level != "full":
                shutil.rmtree(self._root, ignore_errors=True)
            self._root = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self, pid: int, grace_seconds: float) -> dict[str, Any]:
        """Have the server bury one job's process and return how it ended; raise `InfraFault` without a server."""
        return self._order({"order": "end", "pid": pid, "grace_seconds": grace_seconds})

    def _spawn(self, control: socket.socket, watch: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        settings = {
            "control": control.fileno(),
            "client": watch,
            "root": self._root,
            "rules": self.sandbox.rules(self._root),
            "threads": self.sandbox.threads,
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

    def _expect_ready(self, errors: IO[bytes]) -> None:
        assert self._control is not None
        self._control.settimeout(_START_SECONDS)
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        if not data:
            self.close()
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"it did not become ready within {_START_SECONDS:g} seconds"
            raise InfraFault("environment_server_lost", f"the environment server did not start: {why}")

    def _order(self, order: Mapping[str, Any], channel: socket.socket | None = None) -> dict[str, Any]:
        with self._lock:
            try:
                if self._control is None:
                    raise ConnectionError("it is closed")
                self._control.settimeout(_CONTROL_SECONDS)
                attached = [channel.fileno()] if channel is not None else []
                socket.send_fds(self._control, [json.dumps(order).encode()], attached)
                data = self._control.recv(4096)
                if not data:
                    raise ConnectionError("it hung up")
                answer: dict[str, Any] = json.loads(data)
                return answer
            except OSError as error:
                if self._process is not None:
                    self._process.kill()
                self.close()
                raise InfraFault("environment_server_lost", f"the environment server was lost: {error}") from None


class JobEnvironment:
    """One job in the server; implements `environment.Environment`. Closed by a fault, or by leaving its `with`."""

    def __init__(self, server: EnvironmentServer, channel: socket.socket, pid: int, limits: Limits) -> None:
        self.cpu_seconds = 0.0
        """CPU seconds the job's process used; known once it is closed."""
        self._server, self._channel, self._pid, self._limits = server, channel, pid, limits
        self._closed = False
        self._taken = 0

    def rows(self, count: int) -> list[Row]:
        """Return up to `count` further rows in the taskset's order; an empty list once it is exhausted."""
        deadline = time.monotonic() + self._limits.rows_seconds
        rows: list[Row] = []
        while len(rows) < count:
            wanted = min(count - len(rows), _ROWS_A_FRAME)
            answer = self._ask({"rows": wanted}, deadline, "taking rows", self._limits.rows_seconds)
            found = answer.get("rows")
            if not isinstance(found, list) or len(found) > wanted:
                self._fail("protocol", "the answer to `rows` has no list of rows")
            rows += [self._row(row) for row in found]
            if len(found) < wanted:
                break
        return rows

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        """Return the reward of each `(row index, reply)`, in order; the index must be of a row that was taken."""
        for index, _ in replies:
            if not 0 <= index < self._taken:
                raise IndexError(f"row {index} was not taken; {self._taken} rows were")
        if not replies:
            return []
        limit = self._limits.score_seconds
        started = time.monotonic()
        request = {"score": [[index, reply] for index, reply in replies]}
        answer = self._ask(request, started + limit, f"scoring {len(replies)} replies", limit)
        elapsed = time.monotonic() - started
        found = answer.get("rewards")
        if not isinstance(found, list) or len(found) != len(replies):
            self._fail("protocol", "the answer to `score` has not one reward a reply")
        return [self._reward(reward, elapsed) for reward in found]

    def close(self) -> None:
        """Kill the job's process and release everything; safe to call twice."""
        if not self._closed:
            self._end(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except InfraFault:
            if error is None:
                raise

    def _load(self, files: Mapping[str, str], seed: int) -> None:
        limit = self._limits.open_seconds
        job = {name: files[name] for name in (ENVIRONMENT_FILE, DATASET_FILE) if name in files}
        self._send({"files": job, "seed": seed, "prompt_limit": self._limits.prompt_characters}, _CONTROL_SECONDS)
        try:
            receive_frame(self._channel, time.monotonic() + _CONTROL_SECONDS)
        except (TimeoutError, ConnectionClosed, ProtocolError):
            self._end(0.0)
            raise InfraFault("environment_not_confined", "a process for the job could not be set up") from None
        self._receive(limit, "loading")

    def _ask(self, request: Mapping[str, Any], deadline: float, what: str, limit: float) -> dict[str, Any]:
        """Return the answer to one request; raise the fault that it is or that stands in its place."""
        if self._closed:
            raise RuntimeError("this environment is closed")
        try:
            send_frame(self._channel, request, deadline)
            answer = receive_frame(self._channel, deadline)
        except TimeoutError:
            self._fail("timeout", f"{what} took longer than {limit:g} seconds")
        except ConnectionClosed:
            self._fail_by_ending()
        except ProtocolError as error:
            self._fail("protocol", f"the job's process broke the protocol: {error}")
        except BaseException:
            self.close()
            raise
        if "fault" in answer:
            self._fail_as_told(answer["fault"])
        return answer

    def _row(self, row: object) -> Row:
        messages, fields = (row.get("messages"), row.get("fields")) if isinstance(row, dict) else (None, None)
        if not isinstance(messages, list) or not messages:
            self._fail("protocol", "a row has no list of messages")
        if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
            self._fail("protocol", "a row's fields are no texts by name")
        parsed: list[Message] = []
        for message in messages:
            role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
            if role not in ("system", "user", "assistant") or not isinstance(content, str):
                self._fail("protocol", "a row's message has no role or no text")
            parsed.append({"role": role, "content": content})
        if sum(len(message["content"]) for message in parsed) > self._limits.prompt_characters:
            self._fail("bad_row", f"row {self._taken} is longer than {self._limits.prompt_characters} characters")
        self._taken += 1
        return Row(self._taken - 1, tuple(parsed), fields)

    def _reward(self, reward: object, elapsed: float) -> Reward:
        parts = reward.get("parts") if isinstance(reward, dict) else None
        seconds = reward.get("seconds") if isinstance(reward, dict) else None
        if not isinstance(parts, dict) or not parts or not _is_number(seconds):
            self._fail("protocol", "a reward has no parts or no seconds")
        if len(parts) > _MAX_PARTS or any(len(name) > _MAX_NAME for name in parts):
            self._fail("output", f"a reward has more than {_MAX_PARTS} parts, or a name over {_MAX_NAME} characters")
        if not all(_is_number(value) for value in parts.values()):
            self._fail("protocol", "a part of a reward is no number")
        try:
            values = {name: float(value) for name, value in parts.items()}
        except OverflowError:
            self._fail("reward_not_finite", "a reward is too large for a float")
        total = sum(values.values())
        largest = max(abs(total), *(abs(value) for value in values.values()))
        if not largest <= self._limits.reward_bound:
            self._fail("reward_out_of_range", f"a reward is {total:g}; its size may be {self._limits.reward_bound:g}")
        return Reward(total, values, min(max(0.0, float(seconds)), elapsed))

    def _fail_as_told(self, fault: object) -> NoReturn:
        told = fault if isinstance(fault, dict) else {}
        code, message, line = told.get("code"), told.get("message"), told.get("line")
        if code not in REASONS or not isinstance(message, str) or not isinstance(line, int):
            self._fail("protocol", "the job's process reported a fault that is none")
        self._fail(str(code), message, line if 0 < line < 10**6 else 0)

    def _fail_by_ending(self) -> NoReturn:
        """The channel closed: find out how the process ended."""
        ending = self._end(_GRACE_SECONDS)
        number = int(ending["signal"])
        if ending["killed"]:
            raise JobFault("protocol", "the job's process closed its channel but did not end", ENVIRONMENT_FILE)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and self.cpu_seconds >= self._limits.cpu_seconds):
            message = f"the job used more than {self._limits.cpu_seconds} CPU seconds"
            raise JobFault("timeout", message, ENVIRONMENT_FILE)
        if number:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            raise JobFault("killed", f"the job's process died by {name}", ENVIRONMENT_FILE)
        message = f"the job ended its own process with exit status {ending['status']}"
        raise JobFault("exited", message, ENVIRONMENT_FILE)

    def _fail(self, code: str, message: str, line: int = 0) -> NoReturn:
        self._end(0.0)
        raise JobFault(code, _one_sentence(message), ENVIRONMENT_FILE, line)

    def _end(self, grace_seconds: float) -> dict[str, Any]:
        self._closed = True
        self._channel.close()
        ending = self._server.end(self._pid, grace_seconds)
        self.cpu_seconds = float(ending["cpu_seconds"])
        return ending


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _one_sentence(text: str) -> str:
    """Return text from the job without control characters, on one line, shortened: it may end up on a terminal."""
    return re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+", " ", text).strip()[:500]
