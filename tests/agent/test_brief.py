"""The brief: what a task states and nothing else, in several tokens that tasks share."""

from __future__ import annotations

from tokenizers import Tokenizer

from trainwright.agent.brief import compact_brief
from trainwright.suites.family import suite_families


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
