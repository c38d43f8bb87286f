"""The brief: what a task states and nothing else, in several tokens that tasks share."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from trainwright.agent.brief import EXAMPLE_CHARACTERS, FULL_BRIEF_TOKENS, compact_brief, full_brief
from trainwright.job.hyperparameters import hyperparameter_table
from trainwright.job.job import Job
from trainwright.suites.family import Item, family_named, suite_families


def text_of(family: str, seed: int) -> str:
    task = next(one for one in suite_families("nano") if one.name == family).draw(seed)
    (message,) = compact_brief(task)
    assert message["role"] == "user"
    return message["content"]


def test_the_brief_holds_instruction_examples_and_offers() -> None:
    for family in suite_families("nano"):
        task = family.draw(4)
        text = text_of(family.name, 4)
        assert task.brief in text
        for example in task.examples:
            assert f'"{example.prompt}" "{example.answer}"' in text
        for offer in task.offers:
            assert f'"{offer.student}" {offer.rollout_budget}' in text


def test_no_hidden_item_and_no_score_is_in_it() -> None:
    for family in suite_families("nano"):
        task = family.draw(4)
        text = text_of(family.name, 4)
        shown = {example.prompt for example in task.examples}
        for item in family.hidden_items(task, 7, 200):
            assert item.prompt in shown or item.prompt not in text


def test_tasks_of_a_family_share_most_of_their_tokens(tokenizer: Tokenizer) -> None:
    for family in suite_families("nano"):
        briefs = [tokenizer.encode(text_of(family.name, seed)).ids for seed in range(12)]
        assert len({tuple(brief) for brief in briefs}) > 1
        assert min(map(len, briefs)) >= 12  # no token stands for a task
        common = set(briefs[0]).intersection(*briefs[1:])
        assert len(common) >= 6


def test_what_differs_between_two_tasks_is_the_parameter(tokenizer: Tokenizer) -> None:
    low, high = (tokenizer.encode(f"words have 3 to {longest} letters").ids for longest in (4, 5))
    assert len(low) == len(high)
    assert sum(a != b for a, b in zip(low, high, strict=True)) == 1


# The full brief


def full_text(name: str, seed: int) -> str:
    (message,) = full_brief(family_named(name).draw(seed))
    assert message["role"] == "user"
    return message["content"]


FULL = [family.name for suite in ("nano", "qwen") for family in suite_families(suite)]


@pytest.mark.parametrize("name", FULL)
def test_the_full_brief_holds_the_task_and_the_whole_format(name: str) -> None:
    task, text = family_named(name).draw(4), full_text(name, 4)
    assert task.brief in text
    shown = [ast.literal_eval(line.partition(": ")[2]) for line in re.findall(r"^(?:prompt|answer): .*$", text, re.M)]
    assert shown == [part for item in task.examples for part in (item.prompt, item.answer)]
    for offer in task.offers:
        assert f"- `{offer.student}`: at most {offer.rollout_budget} rollouts" in text
    assert f"at most {task.max_completion_tokens} tokens" in text
    assert hyperparameter_table() in text
    for section in ("A complete job", "What is measured", "What is forbidden", "The gate"):
        assert f"## {section}\n" in text
    assert "import verifiers.v1 as vf" in Job.parse(text).files["environment.py"]


@pytest.mark.parametrize("name", FULL)
def test_the_full_brief_tells_no_hidden_item(name: str) -> None:
    family = family_named(name)
    task = family.draw(4)
    told = full_text(name, 4)
    shown = {example.prompt for example in task.examples}
    for item in family.hidden_items(task, 7, 100):
        assert item.prompt in shown or repr(item.prompt)[1:-1] not in told


def test_briefs_begin_alike_so_that_a_server_can_cache_them() -> None:
    one, other = full_text("sort", 1), full_text("qwen-triage", 2)
    assert one.index("# The task") == other.index("# The task")
    assert one[: one.index("# The task")] == other[: other.index("# The task")]
    assert one.index("# The task") > 9000


def test_long_examples_are_shown_as_far_as_there_is_room() -> None:
    task = family_named("sort").draw(0)
    for length, expected in ((10, 6), (EXAMPLE_CHARACTERS // 3, 2), (10 * EXAMPLE_CHARACTERS, 1)):
        items = tuple(Item(f"{number} {'x' * length}", "y") for number in range(6))
        (message,) = full_brief(dataclasses.replace(task, examples=items))
        assert message["content"].count("\nprompt: ") == expected


STAND_IN = re.compile(r" ?[A-Za-z]{1,8}|[0-9]|\s+| ?[^\sA-Za-z0-9]{1,3}")
"""Cuts full briefs into more pieces than Qwen's byte-pair encoding, by a tenth and more."""


@pytest.fixture(scope="module")
def count() -> Callable[[str], int]:
    """Return a function that counts tokens: of a real Qwen3 tokenizer where one can be had, else of the stand-in.

    `TRAINWRIGHT_QWEN3_TOKENIZER` names a folder or file; without it the hub's cache is asked, never the network.
    """
    path = os.environ.get("TRAINWRIGHT_QWEN3_TOKENIZER", "")
    if not path:
        from huggingface_hub import try_to_load_from_cache

        found = [try_to_load_from_cache(f"Qwen/Qwen3-{size}", "tokenizer.json") for size in ("0.6B", "1.7B", "8B")]
        path = next((place for place in found if isinstance(place, str)), "")
    if not path:
        print("no Qwen3 tokenizer here: counted by the stand-in")
        return lambda text: len(STAND_IN.findall(text))
    tokenizer = Tokenizer.from_file(path if path.endswith(".json") else os.path.join(path, "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


CHAT_TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", FULL)
def test_the_full_brief_stays_in_its_budget(name: str, count: Callable[[str], int]) -> None:
    assert max(count(CHAT_TEMPLATE.format(full_text(name, seed))) for seed in range(20)) <= FULL_BRIEF_TOKENS
