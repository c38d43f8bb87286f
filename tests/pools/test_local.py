"""The local pool with real workers: whose fault it was, when jobs and workers die, hang and fall silent."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from trainwright.environment.sandbox import LEVEL_VARIABLE
from trainwright.errors import InfraFault, SandboxError
from trainwright.job.hyperparameters import parse_hyperparameters
from trainwright.job.job import ENVIRONMENT, TRAIN, Job
from trainwright.pools.local import LocalPool, Patience, WorkerProcess
from trainwright.pools.pool import OutcomeClass, TrainResult
from trainwright.students.registry import base_student
from trainwright.suites.family import Task, family_named

T = TypeVar("T")
REWARD = "return float(trace.last_reply == self.data.answer)"
FAMILY = family_named("reverse")
TASK: Task = FAMILY.draw(0)
STUDENT = "nano-48"


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def job(*, reward: str = REWARD, imports: str = "", steps: int = 2, batch: int = 16) -> Job:
    """Return the reference job with its reward, imports or length changed."""
    files = dict(FAMILY.reference_job(TASK, STUDENT).files)
    assert files[ENVIRONMENT].count(REWARD) == 1
    files[ENVIRONMENT] = f"{imports}\n" + files[ENVIRONMENT].replace(REWARD, reward)
    files[TRAIN] = f'student = "{STUDENT}"\nmax_steps = {steps}\nbatch_size = {batch}\ngroup_size = 4\n'
    return Job(files)


async def train(pool: LocalPool, one: Job, seed: int = 1) -> TrainResult:
    """Train a job that the gate has not seen."""
    return await pool.train("key", one, parse_hyperparameters(one.files[TRAIN], TASK), seed)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Yield two workers that all tests share; a test that kills one leaves the next one to be started."""
    pool = LocalPool(2, job_seconds=60)
    run(pool.start())
    yield pool
    run(pool.close())


@pytest.fixture(scope="module")
def hasty() -> Iterator[LocalPool]:
    """Yield one worker with little time for a job, no retries, and a pool that soon takes it for silent."""
    pool = LocalPool(1, job_seconds=2.0, retries=0, patience=Patience(silence=2.0))
    run(pool.start())
    yield pool
    run(pool.close())


async def busy(pool: LocalPool) -> WorkerProcess:
    """Return the worker that has a request in flight, once it has had it for a moment."""
    while True:
        await asyncio.sleep(0.02)
        for worker in pool.workers:
            if worker._calling.locked() and worker.pid:
                await asyncio.sleep(0.2)
                return worker


# The work itself


def test_the_gate_answers_with_hyperparameters_or_a_place(pool: LocalPool) -> None:
    accepted = run(pool.gate(job(), TASK))
    assert accepted.accepted
    assert accepted.hyperparameters is not None
    assert accepted.hyperparameters.max_steps == 2
    refused = run(pool.gate(job(reward="return 1.0"), TASK))
    assert (refused.accepted, refused.code, refused.file) == (False, "reward_constant", ENVIRONMENT)
    static = run(pool.gate(job(imports="import torch"), TASK))
    assert (static.code, static.file, static.line) == ("import", ENVIRONMENT, 1)


def test_a_trained_job_comes_back_with_weights_metrics_and_costs(pool: LocalPool) -> None:
    result = run(train(pool, job()))
    assert result.outcome.kind is OutcomeClass.TRAINED
    assert [row["step"] for row in result.metrics] == [1.0, 2.0]
    assert result.rollouts == 32
    assert int(result.worker) in {worker.pid for worker in pool.workers}
    assert set(result.cpu_seconds) == {"sampling", "environment", "learning", "job", "other"}
    assert min(result.cpu_seconds.values()) >= 0
    assert sum(result.cpu_seconds.values()) > 0
    student = base_student(STUDENT).fresh()
    student.load(result.weights)


def test_the_seed_decides_and_not_the_worker(pool: LocalPool) -> None:
    async def work() -> list[TrainResult]:
        return await asyncio.gather(train(pool, job(), 1), train(pool, job(), 1), train(pool, job(), 2))

    first, second, other = run(work())
    assert first.worker != second.worker
    assert (first.weights, first.metrics) == (second.weights, second.metrics)
    assert first.weights != other.weights


def test_replies_are_paired_by_prompt_and_seed(pool: LocalPool) -> None:
    prompts = [item.prompt for item in FAMILY.hidden_items(TASK, 1, 300)]
    untrained = base_student(STUDENT).fresh()
    untrained.add_adapter(4, 8.0, "all", 0)  # a fresh adapter changes nothing

    async def replies(weights: bytes | None, count: int, seed: int) -> list[str]:
        return await pool.generate(STUDENT, weights, prompts[:count], seed=seed, max_tokens=10)

    base = run(replies(None, 300, 7))
    assert len(base) == 300
    assert run(replies(untrained.save(), 300, 7)) == base
    assert run(replies(None, 300, 8)) != base


