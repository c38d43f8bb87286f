"""Landlock: a process gives up all file access but what it names, for itself and its children, for good.

See landlock(7) and the kernel's Documentation/userspace-api/landlock.rst; checked with ABI 7. What Landlock does not
govern (modes, owners, times, existence of a path) is left to the seccomp filter or stated as a limit of the reduced
level. Runs on the untrusted side; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR = (1 << bit for bit in range(5))
READ = READ_FILE | READ_DIR
EVERYTHING = (1 << 13) - 1
"""Every right of the first version of the interface."""

_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # the newest right that an interface version knows, exclusive
_NETWORK_ABI, _SCOPE_ABI = 4, 6
_TCP_BIND_AND_CONNECT = _ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _PATH_BENEATH = 1, 1


def abi() -> int:
    """Return the interface version of this kernel, 0 where Landlock is missing or switched off."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))))


def restrict(rules: Iterable[tuple[str, int]]) -> None:
    """Allow only the rights named for each path and what lies below it; no_new_privs must be set.

    TCP, and signals and abstract sockets of outer processes, are refused where the kernel can. A path that doesn't
    exist is skipped; for a file, the rights of folders are dropped. Raises `OSError` when the kernel refuses.
    """
    version = abi()
    handled = (1 << _RIGHTS_BY_ABI.get(version, 16)) - 1
    network = _TCP_BIND_AND_CONNECT if version >= _NETWORK_ABI else 0
    scope = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_ABI else 0
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _NETWORK_ABI else 8
    attributes = struct.pack("=QQQ", handled, network, scope)[:size]
    ruleset = _call(_CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if not os.path.isdir(path):
            rights &= EXECUTE | WRITE_FILE | READ_FILE
        rule = struct.pack("=Qi", rights, handle)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.c_char_p(rule), ctypes.c_uint32(0))
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock: {os.strerror(error)}")
    return result
