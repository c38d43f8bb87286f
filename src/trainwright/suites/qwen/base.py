"""What the six families share: one generator each, told apart by its world; one way to build briefs and reference jobs.

A *world* is everything that makes an item look the way it does: word lists, templates, ranges. A family draws visible
examples from the world in its own file and hidden items from the world of the same name in `trainwright_hidden`, which
is imported on the first hidden draw. Where that package is absent (a sandbox, a rented pod) everything but hidden
items still works.
"""

from __future__ import annotations

import importlib
import inspect
import random
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import tomli_w

from trainwright.errors import ConfigError
from trainwright.job.job import Job
from trainwright.seeds import derive_seed
from trainwright.suites.family import Item, Offer, Parameter, Task
from trainwright.suites.qwen.answers import REPLY_FORMAT, answer_block
from trainwright.suites.qwen.reference import environment_text

World = TypeVar("World")
Parameters = Mapping[str, Parameter]

OFFERS = (Offer("qwen3-0.6b", 12_800), Offer("qwen3-1.7b", 6_400))
"""100 and 50 steps of 128 rollouts: the larger student costs about twice as much a rollout."""

LEARNING_RATE = {"qwen3-0.6b": 1e-4, "qwen3-1.7b": 5e-5, "smollm2-135m-instruct": 3e-4}
BATCH_SIZE, GROUP_SIZE, LORA_RANK, LORA_ALPHA = 128, 16, 16, 32.0

HIDDEN_PACKAGE = "trainwright_hidden"
DRAWS_AN_ITEM = 100

BRIEF = """\
{instruction}

Reply format: {reply_format} The block is graded, the text around it is not; a reply with two blocks is wrong. {form}

Score: 1 when the block is exactly right, else 0. The student answers in one turn, without a system prompt and with \
thinking off. The hidden benchmark keeps these rules and this reply format, but not the wording of the examples: \
{difference} A job that trains the skill carries over; one that fits the examples does not.

Partial credit for a reward, to use or to change (it is not the score; `answer` is the answer of an example):
```python
{helper}```"""


class QwenFamily(Generic[World]):
    """One family of the suite; subclasses fill in the class variables and the methods that raise here."""

    suite: ClassVar[str] = "qwen"
    name: ClassVar[str]
    variants: ClassVar[tuple[Parameters, ...]]
    """The tasks of the family. Few, because each has a base score and a reference score that must be measured."""
    visible_examples: ClassVar[int]
    max_completion_tokens: ClassVar[int]
    form: ClassVar[str]
    """One sentence of the brief: what stands inside the answer block."""
    difference: ClassVar[str]
    """One sentence of the brief: what changes from the visible examples to the hidden benchmark."""
    world: World
    """The visible one."""

    def instruction(self, parameters: Parameters) -> str:
        """Return the skill in a few plain sentences, parameters included."""
        raise NotImplementedError

    def item(self, parameters: Parameters, world: World, rng: random.Random) -> Item | None:
        """Return one item of a world, or None when the draw gave a degenerate one."""
        raise NotImplementedError

    def right(self, item: Item, block: str) -> bool:
        """Return whether the text of the answer block is the right answer."""
        raise NotImplementedError

    @staticmethod
    def partial_credit(answer: str, reply: str) -> float:
        """Return credit in [0, 1] for getting closer; self-contained, because briefs and reference jobs quote it."""
        raise NotImplementedError

    def gold(self, item: Item) -> str:
        """Return the text of a right answer block."""
        return item.answer

    @property
    def topic(self) -> str:
        """Return the name without the suite: the name of the modules that belong to the family."""
        return self.name.removeprefix(f"{self.suite}-")

    def draw(self, seed: int) -> Task:
        """Return the task of this seed: one of the variants, with visible examples."""
        variants = self.variants
        return self.task(variants[derive_seed(seed, "parameters", self.name) % len(variants)], seed)

    def task(self, parameters: Parameters, seed: int) -> Task:
        """Return the task with these parameters; the seed draws its visible examples."""
        rng = random.Random(derive_seed(seed, "examples", self.name))
        helper = inspect.getsource(self.partial_credit)
        return Task(
            suite=self.suite,
            family=self.name,
            seed=seed,
            parameters=dict(parameters),
            brief=BRIEF.format(
                instruction=self.instruction(parameters),
                reply_format=REPLY_FORMAT,
                form=self.form,
                difference=self.difference,
                helper=helper,
            ),
            examples=tuple(self._distinct(parameters, self.world, rng, self.visible_examples)),
            offers=OFFERS,
            max_completion_tokens=self.max_completion_tokens,
        )

    def visible_items(self, task: Task, seed: int, count: int) -> list[Item]:
        """Return `count` distinct items of the kind that the brief shows."""
        rng = random.Random(derive_seed(seed, "visible", task.key))
        return self._distinct(task.parameters, self.world, rng, count)

    def hidden_items(self, task: Task, seed: int, count: int) -> list[Item]:
        """Return `count` distinct items; raise `ConfigError` where the hidden package is not installed."""
        rng = random.Random(derive_seed(seed, "hidden", task.key))
        return self._distinct(task.parameters, self.hidden_world(), rng, count)

    def hidden_world(self) -> World:
        """Return the world of the hidden benchmark; raise `ConfigError` where it is not installed."""
        try:
            module = importlib.import_module(f"{HIDDEN_PACKAGE}.{self.topic}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(HIDDEN_PACKAGE):
                raise
            raise ConfigError(
                f"the hidden benchmark of {self.name} is not installed here (no module {error.name}); "
                "draw hidden items where the whole distribution is installed, never in a sandbox or on a pod"
            ) from None
        world: World = module.WORLD
        return world

    def score(self, item: Item, reply: str) -> float:
        """Return 1.0 when the only answer block is right, else 0.0."""
        block = answer_block(reply)
        return float(block is not None and self.right(item, block))

    def gold_reply(self, item: Item) -> str:
        """Return a reply that scores 1."""
        return f"<answer>{self.gold(item)}</answer>"

    def reference_job(self, task: Task, student: str) -> Job:
        """Return the family's reference environment with LoRA settings that use the student's whole budget."""
        train = {
            "student": student,
            "learning_rate": LEARNING_RATE.get(student, 1e-4),
            "max_steps": task.offer(student).rollout_budget // BATCH_SIZE,
            "batch_size": BATCH_SIZE,
            "group_size": GROUP_SIZE,
            "max_completion_tokens": task.max_completion_tokens,
            "lora_rank": LORA_RANK,
            "lora_alpha": LORA_ALPHA,
        }
        environment = environment_text(self.topic, task.parameters, self.partial_credit)
        return Job({"environment.py": environment, "train.toml": tomli_w.dumps(train)})

    def _distinct(self, parameters: Parameters, world: World, rng: random.Random, count: int) -> list[Item]:
        found: dict[str, Item] = {}
        for _ in range(DRAWS_AN_ITEM * count):
            if len(found) == count:
                break
            item = self.item(parameters, world, rng)
            if item is not None:
                found.setdefault(item.prompt, item)
        if len(found) < count:
            raise ConfigError(f"{self.name} has fewer than {count} distinct items; ask for fewer")
        return list(found.values())


def split_words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """Return the parts of a word list, white space around each removed; separated by white space unless told."""
    return tuple(part.strip() for part in text.split(separator))
