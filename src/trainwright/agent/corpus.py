"""Synthetic jobs of every quality: what the nano agent has read before reinforcement learning.

Each text pairs a brief with a job whose parts are drawn independently: data that fits the brief or not, a right or a
wrong reward, learning rates over five decades, budgets kept or broken, and now and then broken code. Nothing here is
scored and nothing is labelled good or bad; what makes a job good is for reinforcement learning to find out.
"""

from __future__ import annotations

import random

from trainwright.job.job import Job
from trainwright.suites.family import Task
from trainwright.suites.nano.base import NanoFamily
from trainwright.suites.nano.warm_up import FAMILIES

REWARDS = (
    *["float(trace.last_reply == self.data.answer)"] * 7,
    "float(len(trace.last_reply) == len(self.data.answer))",
    "float(trace.last_reply[:1] == self.data.answer[:1])",
    "float(trace.last_reply != self.data.answer)",
    "float(len(trace.last_reply) > 3)",
    "sum(a == b for a, b in zip(trace.last_reply, self.data.answer)) / 8",
    "len(set(trace.last_reply) & set(self.data.answer)) / 8",
    "float(trace.last_reply in self.data.prompt)",
)
BROKEN_REWARDS = ("1.0", "None", "trace.last_reply", "float(trace.reply == self.data.answer)")
LEARNING_RATES = ("0.00001", "0.00003", "0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1")
WRONG_IMPORTS = ("import torch", "import os", "import verifiers as vf", "import numpy as np")

TEMPLATE = """\
import random
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return {reward}


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self):
        rng = random.Random(1)
        for idx in range({rows}):
{generator}
            yield Problem(Data(idx=idx, prompt=prompt, answer=answer), self.config.task)


__all__ = ["Problems"]
"""


def synthetic_task(rng: random.Random) -> Task:
    """Return a task of any nano family, the held-out one included: the agent has read its briefs, as a language
    model has read about most things, but is never rewarded on it."""
    family = rng.choice(FAMILIES)
    return family.draw(rng.randrange(2**31))


def synthetic_job(task: Task, rng: random.Random) -> str:
    """Return an answer to the task's brief with a job of random quality."""
    environment = TEMPLATE.format(
        reward=rng.choice(BROKEN_REWARDS if rng.random() < 0.08 else REWARDS),
        rows=rng.choice((5, 50, 200, 200, 600, 600, 600, 600)),
        generator=_generator(task, rng),
    )
    train = _hyperparameters(task, rng)
    if rng.random() < 0.08:
        environment, train = _break(environment, train, rng)
    return Job({"environment.py": environment, "train.toml": train}).render()


def _generator(task: Task, rng: random.Random) -> str:
    """Draw data that fits the brief (more often than not), or the family only, or nothing."""
    family: NanoFamily = next(family for family in FAMILIES if family.name == task.family)
    parameters = task.parameters
    luck = rng.random()
    if luck > 0.8:
        family = rng.choice(FAMILIES)
    if luck > 0.6:
        parameters = rng.choice(family.variants())
    code = family.generator(parameters)
    if rng.random() < 0.08:
        *lines, _ = code.splitlines()
        code = "\n".join([*lines, rng.choice(('answer = ""', "answer = prompt[4:-1]", 'answer = "a"'))])
    return "\n".join(f"            {line}" for line in code.splitlines())


def _hyperparameters(task: Task, rng: random.Random) -> str:
    values = {
        "student": f'"{rng.choice(task.offers).student}"',
        "learning_rate": rng.choice(LEARNING_RATES),
        "max_steps": rng.choice((3, 5, 10, 15, 15, 30)),
        "batch_size": rng.choice((16, 32, 64, 64)),
        "group_size": rng.choice((2, 4, 4, 8, 8, 16, 6, 6)),
        "lora_rank": rng.choice((0, 4, 16)),
    }
    return "".join(f"{name} = {value}\n" for name, value in values.items())


def _break(environment: str, train: str, rng: random.Random) -> tuple[str, str]:
    """Break one thing: a lost line, a lost character, a wrong import, a missing `__all__`, an unknown key."""
    lines = environment.splitlines(keepends=True)
    match rng.randrange(5):
        case 0:
            del lines[rng.randrange(len(lines))]
        case 1:
            at = rng.randrange(len(environment))
            return environment[:at] + environment[at + 1 :], train
        case 2:
            lines[rng.randrange(2)] = rng.choice(WRONG_IMPORTS) + "\n"
        case 3:
            lines = lines[:-1]
        case 4:
            return environment, train.replace("learning_rate", rng.choice(("lr", "learning-rate")))
    return "".join(lines), train
