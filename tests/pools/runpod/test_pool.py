"""The pool against the fake: real sockets, real pods as processes, real jobs as commands."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import controller
import pytest
import stand_in_server
from controller import HYPERPARAMETERS, bad, good, pool, settings, weights_of
from fake_runpod import FakeRunpod, Fault, free_port

from trainwright.errors import ConfigError, InfraFault, TrainwrightError
from trainwright.pools.pool import OutcomeClass
from trainwright.pools.runpod import pod_evaluate
from trainwright.pools.runpod.money import OutOfMoney
from trainwright.pools.runpod.pool import RunpodPool, group_of
from trainwright.pools.runpod.records import Records

pytestmark = pytest.mark.anyio
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["controller"])


@asynccontextmanager
async def running(
    folder: Path, faults: list[Fault] | None = None, *, fake: FakeRunpod | None = None, **changes: Any
) -> AsyncIterator[tuple[FakeRunpod, RunpodPool]]:
    """Yield a fake and a pool on it; afterwards no pod may be left."""
    with contextlib.ExitStack() as stack:
        service = fake or stack.enter_context(FakeRunpod(folder / "pods", faults))
        pods = pool(settings(service, **changes), folder / "run")
        try:
            yield service, pods
        finally:
            await pods.close()
            await pods.close()
        if fake is None:
            assert service.live() == []


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition; fail when it takes far too long."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        await asyncio.sleep(0.02)


async def test_jobs_train_on_warm_pods_which_end_when_idle(pods_folder: Path) -> None:
    async with running(pods_folder, max_pods=2) as (fake, pods):
        keys = [f"train-0-0-{member}" for member in range(5)]
        results = await asyncio.gather(*(pods.train(key, good(key), HYPERPARAMETERS, 0) for key in keys))
        for key, result in zip(keys, results, strict=True):
            assert result.outcome.kind is OutcomeClass.TRAINED
            assert result.weights == weights_of(key)
            assert result.metrics == [{"reward": 0.5, "step": 0.0}]
            assert result.rollouts == HYPERPARAMETERS.rollouts
            assert result.usd > 0
        assert len(fake.pods) <= 2
        assert {result.worker for result in results} <= {pod.id for pod in fake.pods}
        await until(lambda: not fake.live())
        spend = await pods.spend()
        assert sum(usd for _, usd in spend.values()) == pytest.approx(fake.spent(), rel=0.3)
        assert spend["working"][0] > 0
        assert spend["lost"][0] == 0


async def test_another_group_gets_a_wiped_container(pods_folder: Path) -> None:
    async with running(pods_folder, max_pods=1) as (fake, pods):
        mine = "train-0-0"
        await asyncio.gather(
            *(pods.train(f"{mine}-{member}", good("a", 0.05), HYPERPARAMETERS, 0) for member in range(2)),
            *(pods.train(f"train-0-1-{member}", good("b", 0.05), HYPERPARAMETERS, 0) for member in range(2)),
        )
        assert [pod.boots for pod in fake.pods] == [2]


async def test_a_pod_that_does_not_restart_is_replaced(pods_folder: Path) -> None:
    faults = [Fault("restart", "ignored")]
    async with running(pods_folder, faults, max_pods=1, times__restart=1.0) as (fake, pods):
        jobs = (pods.train(f"train-0-{group}-0", good(str(group)), HYPERPARAMETERS, 0) for group in range(2))
        results = await asyncio.gather(*jobs)
        assert [result.weights for result in results] == [weights_of("0"), weights_of("1")]
        assert [pod.boots for pod in fake.pods] == [1, 1]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("crash", "crash"),
        ("hang", "timeout"),
        ("no_artifact", "no_artifact"),
        ("artifact_invalid", "artifact_invalid"),
        ("killed", "killed"),
    ],
)
async def test_a_jobs_own_fault_is_its_outcome(pods_folder: Path, kind: str, reason: str) -> None:
    async with running(pods_folder, times__job=1.0) as (fake, pods):
        result = await pods.train("train-0-0-0", bad(kind), HYPERPARAMETERS, 0)
        assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.JOB_FAULT, reason)
        assert result.weights == b""
        assert result.outcome.detail
        assert len(fake.pods) == 1


async def test_three_faults_replace_a_pod(pods_folder: Path) -> None:
    async with running(pods_folder, max_pods=1) as (fake, pods):
        jobs = (pods.train(f"train-0-0-{one}", bad("crash", str(one)), HYPERPARAMETERS, 0) for one in range(4))
        await asyncio.gather(*jobs)
        assert len(fake.pods) == 2


async def test_a_key_is_one_job(pods_folder: Path) -> None:
    async with running(pods_folder) as (fake, pods):
        twice = (pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0) for _ in range(2))
        first, second = await asyncio.gather(*twice)
        assert first == second
        with pytest.raises(ValueError, match="another job"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 1)
    with Records(pods_folder / "run" / "pods.sqlite") as_records:
        pass


async def test_a_stored_result_needs_no_pod(pods_folder: Path) -> None:
    async with running(pods_folder) as (_, pods):
        first = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
    async with running(pods_folder) as (fake, pods):
        assert await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0) == first
        assert fake.pods == []
    next((pods_folder / "run" / "pod-results").iterdir()).unlink()
    async with running(pods_folder) as (fake, pods):
        again = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert again.weights == first.weights
        assert len(fake.pods) == 1
