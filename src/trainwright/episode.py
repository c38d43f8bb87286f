"""One episode, from the agent's answer to its reward: gate, train, measure.

An episode is written to the ledger as it goes: the answer before its job is looked at, the verdict before anything is
trained, the outcome last. Run again after a kill, it takes up its stored answers and does the rest anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from trainwright.agent.policy import Completion, Example, Policy, is_concurrent
from trainwright.agent.turns import Turns
from trainwright.config import RunConfig
from trainwright.errors import InfraFault, JobRejected
from trainwright.job.job import Job
from trainwright.ledger import Attempt, Episode, Ledger
from trainwright.measure import paired_difference, score_student
from trainwright.messages import Message
from trainwright.pools.pool import OutcomeClass, Pool, TrainResult, Verdict
from trainwright.reference import References
from trainwright.reward import gain as gain_of
from trainwright.reward import reward as reward_of
from trainwright.seeds import derive_seed
from trainwright.suites.family import Family, Item, Task


@dataclass
class Services:
    """What all episodes of a run share."""

    config: RunConfig
    ledger: Ledger
    policy: Policy
    pool: Pool
    references: References
    sandbox: str
    version: int = 0
    """Updates that the policy has taken."""
    _turns: Turns = field(default_factory=Turns)

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> tuple[int, list[Completion]]:
        """Return one answer a conversation, and the version of the policy that was asked (it may become newer)."""
        async with self._turns.shared() if not is_concurrent(self.policy) else nullcontext():
            version = self.version
            return version, await self.policy.sample(conversations, seed)

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take one policy update; its `version` counts once the step is committed."""
        async with self._turns.alone() if not is_concurrent(self.policy) else nullcontext():
            return await self.policy.update(examples)


@dataclass
class Group:
    """The episodes that share a task and its hidden items. `brief` is the conversation that opens each of them.

    `step` is the one that it was drawn for; where steps overlap, a slow group may be taken by a later one.
    """

    id: str
    arm: str
    step: int
    number: int
    family: Family
    task: Task
    items: Sequence[Item]
    brief: list[Message]
    seed: int
    _pre: dict[str, asyncio.Task[list[float]]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the task as plain data, for the ledger. The hidden items stay out: their seed restores them."""
        return asdict(self.task) | {"key": self.task.key, "items_seed": self.seed, "items": len(self.items)}

    async def scores(self, pool: Pool, student: str, weights: bytes | None) -> list[float]:
        """Return the score of each hidden item, always with the same sampling seed."""
        seed = derive_seed(self.seed, "sampling")
        return await score_student(pool, self.family, self.task, student, weights, self.items, seed)

    async def pre(self, pool: Pool, student: str) -> list[float]:
        """Return the base student's scores, measured once for the group."""
        if student not in self._pre:
            self._pre[student] = asyncio.create_task(self.scores(pool, student, None))
        return await asyncio.shield(self._pre[student])


async def run_episode(services: Services, group: Group, id: str, member: int, validity: float) -> Episode:
    """Return the finished episode, from the ledger when it is there already, as are answers sampled before.

    `validity` is the validity weight of its group. An infrastructure fault gives an episode without a reward.
    """
    done = services.ledger.episode(id)
    if done is not None:
        return done
    try:
        episode = await _episode(services, group, id, member, validity)
    except InfraFault as error:
        episode = Episode(
            id, group.id, group.arm, group.step, group.task.family, OutcomeClass.INFRA, error.code, error.message,
            attempts=len(services.ledger.attempts(id)), sandbox=services.sandbox,
        )  # fmt: skip
    services.ledger.finish(episode)
    return episode


async def _episode(services: Services, group: Group, id: str, member: int, validity: float) -> Episode:
    job, verdict, attempts = await _accepted_job(services, group, id)
    facts: dict[str, Any] = {
        "id": id, "group_id": group.id, "arm": group.arm, "step": group.step, "family": group.task.family,
        "attempts": attempts, "job": job.hash if job else "", "sandbox": services.sandbox,
        "usd": sum(attempt.completion.usd for attempt in services.ledger.attempts(id)),
    }  # fmt: skip
    if job is None or verdict.hyperparameters is None:
        return Episode(
            **facts, outcome=OutcomeClass.REJECTED, reason=verdict.code, detail=str(verdict),
            reward=reward_of(OutcomeClass.REJECTED),
        )  # fmt: skip
    facts |= {"valid": True, "first_try": attempts == 1, "student": verdict.hyperparameters.student}

    result = await services.pool.train(id, job, verdict.hyperparameters, derive_seed(group.seed, "train", member))
    facts |= {
        "outcome": result.outcome.kind, "reason": result.outcome.reason, "detail": result.outcome.detail,
        "rollouts": result.rollouts, "metrics": result.metrics, "cpu_seconds": result.cpu_seconds,
        "wall_seconds": result.wall_seconds, "worker": result.worker, "usd": facts["usd"] + result.usd,
    }  # fmt: skip
    if result.outcome.kind is not OutcomeClass.TRAINED:
        return Episode(**facts, reward=reward_of(result.outcome.kind))
    return Episode(**facts, **await _measured(services, group, verdict, result, validity, attempts == 1))


async def _measured(
    services: Services, group: Group, verdict: Verdict, result: TrainResult, validity: float, first_try: bool
) -> dict[str, Any]:
    """Score the student before and after on the same items, and turn the uplift into gain and reward."""
    assert verdict.hyperparameters is not None
    student = verdict.hyperparameters.student
    reference = await services.references.get(group.family, group.task, student)
    pre = await group.pre(services.pool, student)
    post = await group.scores(services.pool, student, result.weights)
    gain = gain_of(fmean(pre), fmean(post), reference.score)
    cost_share = result.rollouts / group.task.offer(student).rollout_budget
    reward = reward_of(OutcomeClass.TRAINED, gain=gain, first_try=first_try, validity=validity, cost_share=cost_share)
    return {
        "pre": fmean(pre), "post": fmean(post), "uplift_error": paired_difference(pre, post).standard_error,
        "reference": reference.score, "gain": gain, "reward": reward,
    }  # fmt: skip


async def _accepted_job(services: Services, group: Group, id: str) -> tuple[Job | None, Verdict, int]:
    """Return the first job that the gate accepts, or None after the last attempt; the verdict; attempts made."""
    stored = services.ledger.attempts(id)
    conversation = list(group.brief)
    verdict = Verdict(False)
    for number in range(services.config.agent.max_attempts):
        if number < len(stored):
            completion = stored[number].completion
        else:
            seed = derive_seed(services.config.seed, "attempt", id, number)
            version, (completion,) = await services.sample([conversation], seed)
            services.ledger.add_attempts([(id, Attempt(number, conversation, completion, version=version))])
        job, verdict = await _gate(services.pool, completion.text, group.task)
        services.ledger.set_verdict(id, number, job.hash if job else "", "" if verdict.accepted else str(verdict))
        if verdict.accepted:
            return job, verdict, number + 1
        conversation = [
            *conversation,
            {"role": "assistant", "content": completion.text},
            {"role": "user", "content": f"The job was refused: {verdict}\nWrite the whole job again."},
        ]
    return None, verdict, services.config.agent.max_attempts


async def _gate(pool: Pool, answer: str, task: Task) -> tuple[Job | None, Verdict]:
    try:
        job = Job.parse(answer)
    except JobRejected as error:
        return None, Verdict(False, error.code, error.message, error.file, error.line)
    return job, await pool.gate(job, task)
