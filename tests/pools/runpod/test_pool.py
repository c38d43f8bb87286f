"""The pool against the fake: real sockets, real pods as processes, real jobs as commands."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import controller
import pytest
from controller import HYPERPARAMETERS, bad, good, pool, settings, weights_of
from fake_runpod import FakeRunpod, Fault, reserve_port

from trainwright.errors import ConfigError, InfraFault, TrainwrightError
from trainwright.pools.pool import OutcomeClass
from trainwright.pools.runpod import pod_evaluate
from trainwright.pools.runpod.agent_client import AgentClient
from trainwright.pools.runpod.fleet import Fleet
from trainwright.pools.runpod.money import OutOfMoney
from trainwright.pools.runpod.names import PodName
from trainwright.pools.runpod.pool import RunpodPool, group_of
from trainwright.pools.runpod.records import PodRow, Records, read_spend

pytestmark = pytest.mark.anyio
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["controller"])


def slow(*cases: Any) -> list[Any]:
    """Return cases that only the slow tests run: each waits out some real time."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


@asynccontextmanager
async def running(
    folder: Path, faults: list[Fault] | None = None, *, fake: FakeRunpod | None = None, **changes: Any
) -> AsyncIterator[tuple[FakeRunpod, RunpodPool]]:
    """Yield a fake and a pool on it; afterwards no pod may be left."""
    with contextlib.ExitStack() as stack:
        service = fake or stack.enter_context(FakeRunpod(folder / "pods", faults))
        pods = pool(settings(service, **changes), folder / "run")
        try:
            await pods.start()
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
            assert result.metrics == controller.METRICS
            assert result.rollouts == HYPERPARAMETERS.rollouts
            assert result.usd > 0
        assert len(fake.pods) <= 2
        assert {result.worker for result in results} <= {pod.id for pod in fake.pods}
        await until(lambda: not fake.live())
        spend = pods._records.spend(time.time())
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
        ("out_of_memory", "out_of_memory"),
    ],
)
async def test_a_jobs_own_fault_is_its_outcome(pods_folder: Path, kind: str, reason: str) -> None:
    async with running(pods_folder, times__job=1.0) as (fake, pods):
        result = await pods.train("train-0-0-0", bad(kind), HYPERPARAMETERS, 0)
        assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.JOB_FAULT, reason)
        assert result.weights == b""
        assert result.outcome.detail
        assert len(fake.pods) == 1


@pytest.mark.parametrize("broken", ["infra", "no such command"])
async def test_a_command_that_can_not_work_is_never_the_jobs_fault(pods_folder: Path, broken: str) -> None:
    job, changes = (bad("infra"), {}) if broken == "infra" else (good("x"), {"job_command": ["/no/such/command"]})
    async with running(pods_folder, job_retries=1, boot_failures=9, **changes) as (fake, pods):
        with pytest.raises(InfraFault, match="lost 2 times"):
            await pods.train("train-0-0-0", job, HYPERPARAMETERS, 0)
        assert len(fake.pods) == 2
    async with running(pods_folder / "b", job_retries=9, boot_failures=2, **changes) as (fake, pods):
        words = "in use" if broken == "infra" else "No such file"
        with pytest.raises(TrainwrightError, match=f"2 pods in a row were of no use.*can't work: .*{words}"):
            await pods.train("train-0-0-0", job, HYPERPARAMETERS, 0)
        assert len(fake.pods) == 2


async def test_a_job_whose_gpu_changed_meanwhile_runs_elsewhere(pods_folder: Path) -> None:
    async with running(pods_folder) as (fake, pods):
        training = asyncio.create_task(pods.train("train-0-0-0", good("x", 1.5), HYPERPARAMETERS, 0))
        await until(lambda: bool(fake.pods) and any(fake.pods[0].folder.glob("disk*/*/out/metrics.jsonl")))
        (fake.pods[0].folder / "bin" / "gpus").write_text("another GPU\n")
        assert (await training).worker == fake.pods[1].id


