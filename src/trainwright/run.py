"""A run from its configuration to its report: the folder, the lock, resume, the parts, and what is left behind.

The folder holds `run.toml` (every resolved setting), `ledger.sqlite`, `metrics.jsonl`, `checkpoints/`, `best-job/`,
`curve.png` and `summary.json`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import platform
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from trainwright.cache import write_atomically
from trainwright.config import RunConfig
from trainwright.episode import Services
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.report.view import View

CHANGEABLE = {"steps", "folder"}
"""Settings that a resumed run may change: how far it goes and where its folder has been moved."""


def run(config: RunConfig, view: View) -> Path:
    """Run or resume the outer loop in `config.folder` and return that folder, report written.

    Raises `ConfigError` when the folder belongs to another configuration or is in use, `SandboxError` when job code
    can't be confined. After a kill the same call continues.
    """
    folder = config.folder
    folder.mkdir(parents=True, exist_ok=True)
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
    from trainwright.agent.warm_start import warm_started
    from trainwright.loop import train_agent
    from trainwright.pools.local import LocalPool
    from trainwright.reference import References
    from trainwright.report.report import write_report

    started, before = time.monotonic(), float(ledger.get("wall_seconds", 0.0))
    await prepare_students(config.tasks.suite, view)
    policy = warm_started(config.agent, config.seed, view.progress("warm-starting the agent"))
    pool = LocalPool(
        config.pool.workers,
        job_seconds=config.pool.job_seconds,
        retries=config.pool.retries,
        unsafe_no_sandbox=config.pool.unsafe_no_sandbox,
    )
    try:
        await pool.start()
        advice = f"; {pool.sandbox.advice}" if pool.sandbox.advice else ""
        view.note(f"{len(pool.workers)} workers, sandbox: {pool.sandbox.level}{advice}")
        ledger.set("versions", versions())
        ledger.set("sandbox", pool.sandbox.level)
        services = Services(config, ledger, policy, pool, References(pool, config.measure), pool.sandbox.level)
        await train_agent(services, folder, view)
    finally:
        ledger.set("wall_seconds", before + time.monotonic() - started)
        await pool.close()
        await policy.close()
    write_report(config, ledger, folder, view)


async def prepare_students(suite: str, view: View) -> None:
    """Build the base students of a suite that are not in the cache yet, side by side."""
    from trainwright.students.registry import base_student
    from trainwright.suites.family import suite_families

    names = sorted({offer.student for family in suite_families(suite) for offer in family.draw(0).offers})

    def build(name: str) -> None:
        import torch

        torch.set_num_threads(1)
        base_student(name, view.progress(f"building the base student {name}"))

    with ThreadPoolExecutor(len(names)) as threads:
        await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(threads, build, name) for name in names))


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers depend on."""
    names = ("trainwright", "torch", "transformers", "verifiers", "tokenizers")
    return {"python": platform.python_version(), "machine": platform.machine()} | {name: version(name) for name in names}


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another trainwright process is working in this run folder") from None
        yield


def _check_same_run(ledger: Ledger, config: RunConfig) -> None:
    mine, stored = _plain(config), ledger.get("config")
    if stored is not None:
        changed = [name for name in _differences(stored, mine) if name not in CHANGEABLE]
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
    table: dict[str, Any] = json.loads(config.model_dump_json())
    return table
