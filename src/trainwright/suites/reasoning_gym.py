"""reasoning-gym's datasets as families `rg-<dataset>`: an optional extra, for more tasks and for testing adapters.

The only module that touches reasoning-gym; checked against 0.1.25 (factory.py, dataset.py and every `score_answer`).
Three properties of that version shape it:

- Entry `i` of seed `s` is drawn from `Random(s + i)`, so near seeds give the same entries, shifted. Seeds are therefore
  the starts of blocks, even blocks for what is visible and odd ones for what is hidden.
- Some item spaces are small: other seeds give the same items. `overlap` measures it, and a family above 1 % refuses
  claims.
- Some scorers run the reply as Python (`eval`, or sympy's parser, which uses it). Replies come from a model that an
  untrusted job trained, so these scorers are never called: where the answer is unique exact match replaces them, and
  the other datasets are refused.

`python -m trainwright.suites.reasoning_gym DATASET ...` prints the measured overlaps.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

import tomli_w

from trainwright.errors import ConfigError
from trainwright.job.job import Job
from trainwright.seeds import derive_seed
from trainwright.suites.family import Item, Offer, Task
from trainwright.suites.qwen.answers import REPLY_FORMAT, answer_block

VERSION = "0.1.25"
PREFIX = "rg-"
BLOCK = 2**14
BLOCKS = 2**16
VISIBLE, HIDDEN = 0, 1

EXACT_ONLY = frozenset({"binary_matrix", "polynomial_multiplication", "spiral_matrix", "string_insertion"})
"""Datasets whose scorer runs the reply, and whose one right answer can be compared instead."""
REFUSED = {
    **dict.fromkeys(
        ("countdown", "intermediate_integration", "n_queens", "puzzle24", "simple_integration"),
        "its answers are not unique, and its scorer runs replies as code",
    ),
    "composite": "it is a mixture of datasets; name one of them",
}

OFFERS = (Offer("qwen3-0.6b", 12_800), Offer("qwen3-1.7b", 6_400))
MAX_COMPLETION_TOKENS = 256
VISIBLE_EXAMPLES = 5
REFERENCE_ROWS = 400
DATASET_BYTES = 4_000_000

OVERLAP_HIDDEN, OVERLAP_VISIBLE = 800, 4000
OVERLAP_LIMIT = 0.01

BRIEF = """\
Answer the questions of reasoning-gym's dataset {dataset}.

Reply format: {reply_format} The block is graded, the text around it is not; a reply with two blocks is wrong.

Score: 1 when the block is right, else 0. The student answers in one turn, without a system prompt and with thinking \
off. The hidden benchmark has other questions from the same generator."""

ENVIRONMENT = """\
import difflib
import json
import pathlib

import verifiers.v1 as vf


def block(reply: str) -> str:
    if reply.count("<answer>") != 1 or reply.count("</answer>") != 1:
        return ""
    return reply.partition("<answer>")[2].partition("</answer>")[0].strip()


class Data(vf.TaskData):
    answer: str


class Problem(vf.Task[Data]):
    @vf.reward(weight=0.7)
    async def exact(self, trace: vf.Trace) -> float:
        return float(block(trace.last_reply) == self.data.answer)

    @vf.reward(weight=0.3)
    async def close(self, trace: vf.Trace) -> float:
        given = block(trace.last_reply)[:1000]
        return 0.1 * bool(given) + 0.9 * difflib.SequenceMatcher(None, given, self.data.answer[:1000]).ratio()


class Problems(vf.Taskset[Problem, vf.TasksetConfig]):
    def load(self):
        lines = pathlib.Path(__file__).with_name("dataset.jsonl").read_text(encoding="utf-8").splitlines()
        for idx, line in enumerate(lines):
            yield Problem(Data(idx=idx, **json.loads(line)), self.config.task)


