"""The simulation of the pods' bill."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "pods.py"


@pytest.fixture(scope="module")
def pods() -> ModuleType:
    """Return the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_pods", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_goal_is_met_with_overlapping_steps_and_not_without(pods: ModuleType) -> None:
    bills = {policy.name: pods.Run(pods.World(), policy, 0).simulate() for policy in pods.POLICIES}
    assert bills["overlapping, 2 minutes when idle"].not_working <= pods.GOAL
    for name in ("a pod for each job", "pods kept for the whole run", "kept 2 minutes when idle"):
        assert bills[name].not_working > pods.GOAL


def test_every_episode_is_done_and_every_second_paid_for_is_booked(pods: ModuleType) -> None:
    world = pods.World(steps=3, lost=0.0, rejected=0.0, evaluation_spread=1e-9, job_spread=1e-9)
    run = pods.Run(world, pods.Policy("x", idle=60.0, staleness=1), 0)
    bill = run.simulate()
    episodes = world.steps * world.groups * world.group_size
    assert bill.working == pytest.approx(episodes * (world.job + world.evaluation), rel=1e-6)
    assert run._version == world.steps
    assert run._pods == []
    assert bill.lost == 0


def test_a_seed_gives_the_same_bill(pods: ModuleType) -> None:
    world, policy = pods.World(steps=4), pods.POLICIES[-1]
    assert pods.Run(world, policy, 3).simulate() == pods.Run(world, policy, 3).simulate()
    assert pods.Run(world, policy, 3).simulate() != pods.Run(world, policy, 4).simulate()


def test_json_has_every_policy(
    pods: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pods.py", "--json", "--seeds", "1"])
    pods.main()
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["policies"]) == {policy.name for policy in pods.POLICIES}
    assert printed["default"] in printed["policies"]
