"""What a job can't do, at each level: every attempt is made by a job's own code and its result read from a row."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import trainwright
from trainwright.environment.client import EnvironmentServer
from trainwright.errors import JobFault

WriteJob = Callable[..., dict[str, str]]
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86_64's")


Attempt = Callable[..., list[str]]


@pytest.fixture
def attempt(server: EnvironmentServer, job: WriteJob) -> Attempt:
    """Return a function that evaluates expressions in one job and returns their values or exceptions as text."""

    def run(*expressions: str, module: str = "") -> list[str]:
        load = f"""
        for expression in {list(expressions)!r}:
            try:
                result = repr(eval(expression))
            except Exception as error:
                result = f"{{type(error).__name__}}: {{error}}"
            yield Problem(Data(prompt="> " + result))
        """
        load = load.replace("eval(expression)", "eval(expression, globals(), locals())")
        imports = "import fcntl, resource, subprocess\n"
        with server.open(job(load=load, module=imports + textwrap.dedent(module)), seed=1) as environment:
            rows = environment.rows(len(expressions) + 1)
        assert len(rows) == len(expressions)
        return [row.messages[0]["content"].removeprefix("> ") for row in rows]

    return run


def test_it_has_one_descriptor_besides_the_standard_ones(attempt: Attempt) -> None:
    module = """
    def kind(fd):
        try:
            status = os.fstat(fd)
        except OSError:
            return None
        return "nowhere" if status.st_rdev == os.stat(os.devnull).st_rdev else oct(status.st_mode)
    """
    [found] = attempt("{fd: kind(fd) for fd in range(64) if kind(fd)}", module=module)
    # 3 is the channel; the event loop has an epoll descriptor and a socket pair of its own
    assert found.startswith("{0: 'nowhere', 1: 'nowhere', 2: 'nowhere', 3: '0o140777'")
    assert found.count(":") <= 7


FORBIDDEN = [
    "socket.socket()",
    "socket.socket(socket.AF_UNIX)",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "socket.create_connection(('127.0.0.1', 22), 1)",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "os.fork()",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "subprocess.run(['/bin/true'])",
    "os.execv(sys.executable, ['python'])",
    "os.kill(os.getppid(), signal.SIGKILL)",
    "os.kill(1, signal.SIGKILL)",
    "os.kill(-1, signal.SIGKILL)",
    "os.kill(0, signal.SIGKILL)",
    "os.killpg(0, signal.SIGKILL)",
    "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)",
    "os.mkdir('folder')",
    "os.symlink('/etc', 'link')",
    "os.link(__file__, 'link')",
    "os.rename(__file__, 'other.py')",
    "os.unlink(__file__)",
    "os.chmod(__file__, 0o777)",
    "os.chmod(sys.executable, 0)",
    "os.utime(__file__)",
    "os.truncate(__file__, 0)",
    "os.setxattr(__file__, 'user.x', b'')",
    "os.mkfifo('fifo')",
    "os.setuid(0)",
    "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "os.sched_setaffinity(os.getppid(), [0])",
    "resource.prlimit(os.getppid(), 7, (0, 0))",
    "os.memfd_create('x')",
    "os.chroot('/')",
    "fcntl.fcntl(0, 8, os.getppid())",
]


def test_a_forbidden_call_is_an_ordinary_permission_error(attempt: Attempt) -> None:
    found = dict(zip(FORBIDDEN, attempt(*FORBIDDEN), strict=True))
    assert {call: result for call, result in found.items() if not result.startswith("PermissionError: [Errno 1]")} == {}


def test_it_starts_no_thread(attempt: Attempt) -> None:
    assert attempt("threading.Thread(target=print).start()") == ["RuntimeError: can't start new thread"]


FORBIDDEN_NUMBERS = {
    "socket": 41,
    "clone": 56,
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "execveat": 322,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "unshare": 272,
    "setns": 308,
    "bpf": 321,
    "keyctl": 250,
    "add_key": 248,
    "perf_event_open": 298,
    "io_uring_setup": 425,
    "userfaultfd": 323,
    "memfd_create": 319,
    "shmget": 29,
    "mq_open": 240,
    "open_by_handle_at": 304,
    "inotify_init1": 294,
    "seccomp": 317,
    "landlock_create_ruleset": 444,
    "pidfd_getfd": 438,
    "tkill": 200,
    "rt_sigqueueinfo": 129,
    "connect": 42,
    "bind": 49,
    "sendmmsg": 307,
    "capset": 126,
    "setresuid": 117,
    "personality": 135,
    "iopl": 172,
    "syslog": 103,
    "setrlimit": 160,
}
CALL = "((libc := ctypes.CDLL(None, use_errno=True)).syscall({}, 0, 0, 0, 0, 0), ctypes.get_errno())"


@on_x86
def test_a_forbidden_call_by_number_is_refused(attempt: Attempt) -> None:
    results = attempt(*(CALL.format(number) for number in FORBIDDEN_NUMBERS.values()))
    assert dict(zip(FORBIDDEN_NUMBERS, results, strict=True)) == dict.fromkeys(FORBIDDEN_NUMBERS, "(-1, 1)")


@on_x86
def test_calls_that_c_libraries_fall_back_from_do_not_exist(attempt: Attempt) -> None:
    numbers = (435, 463, 10_000, 0x40000000 | 41)  # clone3, newer than known, absurd, the x32 socket()
    assert attempt(*map(CALL.format, numbers)) == ["(-1, 38)"] * 4


@on_x86
def test_a_call_of_another_architecture_is_death(server: EnvironmentServer, job: WriteJob) -> None:
    module = """
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\xb8\\x02\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 2 (fork); int 0x80; ret
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    """
    with pytest.raises(JobFault) as caught:
        server.open(job(module=module), seed=1)
    assert caught.value.code == "killed"


def test_it_reads_no_file_of_ours(attempt: Attempt, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("the hidden answer is 42")
    package = Path(trainwright.__file__).parent
    paths = [canary, package / "seeds.py", package / "suites" / "family.py", package / "environment" / "client.py"]
    paths += [Path("/etc/passwd"), Path("/etc/hostname"), Path.home() / ".bashrc", Path("/proc/self/environ")]
    paths += [Path("/proc/1/environ"), Path("/proc/self/maps"), Path("/sys/kernel/mm"), Path("/dev/mem")]
    for path, found in zip(paths, attempt(*(f"open({str(path)!r}).read()" for path in paths)), strict=True):
        assert found.startswith(("FileNotFoundError", "PermissionError")), (path, found)

    folders = [tmp_path, Path.home(), Path("/"), Path("/etc"), Path("/proc"), Path("/tmp"), package]
    hidden = ["canary.txt", "home", ".bashrc", "passwd", "self", "seeds.py"]
    for folder, found in zip(folders, attempt(*(f"os.listdir({str(folder)!r})" for folder in folders)), strict=True):
        assert not any(f"'{name}'" in found for name in hidden), (folder, found)


def test_it_sees_no_environment_variable_of_ours(attempt: Attempt) -> None:
    known = {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "PYTHONHASHSEED", "TMPDIR"}
    known |= {f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL")}
    [found] = attempt(f"sorted(set(os.environ) - set({known}))")
    assert found == "[]"


def test_it_writes_nowhere(attempt: Attempt, tmp_path: Path) -> None:
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    existing = public / "existing"
    existing.write_text("untouched")
    existing.chmod(0o666)
    paths = ["here.txt", "/tmp/there.txt", "/var/tmp/x", "/dev/shm/x", str(public / "new"), str(existing)]
    attempts = [f"open({path!r}, 'w').write('x')" for path in paths]
    attempts += ["open(__file__, 'r+').write('x')", f"open({os.__file__!r}, 'a').write('x')"]
    for expression, found in zip(attempts, attempt(*attempts), strict=True):
        refused = ("PermissionError", "FileNotFoundError", "OSError: [Errno 30]")
        assert found.startswith(refused), (expression, found)
    assert existing.read_text() == "untouched"
    assert [path.name for path in public.iterdir()] == ["existing"]


def test_the_temporary_folder_can_not_be_filled(attempt: Attempt) -> None:
    [found] = attempt("[open(f'{os.environ[\"TMPDIR\"]}/{n}', 'wb').write(bytes(1 << 20)) for n in range(10_000)]")
    assert found.startswith("PermissionError")


def test_its_limits_can_not_be_raised(attempt: Attempt) -> None:
    limits = "(resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)"
    found = attempt(
        f"[resource.getrlimit(limit) for limit in {limits}]", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    )
    assert found[0] == f"[({2 << 30}, {2 << 30}), (0, 0), (64, 64)]"
    assert found[1].startswith(("ValueError", "PermissionError"))
