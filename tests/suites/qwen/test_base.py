"""What holds for every family of the suite: the protocol, the hidden package, the distance between the two worlds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from trainwright.suites.family import Item
from trainwright.suites.qwen.answers import REPLY_FORMAT
from trainwright.suites.qwen.base import OFFERS, QwenFamily

Family = QwenFamily[Any]


def cores(family: Family, item: Item) -> set[object]:
    """Return what an item asks about, whatever its wording: two items that share one of these are the same puzzle."""
    match family.topic:
        case "transform":
            lines = (line.split(": ", 1)[-1].removeprefix("> ") for line in item.prompt.splitlines())
            return {line for line in lines if line and line != REPLY_FORMAT}
        case "countdown":
            puzzle = json.loads(item.answer)
            return {(puzzle["target"], *sorted(puzzle["numbers"]))}
    return {item.answer}


def texts(value: object) -> Iterator[str]:
    """Yield every text in a world: words, names, templates."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from texts(inner)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if field.name not in ("type", "pairs"):  # types of values and names of rules are the task itself
                yield from texts(getattr(value, field.name))


def test_a_seed_gives_one_task_and_the_seeds_give_every_variant(family: Family) -> None:
    tasks = [family.draw(seed) for seed in range(40)]
    assert family.draw(3) == tasks[3]
    assert {json.dumps(dict(task.parameters)) for task in tasks} == {json.dumps(v) for v in family.variants}
    assert len({task.key for task in tasks}) == len(family.variants)
    assert len({task.examples for task in tasks}) == len(tasks)


def test_a_task_states_everything_the_agent_may_know(family: Family) -> None:
    for variant in family.variants:
        task = family.task(variant, 1)
        assert (task.suite, task.family, task.offers) == ("qwen", family.name, OFFERS)
        assert len(task.examples) == family.visible_examples
        for part in (REPLY_FORMAT, family.form, family.difference, "def partial_credit(answer: str, reply: str)"):
            assert part in task.brief
        for word in " ".join(map(str, variant.values())).split():
            assert word in family.instruction(variant) or len(family.instruction(variant)) > 100


def test_the_briefs_of_two_variants_differ(family: Family) -> None:
    assert len({family.task(variant, 1).brief for variant in family.variants}) == len(family.variants)


def test_hidden_items_follow_task_and_seed(family: Family) -> None:
    task = family.draw(1)
    items = family.hidden_items(task, 5, 30)
    assert items == family.hidden_items(task, 5, 30)
    assert items[:10] == family.hidden_items(task, 5, 10)
    assert not {item.prompt for item in items} & {item.prompt for item in family.hidden_items(task, 6, 30)}
    same_parameters = dataclasses.replace(task, seed=99)
    assert items == family.hidden_items(same_parameters, 5, 30)


def test_the_gold_reply_is_right_and_fits_the_limit(family: Family) -> None:
    for variant in family.variants:
        task = family.task(variant, 2)
        for item in [*task.examples, *family.hidden_items(task, 3, 200)]:
            reply = family.gold_reply(item)
            assert family.score(item, reply) == 1.0
            assert family.score(item, f"I think so.\n\n{reply}\n") == 1.0
            assert len(reply) < 2.2 * task.max_completion_tokens  # no tokenizer makes fewer than 2.2 characters a token


def test_a_prompt_says_how_to_answer(family: Family) -> None:
    for variant in family.variants:
        task = family.task(variant, 2)
        for item in [*task.examples, *family.hidden_items(task, 3, 100)]:
            assert item.prompt.count(REPLY_FORMAT) == 1
            assert "{" not in item.prompt.replace("{...}", "") or family.topic == "tools"


def test_partial_credit_is_highest_for_a_right_reply(family: Family) -> None:
    task = family.draw(4)
    items = family.hidden_items(task, 1, 60)
    for item, other in itertools.pairwise(items):
        best = family.partial_credit(item.answer, family.gold_reply(item))
        for reply in ("", "no idea", family.gold(item), item.prompt, "<answer></answer>", family.gold_reply(other)):
            assert 0.0 <= family.partial_credit(item.answer, reply) < best <= 1.0


def test_visible_draws_do_not_hit_hidden_items(family: Family) -> None:
    """At most 0.1 % of 800, so none: neither the prompt nor the puzzle behind it."""
    for variant in family.variants:
        task = family.task(variant, 1)
        hidden = family.hidden_items(task, 990_001, 800)
        visible = family.visible_items(task, 11, 4000)
        prompts = {item.prompt for item in visible}
        puzzles = set().union(*(cores(family, item) for item in visible))
        hits = sum(item.prompt in prompts or bool(cores(family, item) & puzzles) for item in hidden)
        assert hits <= 0.001 * len(hidden)


def test_hidden_items_of_other_seeds_are_other_items(family: Family) -> None:
    for variant in family.variants:
        task = family.task(variant, 1)
        one, other = ({item.prompt for item in family.hidden_items(task, seed, 800)} for seed in (1, 2))
        assert len(one & other) <= 0.001 * 800


def test_the_two_worlds_share_no_words_and_no_templates(family: Family) -> None:
    assert not set(texts(family.world)) & set(texts(family.hidden_world()))


def test_a_constant_answer_scores_below_five_percent(family: Family) -> None:
    for variant in family.variants:
        items = family.hidden_items(family.task(variant, 1), 7, 800)
        ((commonest, _),) = Counter(family.gold(item) for item in items).most_common(1)
        assert sum(family.score(item, f"<answer>{commonest}</answer>") for item in items) < 0.05 * len(items)


WITHOUT_HIDDEN = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "trainwright_hidden":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from trainwright.errors import ConfigError
from trainwright.suites.qwen.FAMILY import CLASS
family = CLASS()
task = family.draw(1)
job = family.reference_job(task, "qwen3-0.6b")
item = task.examples[0]
assert family.score(item, family.gold_reply(item)) == 1.0
try:
    family.hidden_items(task, 1, 1)
except ConfigError as error:
    assert "is not installed here" in str(error), error
    assert not any(name.startswith(("trainwright_hidden", "torch", "verifiers")) for name in sys.modules)
else:
    raise SystemExit("hidden items without the hidden package")
"""


def test_everything_but_hidden_items_works_without_the_hidden_package(family: Family) -> None:
    program = WITHOUT_HIDDEN.replace("FAMILY", family.topic).replace("CLASS", type(family).__name__)
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_broken_hidden_package_is_not_called_absent(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    class NeedsNumpy:
        """A finder of a hidden package that itself misses something."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("trainwright_hidden."):
                raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.delitem(sys.modules, f"trainwright_hidden.{family.topic}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NeedsNumpy(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        family.hidden_items(family.draw(1), 1, 1)
