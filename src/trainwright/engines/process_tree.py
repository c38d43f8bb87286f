"""A program and everything it starts, ended as a whole: on request, with the program, and with us.

A supervisor stands between us and the program. It adopts orphans (`PR_SET_CHILD_SUBREAPER`), so that a process that
left its parent, group or session is still below it, and it kills what is below it when the program has ended, when we
ask, and when our end of its standard input closes because we are dead. vLLM's engine, left behind by a killed
launcher, would otherwise hold the GPU's memory for ever. Linux only; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

LEFTOVERS = 125
"""Exit status of a supervisor that could not kill everything: a process hangs in the kernel."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.1
_KILL_SECONDS = 30.0


class ProcessTree:
    """One program with its descendants. Leaving its `with` ends them all."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path, grace_seconds: float
    ) -> None:
        """Start it; stdout and stderr go to `log`. `stop` gives it the grace to end by itself after SIGTERM."""
        self._patience = grace_seconds + _KILL_SECONDS + 30
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).resolve()), str(grace_seconds), *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us
            )

    @property
    def pid(self) -> int:
        """Return the supervisor's process id."""
        return self._supervisor.pid

    def poll(self) -> int | None:
        """Return the program's exit status, 128 + n after signal n, None while anything of it runs."""
        return self._supervisor.poll()

    def stop(self) -> int:
        """End it all and return the status; `LEFTOVERS` when that was not possible. Safe to call twice."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            return self._supervisor.wait(self._patience)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
            return LEFTOVERS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def supervise(grace_seconds: float, command: Sequence[str]) -> NoReturn:
    """Run the command until it ends or standard input closes, then kill what is below this process, and exit."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    program = os.fork()
    if program == 0:
        _start(supervisor, command)
    status = None
    asked = False
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    while status is None and not asked:
        asked = bool(waiting.poll(_POLL_SECONDS * 1000))
        status = _reap(program)
    if status is None:
        os.kill(program, signal.SIGTERM)
        limit = time.monotonic() + grace_seconds
        while status is None and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS)
            status = _reap(program)
    limit = time.monotonic() + _KILL_SECONDS
    while found := descendants(os.getpid()):
        if time.monotonic() > limit:
            os._exit(LEFTOVERS)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
        status = _reap(program) if status is None else status
        _reap(program)
    code = os.waitstatus_to_exitcode(status) if status is not None else 1
    os._exit(code if code >= 0 else 128 - code)


def descendants(ancestor: int) -> set[int]:
    """Return the processes below one, without those that ended and wait to be buried."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(entry))
    found: set[int] = set()
    new = [ancestor]
    while new:
        new = [child for parent in new for child in children.get(parent, []) if child not in found]
        found.update(new)
    return found


def _start(supervisor: int, command: Sequence[str]) -> NoReturn:
    """Become the program; be asked to end when the supervisor dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    try:
        if os.getppid() == supervisor:
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _reap(program: int) -> int | None:
    """Bury every child that ended; return the program's wait status when it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == program:
            found = status


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


if __name__ == "__main__":
    supervise(float(sys.argv[1]), sys.argv[2:])
