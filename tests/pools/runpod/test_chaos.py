"""The chaos suite: seeded scenarios, and a controller killed at every one of its writes. See `chaos.py`."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chaos
import controller
import pytest
from chaos import Report, Scenario
from fake_runpod import FakeRunpod

PARALLEL = round(4 * controller.SCALE) + 1  # slower scenarios wait more, so more of them fit


def broken_invariants(seeds: range) -> list[str]:
    """Run scenarios and return what broke, after checking that they were worth running."""
    totals: Counter[str] = Counter()
    broken: list[str] = []
    with ThreadPoolExecutor(PARALLEL) as threads:
        for report in threads.map(chaos.run, seeds):
            broken += [f"seed {report.seed}: {line}" for line in report.broken]
            totals.update(report.endings)
            totals["killed"] += report.killed
    assert totals["TRAINED"] > len(seeds)
    assert totals["killed"] > 0
    assert totals["INFRA"] < totals["TRAINED"] / 4
    return broken


def test_twelve_scenarios() -> None:
    assert broken_invariants(range(12)) == []


@pytest.mark.slow
def test_three_hundred_scenarios() -> None:
    assert broken_invariants(range(300)) == []


def test_scenarios_are_fixed_by_their_seed() -> None:
    assert Scenario.draw(7) == Scenario.draw(7)
    assert Scenario.draw(7) != Scenario.draw(8)


def killed_at(write: int, after_commit: bool, folder: Path) -> Report:
    """Run a small scenario whose first controller dies at one write."""
    jobs = {"train-0-0-0": ("a", "0.05"), "train-0-1-0": ("b", "crash")}
    scenario, report = Scenario(0, jobs, [], [(write, after_commit)]), Report(write)
    with FakeRunpod(folder / "pods", gpus=chaos.GPUS) as fake:
        chaos.execute(scenario, fake, folder, report)
        chaos.judge(scenario, fake, folder, report)
    return report


def check_kills(writes: range, afters: list[bool], base: Path) -> None:
    """Kill a controller at each of these writes, before or after its commit; nothing may be lost or counted twice."""
    cases = [(write, after) for write in writes for after in afters]
    folders = [base / f"{write}-{after}" for write, after in cases]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    with ThreadPoolExecutor(PARALLEL) as threads:
        reports = list(threads.map(lambda case, folder: killed_at(*case, folder), cases, folders))
    for case, report in zip(cases, reports, strict=True):
        assert report.broken == [], case
        assert report.endings == {"TRAINED": 1, "JOB_FAULT": 1}, case
    assert sum(report.killed for report in reports) > len(cases) / 2


def test_a_controller_killed_at_every_third_write(pods_folder: Path) -> None:
    check_kills(range(2, 30, 3), [False], pods_folder)


@pytest.mark.slow
def test_a_controller_killed_at_every_write(pods_folder: Path) -> None:
    check_kills(range(1, 40), [False, True], pods_folder)


def test_hostile_replies_do_not_grow_the_controller(pods_folder: Path) -> None:
    jobs = {f"train-0-0-{number}": (f"j{number}", "0.1") for number in range(3)}
    kinds = [("status", "huge"), ("artifact", "huge"), ("metrics", "huge"), ("health", "slow_loris")]
    faults = [chaos.Fault(f"proxy:{where}", kind, skip=1, times=2) for where, kind in kinds]
    report = Report(0)
    with FakeRunpod(pods_folder / "pods", faults, gpus=chaos.GPUS) as fake:
        scenario = Scenario(0, jobs, faults, [])
        chaos.execute(scenario, fake, pods_folder, report)
        chaos.judge(scenario, fake, pods_folder, report)
    assert report.broken == []
    assert sum(fault.times for fault in faults) < 4  # most of them fired
    assert controller.outcomes(pods_folder / "run").keys() == jobs.keys()
