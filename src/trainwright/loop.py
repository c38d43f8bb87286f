"""The outer loop: read this file first.

A step draws tasks, lets the trainer agent write a job for each episode, runs the jobs, turns the improvement of each
student into a reward, and updates the agent's policy on the group-relative advantages. After each step a checkpoint is
written, then the step is committed to the ledger with the groups that it took; a run killed anywhere resumes at the
first step not committed and takes up the groups and episodes that the ledger holds.

With `max_off_policy_steps` = 0 a step waits for its own groups. Above that, the next step's groups are under way while
a step ends, so that the pool has work while the policy updates. A step then takes the first groups that are complete,
oldest first, and drops the ones whose oldest answer is more updates behind than that: they stay in the ledger, teach
nothing, and are counted in the metric `groups_stale`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from trainwright.agent.brief import brief_for
from trainwright.agent.policy import BriefStyle, Example, is_trainable
from trainwright.config import RunConfig
from trainwright.episode import Group, Services
from trainwright.flight import Complete, Flight, flight
from trainwright.ledger import Episode, Step, Taken
from trainwright.pools.pool import OutcomeClass
from trainwright.report.view import View
from trainwright.reward import VALIDITY_START, VALIDITY_WINDOW, advantages, next_validity_weight
from trainwright.seeds import derive_seed
from trainwright.suites.family import Family
from trainwright.suites.offers import run_families, run_family

TRAIN, BEFORE, BETWEEN, AFTER = "train", "probe-before", "probe", "probe-after"


async def train_agent(services: Services, folder: Path, view: View) -> None:
    """Run the outer loop to its last step, from wherever the ledger says it stands."""
    config, ledger, learns = services.config, services.ledger, is_trainable(services.policy)
    steps = ledger.steps()
    if steps:
        if learns:
            services.policy.load(folder / steps[-1].checkpoint)
            services.version = len(steps)
        view.note(f"resuming after step {steps[-1].step + 1} of {config.steps}")
    await probe(services, view, BEFORE, 0, config.probe.episodes)
    validity = steps[-1].validity if steps else VALIDITY_START

    async with flight(services, view) as under_way:
        launch_again(services, under_way, validity)
        for step in range(len(steps), config.steps):
            if learns and step and config.probe.every and step % config.probe.every == 0:
                await probe(services, view, BETWEEN, step, min(config.probe.episodes_between, config.probe.episodes))
            started = time.monotonic()
            used, stale = await next_groups(services, under_way, step, validity)

            members = [group.episodes for group in used]
            examples = [example for episodes in members for example in group_examples(services, episodes)]
            update = await services.update(examples) if examples or not learns else {}
            checkpoint = f"checkpoints/step-{step + 1:04d}" if learns else ""
            if checkpoint:
                services.policy.save(folder / checkpoint)

            recent = [episode.valid for episode in ledger.episodes(TRAIN) if episode.outcome != OutcomeClass.INFRA]
            validity = next_validity_weight(validity, recent[-VALIDITY_WINDOW:])
            metrics = step_metrics(members) | {f"policy/{name}": value for name, value in update.items()}
            if config.max_off_policy_steps:
                metrics |= staleness_metrics(services, used, stale)
            seconds = time.monotonic() - started
            ledger.commit_step(Step(step, validity, metrics, checkpoint, seconds), taken(services, used, stale))
            services.version += learns
            ledger.write_metrics(folder / "metrics.jsonl")
            view.step(step + 1, config.steps, metrics, seconds)
        under_way.abandon()

    if learns:
        await probe(services, view, AFTER, len(ledger.steps()), config.probe.episodes)


async def next_groups(
    services: Services, under_way: Flight, step: int, validity: float
) -> tuple[list[Complete], list[Complete]]:
    """Return the groups that a step learns from, and the stale ones that it drops; keep the pool full meanwhile.

    Not before the update of the step before, so that what is launched here is asked of the newest policy.
    """
    config, stale = services.config, list[Complete]()
    ahead = config.groups if config.max_off_policy_steps and step + 1 < config.steps else 0

    def is_stale(group: Complete) -> bool:
        return services.version - group.version > config.max_off_policy_steps

    while True:
        old = [group for group in under_way.complete() if is_stale(group)]
        under_way.take(old)
        stale += old
        while len(under_way) < max(config.groups, ahead + 1):
            launch(services, under_way, services.ledger.drawn(TRAIN), range(config.groups), validity)
            await asyncio.sleep(0)  # they ask the policy before the update does: the pool will have work meanwhile
        complete = under_way.complete()
        fresh = [group for group in complete if not is_stale(group)]
        if len(fresh) >= config.groups:
            under_way.take(fresh[: config.groups])
            return fresh[: config.groups], stale
        if len(fresh) == len(complete):  # else a stale one has come meanwhile, of a run that was resumed
            await under_way.change()


def launch_again(services: Services, under_way: Flight, validity: float) -> None:
    """Launch the groups that were under way when the run was stopped: those in the ledger that no step has taken."""
    gone = {group.group for group in services.ledger.taken()}
    for step in range(services.ledger.drawn(TRAIN)):
        numbers = [number for number in range(services.config.groups) if training_id(step, number) not in gone]
        if numbers:
            launch(services, under_way, step, numbers, validity)


def launch(services: Services, under_way: Flight, step: int, numbers: Sequence[int], validity: float) -> None:
    """Start groups drawn for a step; their first answers are sampled in one batch."""
    groups = [training_group(services, step, number) for number in numbers]
    sampling = derive_seed(services.config.seed, "sample", step)
    under_way.launch(groups, services.config.group_size, validity, sampling)


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
    async with flight(services, view) as under_way:
        under_way.launch(groups, 1, VALIDITY_START, derive_seed(config.seed, "sample-probe"))
    members = [group.episodes for group in under_way.complete()]
    gains = [episode.gain for group in members for episode in group if episode.outcome != OutcomeClass.INFRA]
    view.probe(arm, config.tasks.held_out, fmean(gains) if gains else float("nan"), len(gains))


def training_id(step: int, number: int) -> str:
    """Return the id of group `number` drawn for a step."""
    return f"{TRAIN}-{step:04d}-{number}"


def training_group(services: Services, step: int, number: int) -> Group:
    """Return group `number` drawn for a step: the training families take turns, the task is drawn anew."""
    config, brief = services.config, services.policy.brief
    families = [family for family in run_families(config.tasks) if family.name != config.tasks.held_out]
    family = families[(step * config.groups + number) % len(families)]
    task_seed = derive_seed(config.seed, "task", step, number)
    return make_group(config, training_id(step, number), TRAIN, step, number, family, task_seed, brief)


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


def taken(services: Services, used: Sequence[Complete], stale: Sequence[Complete]) -> list[Taken]:
    """Return what the ledger records of the groups that a step took."""
    found = [(group, True) for group in used] + [(group, False) for group in stale]
    return [Taken(group.id, services.version - group.version, learnt_from) for group, learnt_from in found]


def staleness_metrics(services: Services, used: Sequence[Complete], stale: Sequence[Complete]) -> dict[str, Any]:
    """Return how many updates old the groups are that a step learns from, and how many it drops as too old."""
    ages = [services.version - group.version for group in used]
    return {"staleness": fmean(ages), "staleness_max": max(ages), "groups_stale": len(stale)}
