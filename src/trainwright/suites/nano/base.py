"""What the six nano families share: short prompts over single characters, exact match, a grid of parameters.

A nano prompt is a verb, its arguments and `=`, for example `rev:cabd=`; the student answers with a few characters.
A family states its grid of parameters, how to draw one item, and the same generator as source text for the reference
job. Both are needed: hidden items are drawn here, and a job must bring its own code.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import ClassVar

from trainwright.job.job import Job
from trainwright.seeds import derive_seed
from trainwright.suites.family import Item, Offer, Parameter, Task

ALPHABETS = ("abcdef", "cdefgh", "efghij")
OFFERS = (Offer("nano-64", 960), Offer("nano-48", 960))
MAX_COMPLETION_TOKENS = 10
VISIBLE_EXAMPLES = 1

ENVIRONMENT = """\
import random
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self):
        rng = random.Random(1)
        for idx in range(600):
{generator}
            yield Problem(Data(idx=idx, prompt=prompt, answer=answer), self.config.task)


__all__ = ["Problems"]
"""

TRAIN = """\
student = "{student}"
learning_rate = 0.002
max_steps = 15
batch_size = 64
group_size = 4
lora_rank = 16
"""


class NanoFamily:
    """One nano family; subclasses fill in the class variables and three methods."""

    suite: ClassVar[str] = "nano"
    name: ClassVar[str]
    grid: ClassVar[Mapping[str, Sequence[Parameter]]]
    chance: ClassVar[float]
    """The best score of a reply that ignores the prompt's content."""

    def item(self, parameters: Mapping[str, Parameter], rng: random.Random) -> Item:
        """Return one item drawn with `rng`."""
        raise NotImplementedError

    def instruction(self, parameters: Mapping[str, Parameter]) -> str:
        """Return the task in one or two plain sentences, parameters included."""
        raise NotImplementedError

    def generator(self, parameters: Mapping[str, Parameter]) -> str:
        """Return Python lines that set `prompt` and `answer` from `rng`, for the reference job."""
        raise NotImplementedError

    def variants(self) -> list[dict[str, Parameter]]:
        """Return every combination of the grid's parameters."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def task(self, parameters: Mapping[str, Parameter], seed: int) -> Task:
        """Return the task with these parameters; the seed draws its visible examples."""
        rng = random.Random(derive_seed(seed, "examples", self.name))
        return Task(
            suite=self.suite,
            family=self.name,
            seed=seed,
            parameters=dict(parameters),
            brief=self.instruction(parameters),
            examples=tuple(self.item(parameters, rng) for _ in range(VISIBLE_EXAMPLES)),
            offers=OFFERS,
            max_completion_tokens=MAX_COMPLETION_TOKENS,
        )

    def draw(self, seed: int) -> Task:
        """Return the task of this seed: parameters from the grid, and its visible examples."""
        rng = random.Random(derive_seed(seed, "parameters", self.name))
        return self.task({name: rng.choice(values) for name, values in self.grid.items()}, seed)

    def hidden_items(self, task: Task, seed: int, count: int) -> list[Item]:
        """Return `count` items of the hidden benchmark, drawn independently of the visible examples."""
        rng = random.Random(derive_seed(seed, "hidden", self.name))
        return [self.item(task.parameters, rng) for _ in range(count)]

    def score(self, item: Item, reply: str) -> float:
        """Return 1.0 when the reply is exactly the answer, else 0.0."""
        return float(reply == item.answer)

    def reference_job(self, task: Task, student: str) -> Job:
        """Return exact match on the task's own distribution, a LoRA adapter, the whole budget used."""
        generator = "\n".join(f"            {line}" for line in self.generator(task.parameters).splitlines())
        return Job(
            {
                "environment.py": ENVIRONMENT.format(generator=generator),
                "train.toml": TRAIN.format(student=student),
            }
        )


def draw_word(rng: random.Random, alphabet: str, shortest: int, longest: int) -> str:
    """Return a word of random letters, its length uniform between the two bounds."""
    return "".join(rng.choices(alphabet, k=rng.randint(shortest, longest)))
