"""A seccomp filter for code that may compute and answer, and nothing else; assembled by hand, installed with `prctl`.

The filter is an allow-list for x86_64 and aarch64. What is not on it fails with EPERM, or with ENOSYS where the C
library then falls back to an older call, so that a forbidden call is an ordinary `PermissionError` in the job. See
seccomp(2), the kernel's Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/bpf_common.h.

Runs on the untrusted side; standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
from collections.abc import Iterable, Iterator

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name, number on x86_64 and on aarch64 (- where there is none); from the kernel's unistd_64.h and asm-generic/unistd.h.
_ALLOWED = """
# files that are open or may be opened (Landlock says which): no call that changes a name, a mode or an owner
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
close 3 57, close_range 436 436, lseek 8 62, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291,
statfs 137 43, fstatfs 138 44, open 2 -, openat 257 56, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50,
dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fadvise64 221 223,
# memory
mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214,
# signals to itself
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132,
# waiting
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19,
# sockets that exist: its channel and its own pairs
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockopt 55 209,
setsockopt 54 208, getsockname 51 204, getpeername 52 205,
# locks, and what the C library asks for its one thread
futex 202 98, set_robust_list 273 99, get_robust_list 274 100, set_tid_address 218 96, rseq 334 293,
membarrier 324 283, sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168,
# time
nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169,
time 201 -, times 100 153, getrusage 98 165, getitimer 36 102, setitimer 38 103, alarm 37 -, pause 34 -,
timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
# asking about itself, and ending
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getgroups 115 158, getpgrp 111 -, getpgid 121 155, getsid 124 156, getresuid 118 148, getresgid 120 150,
uname 63 160, sysinfo 99 179, getrlimit 97 163, getpriority 140 141, umask 95 166, getrandom 318 278,
restart_syscall 219 128, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95
"""

# name: number, index of the argument looked at, mask on its low 32 bits, the values allowed after masking.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x541B, 0x5421, 0x5450, 0x5451
_SOCK_STREAM, _PR_SET_NAME, _PR_GET_NAME = 1, 15, 16
_ALL = 0xFFFFFFFF
_CONDITIONAL: dict[str, tuple[tuple[int, int], int, int, tuple[int, ...]]] = {
    "fcntl": ((72, 25), 1, _ALL, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC)),
    "ioctl": ((16, 29), 1, _ALL, (_TCGETS, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)),
    "prctl": ((157, 167), 0, _ALL, (_PR_SET_NAME, _PR_GET_NAME)),
    "prlimit64": ((302, 261), 0, _ALL, (0,)),  # its own limits, which it can only lower
    # asyncio's loop needs a pair; a datagram pair could send to any socket's name
    "socketpair": ((53, 199), 1, 0xF, (_SOCK_STREAM,)),
}
_TO_ITSELF = {"kill": (62, 129), "tgkill": (234, 131)}
_CLONE3 = 435  # ENOSYS makes the C library use clone, which is refused: one thread, one process
_NEWEST_KNOWN = 462  # a call newer than this list: ENOSYS, so that a newer C library falls back

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def supported() -> bool:
    """Return whether there is a filter for this processor."""
    return platform.machine() in AUDIT_ARCH


def assemble(machine: str, pid: int) -> list[Instruction]:
    """Return the filter of a process for `x86_64` or `aarch64`; it may signal only `pid`, which is its own."""
    column = 0 if machine == "x86_64" else 1
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),  # else a 32-bit call, with other numbers
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    for number in _allowed(column):
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for numbers, argument, mask, values in _conditions(pid):
        program += _allow_if(numbers[column], argument, mask, values)
    enosys, eperm = (_ERRNO | error for error in (errno.ENOSYS, errno.EPERM))
    program += [
        (_JUMP_EQUAL, 1, 0, _CLONE3),
        (_JUMP_GREATER_EQUAL, 0, 1, _NEWEST_KNOWN + 1),  # the x32 calls are there, too
        (_RETURN, 0, 0, enosys),
        (_RETURN, 0, 0, eperm),
    ]
    return program


def install(pid: int) -> None:
    """Put this process under the filter for good; no_new_privs must be set. Raises `OSError` when refused."""
    program = assemble(platform.machine(), pid)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))  # struct sock_fprog, 64 bit
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _allowed(column: int) -> list[int]:
    entries = [entry.split() for entry in re.sub("#.*", "", _ALLOWED).split(",")]
    return [int(entry[1 + column]) for entry in entries if entry[1 + column] != "-"]


def _conditions(pid: int) -> Iterator[tuple[tuple[int, int], int, int, tuple[int, ...]]]:
    yield from _CONDITIONAL.values()
    for numbers in _TO_ITSELF.values():
        yield numbers, 0, _ALL, (pid,)


def _allow_if(number: int, argument: int, mask: int, values: Iterable[int]) -> list[Instruction]:
    """Return the block that allows a call if the masked low half of one argument is among the values, else refuses it.

    The kernel reads these arguments as 32 bits.
    """
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument), (_AND, 0, 0, mask)]
    for value in values:
        body += [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    body.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return [(_JUMP_EQUAL, 0, len(body), number), *body]