def test_weights_that_do_not_fit_are_our_fault(pool: LocalPool) -> None:
    with pytest.raises(InfraFault, match="not the saved weights"):
        run(pool.generate(STUDENT, b"junk", ["rev:abc="], seed=1, max_tokens=10))
    assert len(run(pool.generate(STUDENT, None, ["rev:abc="], seed=1, max_tokens=10))) == 1


# Faults of the job: the worker survives them


COUNTING = "global calls\ncalls += 1\nif calls > 20:\n    {what}\nreturn float(trace.last_reply == self.data.answer)"


def after_a_step(what: str) -> str:
    """Return a reward that misbehaves once the first step is scored."""
    return COUNTING.format(what=what).replace("\n", "\n        ")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed"),
        ("os._exit(0)", "exited"),
        ("raise ValueError('no')", "reward_raised"),
        ("return float('nan')", "reward_not_finite"),
        ("return None", "reward_not_number"),
    ],
)
def test_a_job_that_dies_is_a_job_fault(pool: LocalPool, what: str, reason: str) -> None:
    pids = [worker.pid for worker in pool.workers]
    result = run(train(pool, job(reward=after_a_step(what), imports="import os, signal\ncalls = 0")))
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.JOB_FAULT, reason)
    assert result.outcome.detail
    assert result.weights == b""
    assert result.rollouts == 16  # the step that was done
    assert [worker.pid for worker in pool.workers] == pids


def test_a_reward_that_hangs_is_a_job_fault(hasty: LocalPool) -> None:
    pid = hasty.workers[0].pid
    result = run(train(hasty, job(reward=after_a_step("while True: pass"), imports="calls = 0")))
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.JOB_FAULT, "timeout")
    assert hasty.workers[0].pid == pid


def test_a_job_over_its_time_is_a_job_fault(hasty: LocalPool) -> None:
    slow = job(reward=f"time.sleep(0.04); {REWARD}", imports="import time", steps=20)
    result = run(train(hasty, slow))
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.JOB_FAULT, "timeout")
    assert 0 < result.rollouts < 20 * 16


def test_the_gate_refuses_a_reward_that_hangs(hasty: LocalPool) -> None:
    verdict = run(hasty.gate(job(reward="\n        ".join(["while True: pass", REWARD])), TASK))
    assert (verdict.accepted, verdict.code) == (False, "timeout")


# Faults of ours


def test_a_request_over_its_deadline_ends_the_worker_and_the_next_one_is_served(hasty: LocalPool) -> None:
    worker = hasty.workers[0]
    pid = worker.pid
    prompts = [item.prompt for item in FAMILY.hidden_items(TASK, 1, 20_000)]
    with pytest.raises(TimeoutError):
        worker.call("generate", (STUDENT, None, prompts, 1, 10, 1.0), 0.05)
    assert worker.pid == 0
    assert len(run(hasty.generate(STUDENT, None, prompts[:3], seed=1, max_tokens=10))) == 3
    assert worker.pid not in (0, pid)


def test_a_killed_worker_is_replaced_and_its_job_is_trained_elsewhere(pool: LocalPool, processes: Any) -> None:
    long = job(steps=40)
    expected = run(train(pool, long))

    async def work() -> tuple[int, TrainResult]:
        training = asyncio.create_task(train(pool, long))
        victim = await busy(pool)
        pid, below = victim.pid, processes.descendants(victim.pid)
        os.kill(pid, signal.SIGKILL)
        result = await training
        assert processes.eventually(lambda: not any(map(processes.alive, below)))  # its environment server too
        return pid, result

    pid, result = run(work())
    assert result.outcome.kind is OutcomeClass.TRAINED
    assert int(result.worker) != pid
    assert (result.weights, result.metrics) == (expected.weights, expected.metrics)
    assert pid not in {worker.pid for worker in pool.workers}


def test_a_job_whose_every_worker_dies_is_an_infrastructure_fault(pool: LocalPool) -> None:
    run(pool.start())

    async def work() -> TrainResult:
        training = asyncio.create_task(train(pool, job(steps=40)))
        for _ in range(2):
            victim = (await busy(pool)).pid
            os.kill(victim, signal.SIGKILL)
            while any(worker.pid == victim for worker in pool.workers):
                await asyncio.sleep(0.02)
        return await training

    retries, pool.retries = pool.retries, 1
    try:
        result = run(work())
    finally:
        pool.retries = retries
    assert (result.outcome.kind, result.outcome.reason) == (OutcomeClass.INFRA, "worker_lost")
    assert "SIGKILL" in result.outcome.detail
    assert run(train(pool, job())).outcome.kind is OutcomeClass.TRAINED


