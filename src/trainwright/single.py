"""One job, one task, by hand: the verbs `gate`, `train` and `families`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import fmean

from trainwright.cache import write_atomically
from trainwright.config import MeasureConfig
from trainwright.errors import ConfigError, InfraFault, JobRejected
from trainwright.job.gate import check_static
from trainwright.job.job import Job
from trainwright.measure import estimate, paired_difference, score_student
from trainwright.pools.pool import OutcomeClass, Pool, Verdict
from trainwright.report.curve import text_curve
from trainwright.report.view import make_view
from trainwright.reward import gain
from trainwright.seeds import derive_seed
from trainwright.suites.family import Family, Task, families, family_named, suite_families


def read_job(path: Path) -> Job:
    """Return the job in a folder or in a file that holds an agent's answer; raise `ConfigError`."""
    try:
        if path.is_file():
            return Job.parse(path.read_text(encoding="utf-8"))
        return Job.load(path)
    except JobRejected as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None


def named_task(name: str) -> tuple[Family, Task]:
    """Return the family and task of `FAMILY` or `FAMILY:SEED`; raise `ConfigError`."""
    family_name, _, seed = name.partition(":")
    family = family_named(family_name)
    if seed and not seed.isdecimal():
        raise ConfigError(f"--task {name}: the seed after the colon must be a whole number, such as {family_name}:7")
    return family, family.draw(int(seed or 0))


def gate_job(job: Job, task_name: str, unsafe_no_sandbox: bool) -> Verdict:
    """Return the gate's verdict on a job for a task."""
    from trainwright.pools.local import LocalPool

    family, task = named_task(task_name)

    async def work() -> Verdict:
        pool = LocalPool(1, unsafe_no_sandbox=unsafe_no_sandbox)
        try:
            return await _gate(pool, job, family, task)
        finally:
            await pool.close()

    return asyncio.run(work())


async def _gate(pool: Pool, job: Job, family: Family, task: Task) -> Verdict:
    """Return the verdict; what is wrong without running anything is said before a worker or a base student is made."""
    from trainwright.run import prepare_students

    try:
        check_static(job, task)
    except JobRejected as error:
        return Verdict(False, error.code, error.message, error.file, error.line)
    await prepare_students(family.suite, make_view(plain=True))
    return await pool.gate(job, task)


def train_job(job: Job, task_name: str, seed: int, items: int, out: Path | None, unsafe_no_sandbox: bool) -> bool:
    """Gate, train and measure one job, print what happened, and return whether it trained."""
    family, task = named_task(task_name)
    return asyncio.run(_train_job(job, family, task, seed, items, out, unsafe_no_sandbox))


async def _train_job(
    job: Job, family: Family, task: Task, seed: int, count: int, out: Path | None, unsafe_no_sandbox: bool
) -> bool:
    from trainwright.pools.local import LocalPool
    from trainwright.reference import References

    pool = LocalPool(1, unsafe_no_sandbox=unsafe_no_sandbox)
    try:
        verdict = await _gate(pool, job, family, task)
        print(f"task: {task.brief}\ngate: {verdict}")
        if verdict.hyperparameters is None:
            return False
        result = await pool.train(f"job-{job.hash[:12]}", job, verdict.hyperparameters, seed)
        if result.outcome.kind is OutcomeClass.INFRA:
            raise InfraFault(result.outcome.reason, result.outcome.detail)
        if result.outcome.kind is not OutcomeClass.TRAINED:
            print(f"{result.outcome.kind}: {result.outcome.detail} [{result.outcome.reason}]")
            return False
        student = verdict.hyperparameters.student
        for line in text_curve([row["reward_mean"] for row in result.metrics], "the job's own reward a step"):
            print(line)
        hidden = family.hidden_items(task, derive_seed(seed, "single", task.key), count)
        sampling = derive_seed(seed, "single-sampling", task.key)
        pre = await score_student(pool, family, task, student, None, hidden, sampling)
        post = await score_student(pool, family, task, student, result.weights, hidden, sampling)
        reference = await References(pool, MeasureConfig()).get(family, task, student)
    finally:
        await pool.close()
    print(f"student {student}: {estimate(pre)} before, {estimate(post)} after on the hidden benchmark")
    uplift, seeds = paired_difference(pre, post), len(reference.posts)
    print(f"uplift {uplift}, reference job {reference.score:.3f} (n={seeds} seeds)")
    print(f"gain {gain(fmean(pre), fmean(post), reference.score):+.3f} (1.0 is as good as the reference job)")
    cpu = ", ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(result.cpu_seconds.items()))
    print(f"{result.rollouts} rollouts, {result.wall_seconds:.1f} s, CPU seconds: {cpu}")
    if out is not None:
        write_atomically(out, result.weights)
        print(f"trained weights: {out}")
    return True


def list_families(suite: str) -> None:
    """Print each family with its brief and one visible example."""
    for family in suite_families(suite) if suite else families().values():
        task = family.draw(0)
        students = ", ".join(f"{offer.student} ({offer.rollout_budget} rollouts)" for offer in task.offers)
        print(f"{family.name} ({family.suite}): {task.brief}")
        for example in task.examples[:1]:
            print(f"    {example.prompt!r} -> {example.answer!r}")
        print(f"    students: {students}")


def print_reference(name: str) -> None:
    """Print the reference job of a task as an agent would answer it."""
    family, task = named_task(name)
    print(family.reference_job(task, task.offers[0].student).render())
