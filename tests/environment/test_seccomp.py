"""The filter's program, interpreted here as the kernel would; test_confinement shows the real kernel obey it."""

from __future__ import annotations

import errno
import platform
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.environment.seccomp import _ALLOWED, AUDIT_ARCH, assemble, supported

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
PROGRAMS = {machine: assemble(machine, pid=1234) for machine in AUDIT_ARCH}
SOCKET = {"x86_64": 41, "aarch64": 198}
KILL_CALL = {"x86_64": 62, "aarch64": 129}
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
machines = pytest.mark.parametrize("machine", list(AUDIT_ARCH))


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return what the program returns for one call: classic BPF over struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, AUDIT_ARCH[machine] if arch is None else arch, 0, *padded)
    program, at, accumulator = PROGRAMS[machine], 0, 0
    while True:
        code, jump_true, jump_false, constant = program[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x15:
            at += jump_true if accumulator == constant else jump_false
        elif code == 0x35:
            at += jump_true if accumulator >= constant else jump_false
        else:
            assert code == 0x06
            return constant


@machines
def test_reading_is_allowed_and_sockets_are_not(machine: str) -> None:
    assert verdict(machine, {"x86_64": 0, "aarch64": 63}[machine]) == ALLOW
    assert verdict(machine, SOCKET[machine]) == EPERM


@machines
@given(number=st.integers(0, 2**31 - 1), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_call_ends_in_a_verdict(machine: str, number: int, arguments: list[int]) -> None:
    assert verdict(machine, number, *arguments) in (ALLOW, EPERM, ENOSYS)


@machines
@given(arch=st.integers(0, 2**32 - 1), number=st.integers(0, 500))
def test_another_architecture_is_death(machine: str, arch: int, number: int) -> None:
    if arch != AUDIT_ARCH[machine]:
        assert verdict(machine, number, arch=arch) == KILL


@machines
def test_signals_go_to_itself_only(machine: str) -> None:
    assert verdict(machine, KILL_CALL[machine], 1234, 9) == ALLOW
    for target in (0, 1, 1235, 2**32 - 1):
        assert verdict(machine, KILL_CALL[machine], target, 9) == EPERM


@machines
def test_neither_threads_nor_processes_may_be_made(machine: str) -> None:
    for flags in (0x3D0F00, 0x1200011):  # what pthread_create and fork pass
        assert verdict(machine, CLONE[machine], flags) == EPERM
    assert verdict(machine, 435) == ENOSYS


@machines
def test_only_stream_pairs_may_be_made(machine: str) -> None:
    nonblocking, close_on_exec = 0o4000, 0o2000000
    assert verdict(machine, SOCKETPAIR[machine], 1, 1 | nonblocking | close_on_exec) == ALLOW
    assert verdict(machine, SOCKETPAIR[machine], 1, 2) == EPERM
    assert verdict(machine, SOCKETPAIR[machine], 1, 5) == EPERM


@machines
def test_newer_calls_do_not_exist(machine: str) -> None:
    assert verdict(machine, 462) == EPERM
    assert verdict(machine, 463) == ENOSYS


@machines
def test_jumps_stay_inside_and_the_program_fits(machine: str) -> None:
    program = PROGRAMS[machine]
    assert len(program) <= 4096
    for at, (code, jump_true, jump_false, _) in enumerate(program):
        if code in (0x15, 0x35):
            assert max(jump_true, jump_false) < 256
            assert at + 1 + max(jump_true, jump_false) < len(program)
    assert program[-1][0] == 0x06


def headers() -> dict[str, int]:
    path = next(Path("/usr/include").glob("**/asm/unistd_64.h"), None)
    if path is None or platform.machine() != "x86_64":
        pytest.skip("the kernel's headers are not installed")
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", path.read_text())}


def test_the_numbers_are_the_kernels() -> None:
    known = headers()
    named = re.findall(r"(\w+) (\d+) (?:\d+|-)", re.sub("#.*", "", _ALLOWED))
    assert len(named) > 100
    assert {name: known.get(name) for name, _ in named} == {name: int(number) for name, number in named}


def test_this_machine_is_supported_or_known_not_to_be() -> None:
    assert supported() == (platform.machine() in ("x86_64", "aarch64"))