__all__ = ["Problems"]
"""


@dataclass(frozen=True)
class Overlap:
    """How many of `hidden` items of one seed also occur among `visible` items of another."""

    dataset: str
    hits: int
    hidden: int
    visible: int

    @property
    def share(self) -> float:
        """Return the share of hidden items that occur among the visible ones."""
        return self.hits / self.hidden

    def __str__(self) -> str:
        return (
            f"{self.dataset}: {self.share:.1%} of {self.hidden} hidden items occur among {self.visible} visible draws "
            f"({'claims refused' if self.share > OVERLAP_LIMIT else 'claims allowed'})"
        )


class ReasoningGymFamily:
    """One dataset of reasoning-gym with its default configuration, as a family.

    An item's answer is JSON: the expected answer (null where the dataset only checks), and the seed and index from
    which the entry is drawn again for scoring.
    """

    suite = "reasoning-gym"

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.name = PREFIX + dataset

    def draw(self, seed: int) -> Task:
        """Return the dataset's one task, with the visible examples of this seed."""
        return Task(
            suite=self.suite,
            family=self.name,
            seed=seed,
            parameters={"dataset": self.dataset, "version": VERSION},
            brief=BRIEF.format(dataset=self.dataset, reply_format=REPLY_FORMAT),
            examples=tuple(self._distinct(VISIBLE, derive_seed(seed, "examples", self.name), VISIBLE_EXAMPLES)),
            offers=OFFERS,
            max_completion_tokens=MAX_COMPLETION_TOKENS,
        )

    def hidden_items(self, task: Task, seed: int, count: int) -> list[Item]:
        """Return `count` distinct items of a hidden block; raise `ConfigError` when a block has fewer."""
        return self._distinct(HIDDEN, derive_seed(seed, "hidden", self.name), count)

    def items(self, kind: int, seed: int) -> Iterator[Item]:
        """Yield the items of the visible or hidden block that a seed selects; duplicates and all."""
        start = (seed % BLOCKS * 2 + kind) * BLOCK
        for index in range(BLOCK):
            entry = _entry(self.dataset, start, index)
            answer = {"answer": entry["answer"], "seed": start, "index": index}
            yield Item(f"{entry['question'].strip()}\n\n{REPLY_FORMAT}", json.dumps(answer))

    def score(self, item: Item, reply: str) -> float:
        """Return 1.0 when the only answer block is exactly right, or fully right for the dataset's own scorer."""
        block = answer_block(reply)
        if not block:
            return 0.0
        wanted = json.loads(item.answer)
        if block == wanted["answer"]:
            return 1.0
        if self.dataset in EXACT_ONLY:
            return 0.0
        entry = _entry(self.dataset, wanted["seed"], wanted["index"])
        try:
            return float(_dataset(self.dataset, wanted["seed"]).score_answer(block, entry) >= 1.0)
        except Exception:  # scorers of 0.1.25 raise on replies that they did not expect
            return 0.0

    def reference_job(self, task: Task, student: str) -> Job:
        """Return exact match with similarity as partial credit, on visible entries shipped as `dataset.jsonl`.

        Raises `ConfigError` for a dataset that only checks replies and names no answer.
        """
        lines: list[str] = []
        room = DATASET_BYTES
        for item in self.items(VISIBLE, derive_seed("reference", self.name)):
            answer = json.loads(item.answer)["answer"]
            if answer is None:
                raise ConfigError(f"{self.name} has no reference job: its entries name no answer to compare with")
            line = json.dumps({"prompt": item.prompt, "answer": answer})
            room -= len(line) + 1
            if room < 0 or len(lines) == REFERENCE_ROWS:
                break
            lines.append(line)
        train = {
            "student": student,
            "learning_rate": 1e-4,
            "max_steps": task.offer(student).rollout_budget // 128,
            "batch_size": 128,
            "group_size": 16,
        }
        files = {
            "environment.py": ENVIRONMENT,
            "dataset.jsonl": "\n".join(lines) + "\n",
            "train.toml": tomli_w.dumps(train),
        }
        return Job(files)

    def check_claims(self) -> None:
        """Raise `ConfigError` when more than 1 % of hidden items occur among visible draws; measures it first."""
        found = overlap(self.dataset)
        if found.share > OVERLAP_LIMIT:
            raise ConfigError(f"{self.name} can't support a claim: {found}; the limit is {OVERLAP_LIMIT:.0%}")

    def _distinct(self, kind: int, seed: int, count: int) -> list[Item]:
        found: dict[str, Item] = {}
        for item in self.items(kind, seed):
            if len(found) == count:
                break
            found.setdefault(item.prompt, item)
        if len(found) < count:
            raise ConfigError(f"{self.name} has only {len(found)} distinct items in {BLOCK} draws; ask for fewer")
        return list(found.values())


def family(name: str) -> ReasoningGymFamily:
    """Return the family `rg-<dataset>`; raise `ConfigError` when the extra, its version or the dataset is not there."""
    dataset = name.removeprefix(PREFIX)
    known = datasets()
    if dataset not in known:
        raise ConfigError(f"reasoning-gym {VERSION} has no dataset {dataset!r}; known: {', '.join(known)}")
    if dataset in REFUSED:
        raise ConfigError(f"reasoning-gym's {dataset} can't be a family: {REFUSED[dataset]}")
    return ReasoningGymFamily(dataset)


def datasets() -> list[str]:
    """Return the names of all datasets; raise `ConfigError` when reasoning-gym is not installed in its version."""
    return sorted(_package().DATASETS)


@cache
def overlap(dataset: str) -> Overlap:
    """Measure how many hidden items of one seed occur among visible items of another. Minutes for slow generators."""
    measured = family(PREFIX + dataset)
    visible = {item.prompt for item in islice(measured.items(VISIBLE, 11), OVERLAP_VISIBLE)}
    hidden = [item.prompt for item in islice(measured.items(HIDDEN, 990_001), OVERLAP_HIDDEN)]
    return Overlap(dataset, sum(prompt in visible for prompt in hidden), OVERLAP_HIDDEN, OVERLAP_VISIBLE)


@cache
def _package() -> Any:
    try:
        found = version("reasoning-gym")
    except PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise ConfigError(
            f"the families {PREFIX}* need reasoning-gym {VERSION}, found {found}; "
            "install the extra: pip install 'trainwright[reasoning-gym]'"
        )
    importlib.import_module("reasoning_gym")
    return importlib.import_module("reasoning_gym.factory")


@lru_cache(maxsize=16)
def _dataset(name: str, seed: int) -> Any:
    return _package().create_dataset(name, seed=seed, size=BLOCK)


@lru_cache(maxsize=8192)
def _entry(name: str, seed: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(name, seed)[index]
    return entry


def main(names: Sequence[str]) -> None:
    """Print the measured overlap of each dataset named, or of every one that can be a family."""
    for name in names or [name for name in datasets() if name not in REFUSED]:
        print(overlap(name.removeprefix(PREFIX)), flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