def test_a_worker_that_is_stopped_in_the_middle_is_found_silent(hasty: LocalPool, processes: Any) -> None:
    async def work() -> int:
        asking = asyncio.create_task(hasty.generate(STUDENT, None, ["rev:abcd="] * 20_000, seed=1, max_tokens=10))
        pid = (await busy(hasty)).pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(InfraFault, match="worker_silent"):
            await asking
        return pid

    assert not processes.alive(run(work()))


def test_a_worker_that_is_stopped_while_idle_blocks_no_message(hasty: LocalPool, processes: Any) -> None:
    assert len(run(hasty.generate(STUDENT, None, ["rev:abcd="], seed=1, max_tokens=10))) == 1
    pid = hasty.workers[0].pid
    below = processes.descendants(pid)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(InfraFault, match="worker_lost"):
        run(hasty.generate(STUDENT, b"\0" * 2_000_000, ["rev:abcd="], seed=1, max_tokens=10))
    assert not processes.alive(pid)
    assert processes.eventually(lambda: not any(map(processes.alive, below)))


def test_a_cancelled_request_leaves_the_pool_usable(pool: LocalPool) -> None:
    async def work() -> TrainResult:
        training = asyncio.create_task(train(pool, job(steps=40)))
        await busy(pool)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        results = await asyncio.gather(*(train(pool, job()) for _ in range(4)))
        assert {result.outcome.kind for result in results} == {OutcomeClass.TRAINED}
        return results[0]

    assert run(work()).weights == run(train(pool, job())).weights


# The end


@pytest.mark.parametrize("when", ["starting", "training"])
def test_closing_in_the_middle_leaves_no_process(processes: Any, when: str) -> None:
    before = processes.descendants(processes.own)

    async def work() -> list[Any]:
        pool = LocalPool(1)
        if when == "training":
            await pool.start()
        asking: list[asyncio.Task[Any]] = [asyncio.create_task(train(pool, job(steps=60))) for _ in range(3)]
        assert (await busy(pool)).pid
        await pool.close()
        await pool.close()
        done = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 60)
        with pytest.raises(InfraFault, match="closed"):
            await pool.gate(job(), TASK)
        return done

    for one in run(work()):
        if isinstance(one, TrainResult):
            assert one.outcome.kind is OutcomeClass.INFRA
        else:
            assert isinstance(one, asyncio.CancelledError)

    def left() -> set[int]:
        # A shared pool's worker may be starting its own environment server meanwhile.
        others = before.union(*(processes.descendants(pid) for pid in before))
        return processes.descendants(processes.own) - others

    assert processes.eventually(lambda: not left())


def test_killed_workers_leave_no_folder_behind(monkeypatch: pytest.MonkeyPatch, processes: Any) -> None:
    """At the reduced level jobs write below a folder on the disk, which the environment server removes."""
    monkeypatch.setenv(LEVEL_VARIABLE, "reduced")
    before = set(Path(tempfile.gettempdir()).glob("trainwright-jobs-*"))

    async def work() -> TrainResult:
        pool = LocalPool(1)
        try:
            await pool.start()
            assert pool.sandbox.level == "reduced"
            return await train(pool, job())
        finally:
            await pool.close()

    try:
        assert run(work()).outcome.kind is OutcomeClass.TRAINED
    except SandboxError as error:
        pytest.skip(str(error))
    assert processes.eventually(lambda: set(Path(tempfile.gettempdir()).glob("trainwright-jobs-*")) <= before)


def test_a_machine_without_a_sandbox_is_told_so(monkeypatch: pytest.MonkeyPatch, processes: Any) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "none")
    before = processes.descendants(processes.own)

    async def work() -> None:
        pool = LocalPool(1)
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(SandboxError, match="--unsafe-no-sandbox"):
        run(work())
    assert processes.eventually(lambda: processes.descendants(processes.own) <= before)


def test_a_worker_that_cannot_be_started_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")

    async def work() -> TrainResult:
        pool = LocalPool(1, retries=1)
        try:
            return await train(pool, job())
        finally:
            await pool.close()

    outcome = run(work()).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeClass.INFRA, "worker_start")


def test_a_start_that_takes_too_long_is_not_the_jobs_timeout(processes: Any) -> None:
    async def work() -> TrainResult:
        pool = LocalPool(1, retries=0, patience=Patience(start=0.01))
        try:
            return await train(pool, job())
        finally:
            await pool.close()

    outcome = run(work()).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeClass.INFRA, "worker_start")