async def test_an_ended_job_leaves_nothing_on_its_pod(pods_folder: Path) -> None:
    async with running(pods_folder, times__idle=10.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        (row,) = pods._records.live()
        await until(lambda: "wipe" in fake.proxied)
        await until_empty(pods._fleet.agent(row))


async def until_empty(agent: AgentClient) -> None:
    """Wait until a pod's agent knows no job."""
    while (await agent.health()).jobs:
        await asyncio.sleep(0.02)


async def test_three_faults_replace_a_pod(pods_folder: Path) -> None:
    async with running(pods_folder, max_pods=1) as (fake, pods):
        jobs = (pods.train(f"train-0-0-{one}", bad("crash", str(one)), HYPERPARAMETERS, 0) for one in range(4))
        await asyncio.gather(*jobs)
        assert len(fake.pods) == 2


async def test_a_key_is_one_job(pods_folder: Path) -> None:
    async with running(pods_folder) as (_, pods):
        twice = (pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0) for _ in range(2))
        first, second = await asyncio.gather(*twice)
        assert first == second
        with pytest.raises(ValueError, match="another job"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 1)


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


async def test_a_lost_pod_means_that_the_job_runs_elsewhere(pods_folder: Path) -> None:
    faults = [Fault("pod", "vanish", after=0.6)]
    async with running(pods_folder, faults, times__lost=1.0, boot_failures=9) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x", 1.0), HYPERPARAMETERS, 0)
        assert result.weights == weights_of("x"), result
        assert [pod.ended_by for pod in fake.pods][:1] == ["vanished"]
        assert result.worker == fake.pods[1].id
        assert (pods._records.spend(time.time()))["lost"][0] > 0


async def test_a_job_whose_pods_are_always_lost_is_dropped_and_never_scored(pods_folder: Path) -> None:
    faults = [Fault("pod", "vanish", after=1.5, times=99)]
    async with running(pods_folder, faults, times__lost=1.0, job_retries=1, boot_failures=99) as (_, pods):
        with pytest.raises(InfraFault, match="lost 2 times"):
            await pods.train("train-0-0-0", good("x", 20.0), HYPERPARAMETERS, 0)
        assert [ending for _, _, ending in pods._records.attempts("train-0-0-0")] == ["INFRA_LOST"] * 2


async def test_pods_that_do_not_boot_are_replaced_and_in_the_end_stop_the_run(pods_folder: Path) -> None:
    faults = [Fault("pod", "pull_failure"), Fault("pod", "no_gpu")]
    async with running(pods_folder, faults, boot_failures=3) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert result.worker == fake.pods[2].id
    faults = [Fault("pod", "never_boots", times=99)]
    async with running(pods_folder / "b", faults, boot_failures=2, times__boot=0.5) as (fake, pods):
        with pytest.raises(TrainwrightError, match=r"2 pods in a row were of no use.*pulling image"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)


@pytest.mark.parametrize("kind", ["no_capacity", *slow("no_capacity_500", "forbidden", "rule")])
async def test_a_refused_candidate_is_followed_by_the_next(pods_folder: Path, kind: str) -> None:
    async with running(pods_folder, [Fault("create", kind, times=3)], times__backoff=30.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.requests.count("POST /pods") == 4
        assert fake.pods[0].body["gpu"]["id"] == "NVIDIA L40S"


@pytest.mark.parametrize(
    "kind", ["drop_reply", "duplicate", *slow("error", "drop_request", "created_but_502", "rate_limit")]
)
async def test_a_lost_create_is_looked_for_before_it_is_repeated(pods_folder: Path, kind: str) -> None:
    async with running(pods_folder, [Fault("create", kind)], times__idle=2.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        await until(lambda: len(fake.live()) == 1)
        assert len(fake.pods) == (2 if kind == "duplicate" else 1)
        if kind == "duplicate":  # the twin is reaped, and paid for in our books too
            await until(lambda: pods._records.booked()["lost"][0] > 0)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault("create", "balance"), OutOfMoney, "no balance left"),
        (Fault("create", "rule", times=99), ConfigError, "not for lack of capacity: .*request could not be processed"),
    ],
)
async def test_a_final_refusal_reaches_whoever_waits(
    pods_folder: Path, fault: Fault, error: type[Exception], words: str
) -> None:
    async with running(pods_folder, [fault]) as (fake, pods):
        with pytest.raises(error, match=words):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.pods == []


