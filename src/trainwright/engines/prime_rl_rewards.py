"""The engine's end of the socket on which prime-rl's environment server asks for rewards.

The job's code stays in the sandbox: each question becomes a call of the job's `Environment`. The first fault of the
job, or of the sandbox, is kept for the engine and ends the training; a rollout without reward fails, it never counts
as 0.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from pathlib import Path
from typing import Any, Self

from trainwright.environment.environment import Environment
from trainwright.errors import InfraFault, JobFault

LINE_LIMIT = 8 << 20
"""Bytes of one question; a reply has at most 32,768 tokens."""


class RewardServer:
    """Serves rewards from a thread of its own until it is closed. `scored` counts the answers."""

    def __init__(self, environment: Environment, socket: Path) -> None:
        self.scored = 0
        self.fault: JobFault | InfraFault | None = None
        self._environment = environment
        self._lock = threading.Lock()  # an environment answers one call at a time
        self._server = _Server(str(socket), self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the answer to one question: `reward`, or `error`."""
        try:
            question = json.loads(line)
            row, reply = int(question["row"]), str(question["reply"])
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"bad question: {error!r}"}
        with self._lock:
            if self.fault is not None:
                return {"error": str(self.fault)}
            try:
                [reward] = self._environment.score([(row, reply)])
            except (JobFault, InfraFault) as fault:
                self.fault = fault
                return {"error": str(fault)}
            except (RuntimeError, IndexError) as error:  # the environment is closed, or the row was never taken
                self.fault = InfraFault("reward_server", f"row {row} can't be scored: {error}")
                return {"error": str(self.fault)}
            self.scored += 1
        return {"reward": reward.total}

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, path: str, rewards: RewardServer) -> None:
        self.rewards = rewards
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up is a rollout that was cancelled."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline(LINE_LIMIT)
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(self.server.rewards.answer(line)).encode() + b"\n")
