"""The sandbox's levels, found by running them, and the command that starts the environment server in one.

| level | the server's process | every job's process |
|---|---|---|
| `full` | bubblewrap: own user, pid, network, ipc and mount namespaces; sees the interpreter only | confined |
| `reduced` | Landlock: reads the interpreter only | confined |
| `none` | an ordinary process; only with `unsafe_no_sandbox` | limits on memory, CPU time and file size only |

"The interpreter" is its folders and those of the virtual environment, libraries included, without what is `withheld`.
"Confined" is what `confinement` does: Landlock where the kernel has it, a seccomp allow-list, resource limits. At the
reduced level a job can still learn whether a path exists and how large it is, since Landlock doesn't govern that, and
the names of files below the interpreter's folders, withheld ones too, since Landlock can't except a folder.
Checked with bubblewrap 0.8.0 on Linux 6.18.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from trainwright.environment import landlock, seccomp
from trainwright.environment.withheld import withheld
from trainwright.errors import SandboxError

Level = Literal["full", "reduced", "none"]
LEVEL_VARIABLE = "TRAINWRIGHT_SANDBOX"
"""Environment variable that demands one level instead of the best one."""

INSTALL_BUBBLEWRAP = "install bubblewrap 0.8 or newer (Debian, Ubuntu: apt install bubblewrap) for the full sandbox"

_SOURCES = Path(__file__).resolve().parent
_SERVER_FILES = ("server.py", "scoring.py", "confinement.py", "landlock.py", "seccomp.py", "protocol.py")
_INSIDE = "/jobserver"
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_TMPFS_BYTES = 64 * 1024 * 1024
_PROBE_SECONDS = 60

_BOOT = """
import sys, types
package = types.ModuleType("jobserver")
package.__path__ = [sys.argv[1]]
sys.modules["jobserver"] = package
from jobserver.{module} import {function}
{function}(*sys.argv[2:])
"""


@dataclass(frozen=True)
class Sandbox:
    """A level that works on this machine, and one line that says how to get a better one ('' at the best)."""

    level: Level
    advice: str = ""

    @property
    def locked(self) -> bool:
        """Return whether jobs are confined."""
        return self.level != "none"

    def make_root(self) -> str:
        """Return a folder for the jobs' folders; at the full level one that only the server sees."""
        return "/tmp" if self.level == "full" else tempfile.mkdtemp(prefix="trainwright-jobs-")

    def rules(self, root: str) -> list[tuple[str, int]]:
        """Return the Landlock rules of the server: what it and every job below it may still touch."""
        own = [(root, landlock.EVERYTHING), (os.devnull, landlock.READ | landlock.WRITE_FILE)]
        if self.level == "full":
            return [("/", landlock.READ), *own]
        return [*_readable(), *own, (str(Path(root).parent), landlock.REMOVE_DIR)]

    def command(self, module: str, function: str, *arguments: str) -> list[str]:
        """Return the command that calls `function(*arguments)` of one server module inside the sandbox."""
        boot = _BOOT.format(module=module, function=function)
        where = _INSIDE if self.level == "full" else str(_SOURCES)
        python = [sys.executable, "-s", "-P", "-c", boot, where, *arguments]
        return [*_bubblewrap(), "--", *python] if self.level == "full" else python

    def environment(self, root: str) -> dict[str, str]:
        """Return the whole environment of the server: nothing of ours reaches it, and hashing is the same each time."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": root,
            "TMPDIR": root,
            "PYTHONHASHSEED": "0",
        } | threads


def detect(unsafe_no_sandbox: bool = False) -> Sandbox:
    """Return the best sandbox of this machine, each level tried by running it.

    The environment variable `TRAINWRIGHT_SANDBOX` demands one level. Raises `SandboxError` when that one, or any,
    can't be had; `none` is only ever returned with `unsafe_no_sandbox`.
    """
    demanded = os.environ.get(LEVEL_VARIABLE)
    if demanded is not None and demanded not in get_args(Level):
        raise SandboxError(f"{LEVEL_VARIABLE}={demanded!r} is no sandbox level; use {', '.join(get_args(Level))}")
    wanted = get_args(Level) if demanded is None else (cast(Level, demanded),)
    reasons = []
    for level in wanted:
        reason = _failure(level, unsafe_no_sandbox)
        if not reason:
            return Sandbox(level, "" if level == "full" else INSTALL_BUBBLEWRAP)
        reasons.append(f"{level}: {reason}")
    raise SandboxError(
        f"no sandbox for the jobs' code ({'; '.join(reasons)}); {INSTALL_BUBBLEWRAP}, "
        "or, on a throw-away machine only, pass --unsafe-no-sandbox"
    )


def _failure(level: Level, unsafe_no_sandbox: bool) -> str:
    """Return why a level can't be had, '' when it can."""
    if level == "none":
        return "" if unsafe_no_sandbox else "not allowed without --unsafe-no-sandbox"
    return _probe(level)


