"""What a job's process gives up before it touches the job's code, at every level of the sandbox.

Afterwards it has one descriptor, its channel; it can read the interpreter and its own folder, write nowhere but to its
memory, its channel and /dev/null, start no process and no thread, signal only itself, and reach no network. Nothing
bounds threads or files well at every level, and a reward needs neither. Output to stdout and stderr is discarded, so
that printing a gigabyte costs the job time and nobody anything.

Runs on the untrusted side; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
from dataclasses import dataclass

from . import landlock, seccomp

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x20080522
_DESCRIPTORS = 64


@dataclass(frozen=True)
class Allowance:
    """What a job's process may use: bytes of address space and CPU seconds."""

    memory_bytes: int
    cpu_seconds: int


def make_undumpable() -> None:
    """Hide this process's memory and environment from others of its user; children inherit it."""
    _prctl(_PR_SET_DUMPABLE, 0)


def detach(parent: int, channel: socket.socket) -> socket.socket:
    """Tie this fresh child to its parent's life, and close every descriptor but the channel, which is returned."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the line above
    os.setsid()
    kept = 3
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    descriptor = channel.detach()
    if descriptor != kept:
        os.dup2(descriptor, kept, inheritable=False)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=kept)


def confine(allowance: Allowance, *, lock: bool) -> None:
    """Limit this process's resources and, with `lock`, its files and system calls. There is no way back."""
    _limit(resource.RLIMIT_AS, allowance.memory_bytes)
    _limit(resource.RLIMIT_CPU, allowance.cpu_seconds, slack=2)  # SIGXCPU first, which tells why; then SIGKILL
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    _limit(resource.RLIMIT_CORE, 0)
    if not lock:
        return
    _drop_capabilities()
    forbid_new_privileges()
    if landlock.abi():
        landlock.restrict([("/", landlock.READ), (os.devnull, landlock.READ | landlock.WRITE_FILE)])
    seccomp.install(os.getpid())


def check() -> None:
    """Confine this process as a job's and try to break out a little; print `ok`, or raise what is wrong."""
    confine(Allowance(memory_bytes=1 << 31, cpu_seconds=10), lock=True)
    for what, attempt in (("fork", os.fork), ("open a socket", socket.socket)):
        try:
            attempt()
        except PermissionError:
            continue
        raise RuntimeError(f"a confined process could {what}")
    print("ok")


def forbid_new_privileges() -> None:
    """Set no_new_privs, which Landlock and seccomp ask for."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _limit(kind: int, amount: int, slack: int = 0) -> None:
    _, hard = resource.getrlimit(kind)
    ceiling = amount + slack if hard == resource.RLIM_INFINITY else min(amount + slack, hard)
    resource.setrlimit(kind, (min(amount, ceiling), ceiling))


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if _libc().capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
