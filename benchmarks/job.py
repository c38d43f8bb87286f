"""CPU cost of a nano job: this engine against TRL's GRPOTrainer.

Both train the same student from the same weights, with one plain Python reward function, on the same prompts, for the
same steps, rollouts, tokens and learning rate, all weights trainable, one thread each, alternating in one process
(ours, TRL, ours, TRL, ...). Figures are CPU seconds of the process; imports and model building are left out, TRL's
trainer construction is reported by itself. The first pair warms both up and is not counted.

Example:
    OMP_NUM_THREADS=1 python benchmarks/job.py --runs 5 --json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import trl_reference

from trainwright.engines.torch_grpo import TorchGRPO
from trainwright.environment.environment import Reward, Row
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.nano import NanoStudent


def reversal_reward(prompt: str, reply: str) -> float:
    """Return the share of characters that are right in a reversal of the prompt's last word."""
    answer = prompt.split()[-1][::-1]
    return sum(a == b for a, b in zip(answer, reply, strict=False)) / max(len(answer), len(reply), 1)


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


def cpu_seconds(action: Callable[[], object]) -> tuple[float, object]:
    started = time.process_time()
    result = action()
    return time.process_time() - started, result


def compare(runs: int, hp: Hyperparameters) -> dict[str, object]:
    """Return the figures of `runs` alternating pairs."""
    draw = random.Random(0)
    count = hp.max_steps * hp.batch_size // hp.group_size
    prompts = ["reverse " + "".join(draw.choices("abcdefgh", k=draw.randint(4, 8))) for _ in range(count)]
    student = NanoStudent.untrained(hp.student, seed=0)
    ours, theirs, construction, phases, rewards = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs + 1):
            environment = PlainEnvironment(prompts, reversal_reward)
            seconds, training = cpu_seconds(lambda: TorchGRPO().train(student.fresh(), environment, hp, seed=run))
            built, trainer = cpu_seconds(
                lambda: trl_reference.build_trainer(student, prompts, reversal_reward, hp, Path(folder), seed=run)
            )
            trl_seconds, _ = cpu_seconds(trainer.train)
            if run:
                ours.append(seconds)
                theirs.append(trl_seconds)
                construction.append(built)
                phases.append(training.cpu_seconds)
    return {
        "student": hp.student,
        "steps": hp.max_steps,
        "rollouts_per_step": hp.batch_size,
        "group_size": hp.group_size,
        "max_completion_tokens": hp.max_completion_tokens,
        "ours_cpu_seconds": ours,
        "trl_cpu_seconds": theirs,
        "trl_construction_cpu_seconds": statistics.median(construction),
        "ours_phases": {name: statistics.median(phase[name] for phase in phases) for name in phases[0]},
        "ratio_to_trl": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted pairs (default 5)")
    parser.add_argument("--student", default="nano-64", help="student size (default nano-64)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = compare(options.runs, Hyperparameters(student=options.student, lora_rank=0))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:30s} {value}")


if __name__ == "__main__":
    main()
