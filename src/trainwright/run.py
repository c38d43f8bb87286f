"""A run from its configuration to its report: the folder, the lock, resume, the parts, and what is left behind.

The folder holds `run.toml` (every resolved setting), `ledger.sqlite`, `metrics.jsonl`, `checkpoints/`, `best-job/`,
`curve.png` and `summary.json`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import platform
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar

import tomli_w

from trainwright.cache import write_atomically
from trainwright.config import RunConfig, TasksConfig
from trainwright.episode import Services
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.report.view import View

T = TypeVar("T")
Progress = Callable[[int, int], None]

CLOCK_SECONDS = 5.0
CHANGEABLE: tuple[str, ...] = (
    "steps",
    "folder",
    "ask_above_usd",
    "pool.runpod.money",
    "pool.runpod.times",
    "pool.runpod.gpus",
)
CHANGEABLE += ("pool.runpod.clouds", "pool.runpod.data_centers", "pool.runpod.max_pods")
"""Settings, and tables of them, that a resumed run may change: how far it goes, where its folder is, when to
ask, and what rented pods may cost, since a cap ends a run."""


def run(config: RunConfig, view: View) -> Path:
    """Run or resume the outer loop in `config.folder` and return that folder, report written.

    Raises `ConfigError` when the folder belongs to another configuration or is in use, `SandboxError` when job code
    can't be confined. After a kill the same call continues; a finished run is only reported again.
    """
    folder = config.folder
    with _only_process(folder):
        ledger = Ledger(folder / "ledger.sqlite")
        try:
            _check_same_run(ledger, config)
            write_atomically(folder / "run.toml", tomli_w.dumps(_plain(config)).encode())
            asyncio.run(_run(config, ledger, folder, view))
        finally:
            ledger.close()
    return folder


async def _run(config: RunConfig, ledger: Ledger, folder: Path, view: View) -> None:
    from trainwright.report.report import write_report

    if ledger.get("finished") != config.steps:
        await _train(config, ledger, folder, view)
        ledger.set("finished", config.steps)
    write_report(config, ledger, folder, view)


async def _train(config: RunConfig, ledger: Ledger, folder: Path, view: View) -> None:
    from trainwright.backends import make_policy, make_pool
    from trainwright.loop import train_agent
    from trainwright.reference import References

    async with _clock(ledger):
        ledger.set("students", await prepare_students(students_of(config.tasks), view))
        building = view.progress("warm-starting the agent")
        policy = await in_thread(lambda report: make_policy(config, report), building)
        pool = make_pool(config)
        try:
            started = await pool.start()
            view.note(started.note)
            ledger.set("versions", versions())
            ledger.set("sandbox", started.sandbox)
            services = Services(config, ledger, policy, pool, References(pool, config.measure), started.sandbox)
            await train_agent(services, folder, view)
        finally:
            await pool.close()
            await policy.close()


@asynccontextmanager
async def _clock(ledger: Ledger) -> AsyncIterator[None]:
    """Keep the seconds that were spent on the run in the ledger, so that a kill loses a few of them only."""
    started, before = time.monotonic(), float(ledger.get("wall_seconds", 0.0))

    def write() -> None:
        ledger.set("wall_seconds", before + time.monotonic() - started)

    async def tick() -> None:
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            write()

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        write()


def students_of(tasks: TasksConfig) -> list[str]:
    """Return the names of the students that a run's tasks offer."""
    from trainwright.suites.offers import run_families

    return sorted({offer.student for family in run_families(tasks) for offer in family.draw(0).offers})


async def prepare_students(names: Iterable[str], view: View) -> dict[str, str]:
    """Build or fetch the base students that are not in the cache yet, side by side; return each one's hash."""
    from trainwright.students.registry import prepare_student, student_key

    def build(name: str, report: Progress) -> None:
        import torch

        torch.set_num_threads(1)
        prepare_student(name, report)

    names = sorted(names)
    builds = (in_thread(partial(build, name), view.progress(f"preparing the base student {name}")) for name in names)
    await asyncio.gather(*builds)
    return {name: student_key(name) for name in names}


async def in_thread(work: Callable[[Progress], T], progress: Progress) -> T:
    """Return the result of blocking work that reports its progress; cancelled, it ends at its next report."""
    stopped = threading.Event()

    def report(done: int, total: int) -> None:
        if stopped.is_set():
            raise InterruptedError("stopped by the user")
        progress(done, total)

    try:
        return await asyncio.to_thread(work, report)
    except asyncio.CancelledError:
        stopped.set()
        raise


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers depend on."""
    names = ("trainwright", "torch", "transformers", "verifiers", "tokenizers")
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    return machine | {name: version(name) for name in names}


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock; raise `ConfigError` when it can't be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"the run folder {folder} can't be used: {error.strerror}; choose another one") from None
    with file:
        if not _lock(file):
            raise ConfigError(f"{folder}: another trainwright process is working in this run folder")
        yield


def _lock(file: IO[str]) -> bool:
    for _ in range(10):  # `trainwright status` holds the lock for a moment
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def _check_same_run(ledger: Ledger, config: RunConfig) -> None:
    mine, stored = _plain(config), ledger.get("config")
    if stored is not None:
        changeable = tuple(f"{name}." for name in CHANGEABLE)
        changed = [name for name in _differences(stored, mine) if not f"{name}.".startswith(changeable)]
        if changed:
            raise ConfigError(
                f"{config.folder} holds a run with other settings ({', '.join(changed)}); "
                "take the settings of its run.toml to resume it, or choose another folder"
            )
    ledger.set("config", mine)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names


def _plain(config: RunConfig) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(config.model_dump_json(exclude_none=True))  # TOML has no null
    return table
