"""The parts of a run that train nothing: threads that can be stopped, the clock, the lock, changed settings."""

from __future__ import annotations

import asyncio
import fcntl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainwright import run as module
from trainwright.config import RunConfig
from trainwright.errors import ConfigError
from trainwright.ledger import Ledger
from trainwright.report.view import PlainView
from trainwright.run import Progress, in_thread


def ignore(done: int, total: int) -> None:
    pass


def test_work_in_a_thread_returns_and_reports() -> None:
    seen: list[tuple[int, int]] = []

    def work(report: Progress) -> str:
        report(1, 2)
        report(2, 2)
        return "done"

    assert asyncio.run(in_thread(work, lambda done, total: seen.append((done, total)))) == "done"
    assert seen == [(1, 2), (2, 2)]


def test_what_the_work_raises_comes_out() -> None:
    def work(report: Progress) -> str:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        asyncio.run(in_thread(work, ignore))


def test_cancelled_work_ends_at_its_next_report() -> None:
    started, reports = threading.Event(), [0]

    def work(report: Progress) -> None:
        for step in range(100_000):
            report(step, 100_000)
            reports[0] += 1
            started.set()
            time.sleep(0.002)

    async def cancelled() -> None:
        task = asyncio.create_task(in_thread(work, ignore))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())  # it waits for its threads
    assert 0 < reports[0] < 100_000


def test_the_clock_adds_to_what_earlier_starts_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOCK_SECONDS", 0.01)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set("wall_seconds", 100.0)

    async def work() -> float:
        async with module._clock(ledger):
            while ledger.get("wall_seconds") == 100.0:  # it is written while the work goes on
                await asyncio.sleep(0.01)
            return float(ledger.get("wall_seconds"))

    during = asyncio.run(work())
    assert 100.0 < during <= ledger.get("wall_seconds")


def test_the_clock_stops_with_what_fails(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")

    async def work() -> None:
        async with module._clock(ledger):
            await asyncio.sleep(0.01)
            raise ConfigError("no")

    with pytest.raises(ConfigError):
        asyncio.run(work())
    assert ledger.get("wall_seconds") > 0


def run_nothing(monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> list[RunConfig]:
    """Run a configuration whose training is a fake; return what was trained."""
    trained: list[RunConfig] = []

    async def train(config: RunConfig, *_: Any) -> None:
        trained.append(config)

    monkeypatch.setattr(module, "_train", train)
    module.run(config, PlainView())
    return trained


def test_a_finished_run_is_not_trained_again_and_a_longer_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(folder=tmp_path / "run", steps=3)
    assert run_nothing(monkeypatch, config) == [config]
    assert run_nothing(monkeypatch, config) == []
    longer = RunConfig(folder=tmp_path / "run", steps=4)
    assert run_nothing(monkeypatch, longer) == [longer]


def test_a_moved_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_nothing(monkeypatch, RunConfig(folder=tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert run_nothing(monkeypatch, RunConfig(folder=tmp_path / "moved")) == []


def test_other_settings_are_refused_by_their_full_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_nothing(monkeypatch, RunConfig(folder=tmp_path / "run"))
    other = RunConfig.model_validate(
        {"folder": tmp_path / "run", "seed": 9, "agent": {"clip": 0.3}, "tasks": {"held_out": "add"}}
    )
    with pytest.raises(ConfigError, match=r"other settings \(agent\.clip, seed, tasks\.held_out\)"):
        run_nothing(monkeypatch, other)


def test_caps_may_be_raised_and_the_image_may_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(image: str, **money: float) -> RunConfig:
        table = {"image": image, "job_command": ["j"], "gpus": [{"id": "g"}], "money": money}
        return RunConfig.model_validate({"folder": tmp_path / "run", "pool": {"runpod": table}, "steps": len(money)})

    run_nothing(monkeypatch, config("i"))
    raised = config("i", max_usd_total=99)
    assert run_nothing(monkeypatch, raised) == [raised]
    with pytest.raises(ConfigError, match=r"other settings \(pool\.runpod\.image\)"):
        run_nothing(monkeypatch, config("another"))


def test_a_folder_in_use_is_refused_but_a_look_at_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(folder=tmp_path / "run")
    config.folder.mkdir()
    with open(config.folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another trainwright process is working"):
            run_nothing(monkeypatch, config)
        threading.Timer(0.1, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        assert run_nothing(monkeypatch, config) == [config]