async def test_a_wrong_key_is_said_in_one_line(pods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeRunpod(pods_folder / "pods") as fake:
        pods = pool(settings(fake), pods_folder / "run")
        monkeypatch.setenv("RUNPOD_API_KEY", "somebody-elses")
        await pods.start()
        with pytest.raises(ConfigError, match="Runpod refuses RUNPOD_API_KEY"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.unauthorized > 0
        await pods.close()


async def test_a_missing_key_is_said_before_anything_starts(pods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeRunpod(pods_folder / "pods") as fake:
        pods = pool(settings(fake), pods_folder / "run")
        monkeypatch.delenv("RUNPOD_API_KEY")
        with pytest.raises(ConfigError, match="RUNPOD_API_KEY is not set"):
            await pods.start()
        await pods.close()
        with pytest.raises(InfraFault, match="closed"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.requests == []


async def test_work_that_no_pod_takes_is_an_infrastructure_fault(pods_folder: Path) -> None:
    faults = [Fault("create", "no_capacity", times=10_000)]
    async with running(pods_folder, faults, times__queue=1.0) as (fake, pods):
        with pytest.raises(InfraFault, match="no pod could be rented"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.pods == []


async def test_the_hourly_cap_limits_the_pods(pods_folder: Path) -> None:
    async with running(pods_folder, money__max_usd_per_hour=1.5) as (fake, pods):
        jobs = (pods.train(f"train-0-0-{one}", good(str(one)), HYPERPARAMETERS, 0) for one in range(6))
        await asyncio.gather(*jobs)
        assert len(fake.pods) == 2


async def test_no_pod_is_asked_for_that_could_break_the_total_cap(pods_folder: Path) -> None:
    needed = 0.7 * (20 + 20) / 3600  # one pod's price over the boot deadline and a lease
    async with running(pods_folder, money__max_usd_total=0.9 * needed) as (fake, pods):
        with pytest.raises(OutOfMoney, match="max_usd_total"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert fake.pods == []
    async with running(pods_folder / "b", money__max_usd_total=1.5 * needed) as (fake, pods):
        jobs = (pods.train(f"train-0-0-{one}", good(str(one), 0.5), HYPERPARAMETERS, 0) for one in range(3))
        await asyncio.gather(*jobs)
        assert len(fake.pods) <= 2  # one at the start; later ones fit beside the short lease of the first


async def test_a_pod_that_costs_more_than_the_catalog_said_is_sent_back(pods_folder: Path) -> None:
    async with running(pods_folder, [Fault("create", "dearer")], money__max_usd_per_hour=10.0) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert result.worker == fake.pods[1].id
        assert fake.pods[0].boots == 0


@pytest.mark.parametrize("kind", ["redirect", "huge", "524", *slow("nonsense", "slow_loris", "502", "drop")])
async def test_the_proxy_or_a_hostile_pod_can_not_turn_a_job_into_a_fault(pods_folder: Path, kind: str) -> None:
    faults = [Fault("proxy:status", kind, skip=2, times=3, pod=0)]
    async with running(pods_folder, faults, times__request=1.0, times__lost=2.0) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x", 0.5), HYPERPARAMETERS, 0)
        assert result.weights == weights_of("x"), result
        assert (len(fake.pods) == 1) == (kind in {"502", "524", "drop", "slow_loris"})


@pytest.mark.parametrize(
    ("kind", "times"), [("truncate", 1), ("forge", 3), *slow(("forge", 2), ("huge", 3), ("502", 5))]
)
async def test_an_artifact_that_does_not_match_its_hash_is_not_used(pods_folder: Path, kind: str, times: int) -> None:
    faults = [Fault("proxy:artifact", kind, times=times, pod=0)]
    async with running(pods_folder, faults) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert result.weights == weights_of("x"), result
        assert len(fake.pods) == (2 if times == 3 else 1)


async def test_a_container_that_restarts_loses_its_job(pods_folder: Path) -> None:
    async with running(pods_folder, [Fault("pod", "restart", after=0.8)]) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x", 1.0), HYPERPARAMETERS, 0)
        assert result.worker == fake.pods[1].id


async def test_an_idle_pod_whose_container_restarted_gets_no_more_work(pods_folder: Path) -> None:
    async with running(pods_folder, times__idle=30.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        fake.restart(fake.pods[0])
        await until(lambda: fake.pods[0].ended is not None)
        second = await pods.train("train-0-0-1", good("y"), HYPERPARAMETERS, 0)
        assert second.worker == fake.pods[1].id


async def test_a_deletion_is_repeated_until_it_is_confirmed(pods_folder: Path) -> None:
    async with running(pods_folder, times__idle=30.0, times__reaper=60.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        fake.faults = [Fault("api", "error", times=3)]
        await pods.close()
        assert fake.live() == []
        assert fake.faults[0].times == 0


async def test_forged_metrics_are_not_believed(pods_folder: Path) -> None:
    faults = [Fault("proxy:metrics", "forge", pod=0)]
    async with running(pods_folder, faults) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        assert result.metrics == controller.METRICS
        assert result.worker == fake.pods[1].id


async def test_pods_of_a_run_resumed_days_later_cost_no_more_than_their_leases(pods_folder: Path) -> None:
    folder, ago = pods_folder / "run", time.time() - 2 * 86400
    records = Records(folder / "pods.sqlite")
    row = PodRow("p", "training", "g", "SECURE", "", 36.0, "t" * 40, ago, ago + 9000, ago + 100, "INTENT", ago)
    row.name = str(PodName.new(records.owner, ago + 9000))
    records.intend(row)
    records.move(row, "IDLE", ago + 10, pod_id="gone", boot_id="0" * 32)
    records.close()
    async with running(pods_folder, times__lost=0.5, times__settle=0.1) as (_, pods):
        await until(lambda: not pods._records.live())
        assert pods._records.booked()["lost"] == (pytest.approx(90.0), pytest.approx(0.9))


async def test_a_twin_goes_with_the_run_also_when_the_reaper_has_not_seen_it(pods_folder: Path) -> None:
    faults = [Fault("create", "duplicate"), Fault("pod", "never_boots", pod=1)]
    async with running(pods_folder, faults, times__reaper=60.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        await pods.close()
        assert [pod.ended_by for pod in fake.pods] == ["the account"] * 2


async def test_a_twin_that_ends_before_it_is_reaped_is_paid_for_in_our_books_once(pods_folder: Path) -> None:
    faults = [Fault("create", "duplicate")]
    async with running(pods_folder, faults, times__reaper=60.0, times__idle=5.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        row = pods._records.live()[0]
        twin = next(pod for pod in fake.pods if pod.id != row.pod_id)
        fake.end(twin, "its own lease")
        await pods.close()
        spent = read_spend(pods_folder / "run", time.time())
        assert spent is not None
        lived = time.monotonic() - twin.created  # till the sweep that misses it
        assert spent["lost"][0] == pytest.approx(lived, abs=5.0)
        with sqlite3.connect(pods_folder / "run" / "pods.sqlite") as db:
            strays = db.execute("SELECT COUNT(*) FROM spend WHERE kind = 'lost' AND pod = ?", [row.name]).fetchone()
        assert strays == (1,)


async def test_a_hanging_agent_is_given_up_after_a_while(pods_folder: Path) -> None:
    faults = [Fault("pod", "hang", after=0.6)]
    async with running(pods_folder, faults, times__request=0.5, times__lost=1.0) as (fake, pods):
        result = await pods.train("train-0-0-0", good("x", 1.0), HYPERPARAMETERS, 0)
        assert result.worker == fake.pods[1].id
        assert fake.pods[0].ended_by == "the account"


async def test_one_process_at_a_time_uses_a_folder(pods_folder: Path) -> None:
    async with running(pods_folder) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        second = pool(settings(fake), pods_folder / "run")
        try:
            with pytest.raises(ConfigError, match="another process"):
                await second.start()
        finally:
            await second.close()


async def test_two_runs_on_one_account_leave_each_other_alone(pods_folder: Path) -> None:
    async with (
        running(pods_folder) as (fake, first),
        running(pods_folder / "other", fake=fake) as (_, second),
    ):
        jobs = [
            pods.train(f"train-0-0-{one}", good(f"{name}{one}", 1.5), HYPERPARAMETERS, 0)
            for name, pods in (("a", first), ("b", second))
            for one in range(2)
        ]
        results = await asyncio.gather(*jobs)
        assert len(fake.pods) == 4  # three sweeps of each reaper took nobody's pod
        assert {result.worker for result in results} == {pod.id for pod in fake.pods}


async def test_a_stray_pod_of_a_dead_run_goes_when_its_deadline_has_passed(pods_folder: Path) -> None:
    async with running(pods_folder) as (fake, pods):
        now, base = int(time.time()), {"env": {}, "image": "x", "gpu": {"id": "NVIDIA L40S"}}
        fake.boot_seconds = 1e9
        old = fake.create(base | {"name": f"trainwright-0123abcd-{now - 100}-00000000"})
        young = fake.create(base | {"name": f"trainwright-0123abcd-{now + 100}-00000000"})
        strangers = fake.create(base | {"name": "somebody-elses"})
        pods._records.spend(time.time())
        await until(lambda: old.ended is not None)
        assert young.ended is None
        assert strangers.ended is None
        fake.end(young, "test")
        fake.end(strangers, "test")


def control(plan: controller.Plan) -> multiprocessing.process.BaseProcess:
    """Start a controller process."""
    process = PROCESSES.Process(target=controller.main, args=(plan,))
    process.start()
    return process


async def test_pods_of_a_killed_controller_delete_themselves(pods_folder: Path) -> None:
    with FakeRunpod(pods_folder / "pods") as fake:
        config = settings(fake, times__lease=4.0).model_dump()
        (pods_folder / "run").mkdir()
        process = control(controller.Plan(pods_folder / "run", config, {"train-0-0-0": ("x", "60")}))
        await until(lambda: bool(fake.live()) and fake.live()[0].boots == 1)
        await asyncio.sleep(1.0)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: not fake.live())
        assert [pod.ended_by for pod in fake.pods] == ["itself"]
        process.join()


@pytest.mark.slow
async def test_the_total_cap_holds_although_the_controller_is_killed(pods_folder: Path) -> None:
    price, cap = 36.0, 0.08  # a cent a second
    with FakeRunpod(pods_folder / "pods", gpus={"NVIDIA L40S": price}) as fake:
        config = settings(fake, times__lease=6.0, times__boot=1.0, money__max_usd_total=cap).model_dump()
        (pods_folder / "run").mkdir()
        process = control(controller.Plan(pods_folder / "run", config, {"train-0-0-0": ("x", "60")}))
        await until(lambda: fake.spent() > 0.75 * cap)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: not fake.live())
        process.join()
        assert [pod.ended_by for pod in fake.pods] == ["itself"]
        assert fake.spent() < cap + 2 * price / 3600


async def test_the_next_controller_goes_on_with_the_job_of_a_killed_one(pods_folder: Path) -> None:
    with FakeRunpod(pods_folder / "pods") as fake:
        config = settings(fake).model_dump()
        (pods_folder / "run").mkdir()
        plan = controller.Plan(pods_folder / "run", config, {"train-0-0-0": ("x", "3")})
        first = control(plan)
        await until(lambda: "start" in str(fake.proxied))
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        first.join()
        second = control(plan)
        while second.is_alive():
            await asyncio.sleep(0.05)
        kind, _, digest, _ = controller.outcomes(pods_folder / "run")["train-0-0-0"]
        assert kind == "TRAINED"
        assert digest == controller.hashlib.sha256(weights_of("x")).hexdigest()
        assert len(fake.pods) == 1
        assert fake.proxied.count("start") == 1
        assert fake.live() == []


PROMPTS = ["canary-one", "canary-two", "canary-three"]


@asynccontextmanager
async def evaluating(folder: Path, **changes: Any) -> AsyncIterator[tuple[FakeRunpod, RunpodPool]]:
    """Yield a fake and a pool with an evaluation service, which is a stand-in for vLLM."""
    reserved = reserve_port()
    port = reserved.getsockname()[1]
    here = Path(controller.__file__).parent / "stand_in_server.py"
    with FakeRunpod(folder / "pods", own_users=False) as fake:
        evaluate = [sys.executable, "-I", "-S", pod_evaluate.__file__]
        changes = {
            "services": {"small": [sys.executable, "-I", "-S", str(here), str(port)]},
            "evaluation_command": [
                "/bin/sh",
                "-c",
                f"TRAINWRIGHT_SERVER=http://127.0.0.1:{port} exec {' '.join(evaluate)}",
            ],
            **changes,
        }
        async with running(folder, fake=fake, **changes) as (_, pods):
            yield fake, pods
    reserved.close()


async def test_base_and_trained_student_answer_with_the_same_seeds(pods_folder: Path) -> None:
    async with evaluating(pods_folder) as (fake, pods):
        ask = {"seed": 7, "max_tokens": 8, "temperature": 1.0}
        base = await pods.generate("small", None, PROMPTS, **ask)
        trained = await pods.generate("small", weights_of("x"), PROMPTS, **ask)
        assert [reply.split("|")[0] for reply in base + trained] == ["base"] * 3 + ["weights of x"] * 3
        assert [reply.split("|")[1:] for reply in base] == [reply.split("|")[1:] for reply in trained]
        assert len({reply.split("|")[2] for reply in base}) == 3
        asked = len(fake.proxied)
        assert await pods.generate("small", None, PROMPTS, **ask) == base  # measured once
        assert not {"declare", "start"} & set(fake.proxied[asked:])
        assert await pods.generate("small", None, PROMPTS, **{**ask, "seed": 8}) != base


async def test_hidden_prompts_reach_no_pod_that_ran_a_job(pods_folder: Path) -> None:
    async with evaluating(pods_folder, times__idle=30.0) as (fake, pods):
        await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
        await pods.generate("small", weights_of("x"), PROMPTS, seed=7, max_tokens=8)
        await pods.train("train-0-0-1", good("y"), HYPERPARAMETERS, 0)
        trainers = {pod.number for pod in fake.pods if "TRAINWRIGHT_SERVICE" not in pod.body["env"]}
        assert len(trainers) == 1
        assert {number for number, body in fake.uploads if b"canary" in body} == {1} - trainers | {0} - trainers
        assert {number for number, body in fake.uploads if b"environment.py" in body} == trainers


async def test_a_missing_reply_is_never_an_empty_one(pods_folder: Path) -> None:
    async with evaluating(pods_folder, job_retries=0) as (_, pods):
        with pytest.raises(InfraFault):
            await pods.generate("small", None, ["fine", "no reply"], seed=7, max_tokens=8)
        assert await pods.generate("small", None, ["fine"], seed=7, max_tokens=8)


async def test_invalid_weights_and_unknown_students_reach_no_pod(pods_folder: Path) -> None:
    async with evaluating(pods_folder) as (fake, pods):
        with pytest.raises(ValueError, match="not an adapter"):
            await pods.generate("small", b"pickle", PROMPTS, seed=7, max_tokens=8)
        with pytest.raises(ConfigError, match="serves 'large'; known: small"):
            await pods.generate("large", None, PROMPTS, seed=7, max_tokens=8)
        assert fake.pods == []


async def test_the_gate_is_the_local_pools(pods_folder: Path) -> None:
    async with running(pods_folder) as (fake, pods):
        assert (await pods.gate(good("x"), None)).accepted  # type: ignore[arg-type]
        assert fake.requests == []


def test_the_members_of_a_group_share_its_name() -> None:
    assert group_of("train-0003-1-5") == group_of("train-0003-1-0") == "train-0003-1"
    assert group_of("alone") == "alone"


async def test_a_bug_of_ours_reaches_whoever_waits(pods_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Fleet, role: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Fleet, "intend", broken)
    async with running(pods_folder) as (_, pods):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await pods.train("train-0-0-0", good("x"), HYPERPARAMETERS, 0)
