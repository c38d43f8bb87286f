"""CPU cost of the nano tier's reference job (15 steps x 64 rollouts): the whole job, and its engine against TRL.

`job`: the way an episode takes it (gate, training behind the sandboxed environment server, one measurement of 256
hidden items), in CPU seconds of this process and all its descendants. `environment` is everything the server's
processes used and this process's part of asking them; `overhead` is the rest (the gate, opening and closing the job).

`engine`: this engine against TRL's GRPOTrainer with one plain Python reward function: the same base student, prompts,
steps, rollouts, token limit and learning rate, all weights trainable (as in the reference job; TRL needs a further
package for LoRA), one thread each, alternating in one process: ours, TRL, ours, TRL, ... CPU seconds of the process;
imports, model building and the construction of TRL's trainer (reported by itself) are left out, and so is the first
pair, which warms both up. The last rewards show that both did the same work.

Example:
    OMP_NUM_THREADS=1 python benchmarks/job.py --runs 5 --json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import torch
import trl_reference

from trainwright.engines.torch_grpo import TorchGRPO
from trainwright.environment.environment import Reward, Row
from trainwright.job.gate import check_static
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.pools.pool import OutcomeClass
from trainwright.pools.worker import Settings, Worker
from trainwright.students.nano import CONFIGS, NanoStudent
from trainwright.students.nano_base import nano_base
from trainwright.suites.family import Item, family_named

FAMILY = "reverse"
ITEMS = 256  # hidden items of one measurement
T = TypeVar("T")


def cpu_seconds(action: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU seconds of this process that an action took, and its result."""
    started = time.process_time()
    result = action()
    return time.process_time() - started, result


def descendants_cpu_seconds() -> float:
    """Return the CPU seconds so far of every descendant of this process, ended and waited-for ones included."""
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
        user, system, ended_user, ended_system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15]
        ticks += int(ended_user) + int(ended_system)
        if pid != os.getpid():
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_job(student: str, runs: int) -> dict[str, object]:
    """Return CPU seconds a reference job, by part: the mean over `runs`, after one that is not counted."""
    family = family_named(FAMILY)
    task = family.draw(0)
    job, items = family.reference_job(task, student), family.hidden_items(task, 1, ITEMS)
    worker = Worker(Settings(unsafe_no_sandbox=False, job_seconds=600.0))
    parts = dict.fromkeys(("sampling", "learning", "environment", "measuring", "overhead"), 0.0)
    with worker.server:
        for run in range(runs + 1):
            served = descendants_cpu_seconds()
            gating, verdict = cpu_seconds(lambda: worker.gate(job, task))
            assert verdict.hyperparameters is not None, verdict
            training, trained = cpu_seconds(lambda: worker.train(job, verdict.hyperparameters, run))  # noqa: B023
            assert trained.outcome.kind is OutcomeClass.TRAINED, trained.outcome
            prompts = [item.prompt for item in items]
            measuring, replies = cpu_seconds(
                lambda: worker.generate(student, trained.weights, prompts, 0, task.max_completion_tokens, 1.0)  # noqa: B023
            )
            score = fmean(family.score(item, reply) for item, reply in zip(items, replies, strict=True))
            phases = trained.cpu_seconds
            spent = {
                "sampling": phases["sampling"],
                "learning": phases["learning"],
                "environment": phases["environment"] + descendants_cpu_seconds() - served,
                "measuring": measuring,
                "overhead": gating + training - sum(phases[name] for name in ("sampling", "learning", "environment")),
            }
            if run:
                parts = {name: parts[name] + seconds / runs for name, seconds in spent.items()}
    return {**parts, "total": sum(parts.values()), "score": score, "sandbox": worker.sandbox.level}


class Graded:
    """One plain reward function: 1 for the exact answer. Remembers what it gave, in order."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._answers = {item.prompt: item.answer for item in items}
        self.given: list[float] = []

    def __call__(self, prompt: str, reply: str) -> float:
        self.given.append(float(reply == self._answers[prompt]))
        return self.given[-1]


class PlainEnvironment:
    """An environment in this process: a list of prompts and one reward function."""

    def __init__(self, prompts: Sequence[str], reward: trl_reference.RewardFunction) -> None:
        self._prompts, self._reward, self._next = prompts, reward, 0

    def rows(self, count: int) -> list[Row]:
        indices = range(self._next, min(self._next + count, len(self._prompts)))
        self._next = indices.stop
        return [Row(i, ({"role": "user", "content": self._prompts[i]},)) for i in indices]

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        return [Reward(self._reward(self._prompts[index], reply), {}, 0.0) for index, reply in replies]


def run_ours(student: NanoStudent, items: Sequence[Item], hp: Hyperparameters, seed: int) -> dict[str, float]:
    reward = Graded(items)
    fresh, environment = student.fresh(), PlainEnvironment([item.prompt for item in items], reward)
    total, training = cpu_seconds(lambda: TorchGRPO().train(fresh, environment, hp, seed))
    tokens = sum(row["tokens"] for row in training.metrics)
    skipped = fmean(row["no_spread_share"] for row in training.metrics)
    last5 = fmean(reward.given[-5 * hp.batch_size :])
    return {"total": total, **training.cpu_seconds, "tokens": tokens, "no_spread_share": skipped, "last5_reward": last5}


def run_trl(student: NanoStudent, items: Sequence[Item], hp: Hyperparameters, seed: int) -> dict[str, float]:
    reward, prompts = Graded(items), [item.prompt for item in items]
    with tempfile.TemporaryDirectory() as folder:
        construction, trainer = cpu_seconds(
            lambda: trl_reference.build_trainer(student, prompts, reward, hp, Path(folder), seed)
        )
        total, _ = cpu_seconds(trainer.train)
    return {"total": total, "construction": construction, "last5_reward": fmean(reward.given[-5 * hp.batch_size :])}


def compare_engines(name: str, runs: int) -> dict[str, object]:
    """Return the figures of `runs` alternating pairs after one that is not counted; medians."""
    family, student = family_named(FAMILY), nano_base(name)
    task = family.draw(0)
    hp = check_static(family.reference_job(task, name), task)
    items = family.hidden_items(task, 2, hp.max_steps * hp.batch_size // hp.group_size)
    pairs = [(run_ours(student, items, hp, seed), run_trl(student, items, hp, seed)) for seed in range(runs + 1)]
    ours, trl = zip(*pairs[1:], strict=True)
    return {
        "ratio_to_trl": median(a["total"] / b["total"] for a, b in pairs[1:]),
        "ours_runs": [round(run["total"], 3) for run in ours],
        "trl_runs": [round(run["total"], 3) for run in trl],
        "ours": {name: round(median(run[name] for run in ours), 4) for name in ours[0]},
        "trl": {name: round(median(run[name] for run in trl), 4) for name in trl[0]},
        "hyperparameters": vars(hp),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted jobs and counted pairs (default 5)")
    parser.add_argument("--student", choices=CONFIGS, default="nano-64", help="student (default nano-64)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    figures = {
        "student": options.student,
        "torch": torch.__version__,
        "job": measure_job(options.student, options.runs),
        "engine": compare_engines(options.student, options.runs),
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"CPU seconds of one reference job on {options.student} (mean of {options.runs}):")
    for name, value in figures["job"].items():
        print(f"  {name:12s} {value if isinstance(value, str) else format(value, '.3f')}")
    print("Engine against TRL's GRPOTrainer:")
    for name, value in figures["engine"].items():
        print(f"  {name:16s} {value}")


if __name__ == "__main__":
    main()
