"""One job, one task, by hand: the verbs `gate`, `train` and `families`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import fmean

from trainwright.cache import write_atomically
from trainwright.config import PoolConfig, RunConfig, TasksConfig, load_config
from trainwright.errors import ConfigError, InfraFault, JobRejected
from trainwright.job.gate import check_static
from trainwright.job.job import Job
from trainwright.measure import estimate, paired_difference, score_student
from trainwright.pools.pool import OutcomeClass, Pool, Verdict
from trainwright.report.curve import text_curve
from trainwright.report.view import make_view
from trainwright.reward import gain
from trainwright.seeds import derive_seed
from trainwright.suites.family import Family, Task, families, suite_families
from trainwright.suites.offers import run_family


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


def named_task(name: str, tasks: TasksConfig | None = None) -> tuple[Family, Task]:
    """Return the family and task of `FAMILY` or `FAMILY:SEED`, as a run with these tasks sees it."""
    family_name, _, seed = name.partition(":")
    family = run_family(tasks or TasksConfig(), family_name)
    if seed and not seed.isdecimal():
        raise ConfigError(f"--task {name}: the seed after the colon must be a whole number, such as {family_name}:7")
    return family, family.draw(int(seed or 0))


BY_HAND = RunConfig(pool=PoolConfig(workers=1))
"""The settings of a job run by hand, where no file gives others."""


def settings_of(path: Path | None) -> RunConfig:
    """Return the settings in a run's file, else those of a job run by hand; raise `ConfigError`."""
    return BY_HAND if path is None else load_config(path)


def gate_job(job: Job, task_name: str, unsafe_no_sandbox: bool, config: RunConfig = BY_HAND) -> Verdict:
    """Return the gate's verdict on a job for a task."""
    _, task = named_task(task_name, config.tasks)

    async def work() -> Verdict:
        pool = _pool(config, unsafe_no_sandbox)
        try:
            return await _gate(pool, job, task)
        finally:
            await pool.close()

    return asyncio.run(work())


def _pool(config: RunConfig, unsafe_no_sandbox: bool) -> Pool:
    from trainwright.backends import make_pool

    if unsafe_no_sandbox:
        config = config.model_copy(update={"pool": config.pool.model_copy(update={"unsafe_no_sandbox": True})})
    return make_pool(config)


async def _gate(pool: Pool, job: Job, task: Task) -> Verdict:
    """Return the verdict; what is wrong without running anything is said before a worker or a base student is made."""
    from trainwright.run import prepare_students

    try:
        check_static(job, task)
    except JobRejected as error:
        return Verdict(False, error.code, error.message, error.file, error.line)
    await prepare_students([offer.student for offer in task.offers], make_view(plain=True))
    return await pool.gate(job, task)


def train_job(
    job: Job,
    task_name: str,
    seed: int,
    items: int,
    out: Path | None,
    unsafe_no_sandbox: bool,
    config: RunConfig = BY_HAND,
) -> bool:
    """Gate, train and measure one job, print what happened, and return whether it trained."""
    family, task = named_task(task_name, config.tasks)
    return asyncio.run(_train_job(job, family, task, seed, items, out, unsafe_no_sandbox, config))


async def _train_job(
    job: Job,
    family: Family,
    task: Task,
    seed: int,
    count: int,
    out: Path | None,
    unsafe_no_sandbox: bool,
    config: RunConfig,
) -> bool:
    from trainwright.reference import References

    pool = _pool(config, unsafe_no_sandbox)
    try:
        verdict = await _gate(pool, job, task)
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
        print(f"student {student}: {estimate(pre)} before, {estimate(post)} after on the hidden benchmark")
        print(f"uplift {paired_difference(pre, post)}", flush=True)
        if job.hash == family.reference_job(task, student).hash:
            print("this is the reference job itself: no gain to tell")
        else:
            reference = await References(pool, config.measure).get(family, task, student)
            print(f"reference job {reference.score:.3f} (n={len(reference.posts)} seeds)")
            print(f"gain {gain(fmean(pre), fmean(post), reference.score):+.3f} (1.0 is as good as the reference job)")
    finally:
        await pool.close()
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


def print_reference(name: str, config: RunConfig = BY_HAND) -> None:
    """Print the reference job of a task as an agent would answer it."""
    family, task = named_task(name, config.tasks)
    print(family.reference_job(task, task.offers[0].student).render())
