"""The outer loop: read this file first.

A step draws tasks, lets the trainer agent write a job for each episode, runs the jobs, turns the improvement of each
student into a reward, and updates the agent's policy on the group-relative advantages. After each step a checkpoint is
written, then the step is committed to the ledger; a run killed anywhere resumes at the first step not committed and
takes up the episodes that the ledger holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from trainwright.agent.brief import brief_for
from trainwright.agent.policy import BriefStyle, Completion, Example
from trainwright.config import RunConfig
from trainwright.episode import Group, Services, run_episode
from trainwright.ledger import Attempt, Episode, Step
from trainwright.pools.pool import OutcomeClass
from trainwright.report.view import View
from trainwright.reward import VALIDITY_START, VALIDITY_WINDOW, advantages, next_validity_weight
from trainwright.seeds import derive_seed
from trainwright.suites.family import Family
from trainwright.suites.offers import run_families, run_family

TRAIN, BEFORE, BETWEEN, AFTER = "train", "probe-before", "probe", "probe-after"


async def train_agent(services: Services, folder: Path, view: View) -> None:
    """Run the outer loop to its last step, from wherever the ledger says it stands."""
    config, ledger = services.config, services.ledger
    steps = ledger.steps()
    if steps:
        services.policy.load(folder / steps[-1].checkpoint)
        view.note(f"resuming after step {steps[-1].step + 1} of {config.steps}")
    await probe(services, view, BEFORE, 0, config.probe.episodes)
    validity = steps[-1].validity if steps else VALIDITY_START

    for step in range(len(steps), config.steps):
        if step and config.probe.every and step % config.probe.every == 0:
            await probe(services, view, BETWEEN, step, min(config.probe.episodes_between, config.probe.episodes))
        started = time.monotonic()
        groups = [training_group(services, step, number) for number in range(config.groups)]
        sampling = derive_seed(config.seed, "sample", step)
        members = await run_groups(services, view, groups, config.group_size, validity, sampling)

        examples = [example for group in members for example in group_examples(services, group)]
        update = await services.policy.update(examples) if examples else {}
        checkpoint = f"checkpoints/step-{step + 1:04d}"
        services.policy.save(folder / checkpoint)

        recent = [episode.valid for episode in ledger.episodes(TRAIN) if episode.outcome != OutcomeClass.INFRA]
        validity = next_validity_weight(validity, recent[-VALIDITY_WINDOW:])
        metrics = step_metrics(members) | {f"policy/{name}": value for name, value in update.items()}
        ledger.commit_step(Step(step, validity, metrics, checkpoint, time.monotonic() - started))
        ledger.write_metrics(folder / "metrics.jsonl")
        view.step(step + 1, config.steps, metrics, time.monotonic() - started)

    await probe(services, view, AFTER, len(ledger.steps()), config.probe.episodes)


async def probe(services: Services, view: View, arm: str, step: int, episodes: int) -> None:
    """Measure the agent on the held-out family: one episode a task, the same tasks, items and seeds in every probe.

    `step` is the number of steps that the agent has been trained for.
    """
    config = services.config
    if not config.tasks.held_out or not episodes:
        return
    family = run_family(config.tasks, config.tasks.held_out)
    seeds = [derive_seed(config.seed, "probe-task", number) for number in range(episodes)]
    groups = [
        make_group(config, f"{arm}-{step:04d}-{number:03d}", arm, step, number, family, seed, services.policy.brief)
        for number, seed in enumerate(seeds)
    ]
    members = await run_groups(services, view, groups, 1, VALIDITY_START, derive_seed(config.seed, "sample-probe"))
    gains = [episode.gain for group in members for episode in group if episode.outcome != OutcomeClass.INFRA]
    view.probe(arm, config.tasks.held_out, fmean(gains) if gains else float("nan"), len(gains))


def training_group(services: Services, step: int, number: int) -> Group:
    """Return group `number` of a step: the training families take turns, the task is drawn anew."""
    config, brief = services.config, services.policy.brief
    families = [family for family in run_families(config.tasks) if family.name != config.tasks.held_out]
    family = families[(step * config.groups + number) % len(families)]
    task_seed = derive_seed(config.seed, "task", step, number)
    return make_group(config, f"{TRAIN}-{step:04d}-{number}", TRAIN, step, number, family, task_seed, brief)


def make_group(
    config: RunConfig,
    id: str,
    arm: str,
    step: int,
    number: int,
    family: Family,
    task_seed: int,
    brief: BriefStyle = "compact",
) -> Group:
    """Return a group with its task drawn, told in the style of the agent's brief, and its hidden items fresh."""
    task = family.draw(task_seed)
    items_seed = derive_seed(task_seed, "items")
    items = family.hidden_items(task, items_seed, config.measure.items)
    return Group(id, arm, step, number, family, task, items, brief_for(task, brief), items_seed)


