"""Fakes of the slow parts of the outer loop: a policy that answers from a script, a pool that trains nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oracle import answer_to

from trainwright.agent.policy import BriefStyle, Completion, Example
from trainwright.errors import JobRejected
from trainwright.job.gate import check_static
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.job.job import ENVIRONMENT, Job
from trainwright.messages import Message
from trainwright.pools.pool import Outcome, OutcomeClass, Started, TrainResult, Verdict
from trainwright.seeds import derive_seed
from trainwright.suites.family import Task
from trainwright.suites.nano.warm_up import FAMILIES

JOB_FAULT, INFRA = "# the fake pool gives this job a fault", "# the fake pool loses this job"


class ScriptedPolicy:
    """A fake policy: `script(conversation, random)` writes the answer; the random numbers depend on seed and weights.

    Its weights are one number that every update changes, so that an update that is lost, repeated or out of order
    shows in all later answers.
    """

    name = "scripted"
    brief: BriefStyle = "compact"

    def __init__(self, script: Callable[[Sequence[Message], random.Random], str], weights: int = 0) -> None:
        self.script = script
        self.weights = weights
        self.updates: list[list[Example]] = []
        self.conversations: list[list[Message]] = []
        self.learns = True

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        await asyncio.sleep(0)
        self.conversations += [list(one) for one in conversations]
        randoms = [random.Random(derive_seed(self.weights, seed, index)) for index in range(len(conversations))]
        return [Completion(self.script(one, rng)) for one, rng in zip(conversations, randoms, strict=True)]

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        await asyncio.sleep(0)
        self.updates.append(list(examples))
        if self.learns:
            content = json.dumps([[one.completion.text, one.advantage] for one in examples])
            self.weights = derive_seed(self.weights, content)
        return {"loss": float(self.weights % 97)}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text(str(self.weights))

    def load(self, folder: Path) -> None:
        self.weights = int((folder / "weights").read_text())

    async def close(self) -> None:
        pass


@dataclass
class InstantPool:
    """A fake pool: gates for real as far as nothing runs, and makes a student as skilled as its rate is good.

    0.002 is the best rate. A job that holds `JOB_FAULT` or `INFRA` ends that way. With `jitter`, answers come back in
    an order that differs from one run to the next.
    """

    jitter: bool = False
    trained: list[str] = field(default_factory=list)
    scored: list[tuple[str, bytes | None]] = field(default_factory=list)
    gated: list[str] = field(default_factory=list)
    error: Exception | None = None

    async def _pause(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(random.random() / 500 if self.jitter else 0)

    fingerprint = "instant"

    async def start(self) -> Started:
        return Started("full", "a fake pool")

    async def gate(self, job: Job, task: Task) -> Verdict:
        await self._pause()
        self.gated.append(job.hash)
        try:
            return Verdict(True, hyperparameters=check_static(job, task))
        except JobRejected as error:
            return Verdict(False, error.code, error.message, error.file, error.line)

    async def train(self, key: str, job: Job, hyperparameters: Hyperparameters, seed: int) -> TrainResult:
        await self._pause()
        self.trained.append(key)
        if JOB_FAULT in job.files[ENVIRONMENT]:
            return TrainResult(Outcome(OutcomeClass.JOB_FAULT, "killed", "it died"))
        if INFRA in job.files[ENVIRONMENT]:
            return TrainResult(Outcome(OutcomeClass.INFRA, "worker_lost", "it was lost"))
        skill = 0.8 if hyperparameters.learning_rate == 0.002 else 0.4
        skill += (derive_seed(job.hash, seed) % 100) / 1000
        return TrainResult(
            Outcome(OutcomeClass.TRAINED),
            weights=f"{skill}".encode(),
            metrics=[{"step": 1.0, "reward_mean": skill}],
            rollouts=hyperparameters.rollouts,
            cpu_seconds={"learning": random.random()},
            wall_seconds=random.random(),
            worker=str(random.random()),
        )

    async def generate(
        self,
        student: str,
        weights: bytes | None,
        prompts: Sequence[str],
        *,
        seed: int,
        max_tokens: int,
        temperature: float = 1.0,
    ) -> list[str]:
        await self._pause()
        self.scored.append((student, weights))
        skill = 0.3 if weights is None else float(weights)
        lucks = [random.Random(derive_seed(seed, index)).random() for index in range(len(prompts))]
        return [answer_to(prompt) if luck < skill else "" for prompt, luck in zip(prompts, lucks, strict=True)]

    async def close(self) -> None:
        pass


def reference_answer(conversation: Sequence[Message]) -> str:
    """Return the reference job of the task that a conversation opens with, as an answer."""
    for family in FAMILIES:
        for parameters in family.variants():
            task = family.task(parameters, 0)
            if task.brief in conversation[0]["content"]:
                return family.reference_job(task, task.offers[0].student).render()
    raise AssertionError(conversation)


def varied_answer(conversation: Sequence[Message], rng: random.Random) -> str:
    """Return a good job, a weaker one, a broken one, one with a fault or one that is lost, by chance."""
    good = reference_answer(conversation)
    weak = good.replace("learning_rate = 0.002", "learning_rate = 0.0001")
    marked = [good.replace("import random\n", f"import random\n{mark}\n") for mark in (JOB_FAULT, INFRA)]
    return rng.choice([good, good, good, weak, weak, "no job at all", *marked])