def _probe(level: Level) -> str:
    """Run a level's sandbox once; return why it doesn't work, '' when it does."""
    if not seccomp.supported():
        return f"no system call filter for {os.uname().machine}"
    if level == "full" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    if level == "reduced" and landlock.abi() == 0:
        return "this kernel has no Landlock"
    sandbox = Sandbox(level)
    try:
        done = subprocess.run(
            sandbox.command("confinement", "check"),
            env=sandbox.environment("/tmp"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and done.stdout.strip() == "ok":
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _bubblewrap() -> list[str]:
    """Return the bubblewrap command up to the program."""
    flags = "--unshare-all --unshare-user --disable-userns --die-with-parent --new-session --as-pid-1 --cap-drop ALL"
    program = shutil.which("bwrap") or "bwrap"  # by our PATH, not by the one inside
    command = [program, *flags.split(), "--uid", "65534", "--gid", "65534"]
    command += ["--dev", "/dev", "--size", str(_TMPFS_BYTES), "--tmpfs", "/tmp"]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    bound = ["/usr", *_prefixes()]
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            bound.append(folder)
    for folder in bound:
        command += ["--ro-bind", folder, folder]
    for folder in bound:
        command += [word for path in _withheld_below(folder) for word in _cover(path)]
    for name in _SERVER_FILES:
        command += ["--ro-bind", str(_SOURCES / name), f"{_INSIDE}/{name}"]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp"]


def _withheld_below(folder: str) -> list[Path]:
    """Return the withheld paths below a folder, as they are called there: the folder may be a link to their place."""
    real = Path(folder).resolve()
    return [Path(folder, path.relative_to(real)) for path in withheld() if path.is_relative_to(real)]


def _cover(path: Path) -> list[str]:
    """Return bubblewrap's words that put something empty over a bound path."""
    if path.is_dir():
        return ["--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", os.devnull, str(path)] if path.exists() else []


def _prefixes() -> list[str]:
    """Return the folders of the interpreter and the virtual environment, outermost first, without /usr."""
    candidates = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    candidates |= {os.path.realpath(candidate) for candidate in candidates}
    outer: list[str] = []
    for candidate in sorted(candidates, key=len):
        if not any(Path(candidate).is_relative_to(known) for known in ("/usr", *outer)):
            outer.append(candidate)
    return outer


def _readable() -> Iterator[tuple[str, int]]:
    """Yield Landlock rules for the interpreter, its libraries and the virtual environment, without what is withheld.

    By real paths, since a rule on a link would allow its target, whatever that holds.
    """
    for path in ("/usr", *_SYSTEM_FOLDERS, "/etc/ld.so.cache", "/etc/localtime", *_prefixes()):
        yield from _around(Path(path).resolve())


def _around(path: Path) -> Iterator[tuple[str, int]]:
    """Yield rules for everything at and below a real path that is not withheld, in as few as possible."""
    if not any(hole.is_relative_to(path) for hole in withheld()):
        yield str(path), landlock.READ
    elif path not in withheld():
        yield str(path), landlock.READ_DIR
        for entry in path.iterdir():
            if not entry.is_symlink():  # `lib64` of a virtual environment leads to `lib`
                yield from _around(entry)