async def run_groups(
    services: Services, view: View, groups: Sequence[Group], size: int, validity: float, sampling: int
) -> list[list[Episode]]:
    """Return the episodes of each group: sampled together in one batch, then run as the pool has room.

    `sampling` is the seed of the batch.
    """
    for group in groups:
        services.ledger.add_group(group.id, group.arm, group.step, group.number, group.task.family, group.record())
    first = await first_answers(services, groups, size, sampling)

    async def one(group: Group, member: int) -> Episode:
        id = f"{group.id}-{member}"
        episode = await run_episode(services, group, id, member, first.get(id), validity)
        view.episode(episode)
        return episode

    try:
        async with asyncio.TaskGroup() as running:
            tasks = [[running.create_task(one(group, member)) for member in range(size)] for group in groups]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first one stops the run and speaks for all
    return [[task.result() for task in row] for row in tasks]


async def first_answers(services: Services, groups: Sequence[Group], size: int, sampling: int) -> dict[str, Completion]:
    """Return the first answer of each episode by id, sampled now unless the ledger has all of them already."""
    ids = [f"{group.id}-{member}" for group in groups for member in range(size)]
    if all(services.ledger.attempts(id) for id in ids):
        return {}
    conversations = [group.brief for group in groups for _ in range(size)]
    answers = await services.policy.sample(conversations, sampling)
    rows = zip(ids, conversations, answers, strict=True)
    services.ledger.add_attempts([(id, Attempt(0, brief, answer)) for id, brief, answer in rows])
    return dict(zip(ids, answers, strict=True))


def group_examples(services: Services, episodes: Sequence[Episode]) -> list[Example]:
    """Return what a group teaches: every answer of every scored episode with the episode's advantage.

    A group without spread teaches nothing and is skipped; an episode lost to infrastructure is left out.
    """
    scored = [episode for episode in episodes if episode.reward is not None]
    rewards = [episode.reward for episode in scored if episode.reward is not None]
    if not rewards or max(rewards) == min(rewards):
        return []
    return [
        Example(attempt.completion, advantage)
        for episode, advantage in zip(scored, advantages(rewards), strict=True)
        for attempt in services.ledger.attempts(episode.id)
    ]


def step_metrics(groups: Sequence[Sequence[Episode]]) -> dict[str, Any]:
    """Return the metrics of one step. An episode without a trained student has gain 0; INFRA episodes are left out."""
    scored = [episode for group in groups for episode in group if episode.reward is not None]
    count = max(len(scored), 1)
    dead = [group for group in groups if len({episode.reward for episode in group if episode.reward is not None}) < 2]
    uplifts = [episode.post - episode.pre for episode in scored if episode.post is not None and episode.pre is not None]
    return {
        "reward": sum(episode.reward or 0.0 for episode in scored) / count,
        "gain": sum(episode.gain for episode in scored) / count,
        "uplift": fmean(uplifts) if uplifts else 0.0,
        "validity": sum(episode.valid for episode in scored) / count,
        "job_faults": sum(episode.outcome == OutcomeClass.JOB_FAULT for episode in scored) / count,
        "infra_dropped": sum(len(group) for group in groups) - len(scored),
        "groups_without_spread": len(dead) / len(groups),
        "episodes": len(scored),
        "jobs": len(uplifts),
    }
