"""The six nano families: what a task states, what its items ask, and that no reply that ignores the content pays."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from oracle import answer_to

from trainwright.job.gate import check_static
from trainwright.students.nano import CONFIGS, NanoStudent
from trainwright.suites.family import Item, Task, suite_families
from trainwright.suites.nano.base import NanoFamily
from trainwright.suites.nano.warm_up import FAMILIES

ITEMS = 2000


def word_of(prompt: str) -> str:
    return prompt.rpartition(":")[2].removesuffix("=")


def tasks() -> Iterator[tuple[NanoFamily, Task]]:
    for family in FAMILIES:
        for parameters in family.variants():
            yield family, family.task(parameters, 0)


TASKS = list(tasks())
each_task = pytest.mark.parametrize(("family", "task"), TASKS, ids=[task.key for _, task in TASKS])
each_family = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])


def test_the_suite_is_these_six() -> None:
    assert {family.name for family in suite_families("nano")} == {family.name for family in FAMILIES}
    assert len(FAMILIES) == 6


@each_family
def test_a_seed_draws_the_same_task_and_seeds_differ(family: NanoFamily) -> None:
    assert family.draw(5) == family.draw(5)
    drawn = {family.draw(seed).key for seed in range(200)}
    assert drawn == {family.task(parameters, 0).key for parameters in family.variants()}
    assert len({family.draw(seed).examples for seed in range(20)}) > 10


@each_family
def test_tasks_with_equal_parameters_share_their_key(family: NanoFamily) -> None:
    first, second = (family.task(family.variants()[0], seed) for seed in (1, 2))
    assert first.key == second.key
    assert first.examples != second.examples


@each_task
def test_hidden_items_follow_task_and_seed(family: NanoFamily, task: Task) -> None:
    items = family.hidden_items(task, 3, 100)
    assert items == family.hidden_items(task, 3, 100)
    assert items[:10] == family.hidden_items(task, 3, 10)
    assert items != family.hidden_items(task, 4, 100)
    assert len({item.prompt for item in items}) > 20


@each_task
def test_answers_are_right_and_scored_exactly(family: NanoFamily, task: Task) -> None:
    for item in [*family.hidden_items(task, 3, 200), *task.examples]:
        assert item.answer == answer_to(item.prompt)
        assert family.score(item, item.answer) == 1.0
        for wrong in ("", item.answer + "a", " " + item.answer, item.answer[:-1], item.answer.upper() + "!"):
            assert family.score(item, wrong) == 0.0


@each_task
def test_the_reference_jobs_generator_asks_the_same_questions(family: NanoFamily, task: Task) -> None:
    code = compile(family.generator(task.parameters), "generator", "exec")
    theirs, ours = random.Random(9), random.Random(9)
    for _ in range(200):
        names: dict[str, object] = {"rng": theirs}
        exec(code, names)  # it is our own text
        assert Item(str(names["prompt"]), str(names["answer"])) == family.item(task.parameters, ours)


@each_task
def test_the_reference_job_is_within_its_budget_on_every_student(family: NanoFamily, task: Task) -> None:
    for offer in task.offers:
        hyperparameters = check_static(family.reference_job(task, offer.student), task)
        assert hyperparameters.student == offer.student
        assert hyperparameters.rollouts <= offer.rollout_budget
    assert len(task.offers) == 2


@each_task
def test_every_student_reads_the_prompts_and_can_write_the_answers(family: NanoFamily, task: Task) -> None:
    student = NanoStudent.untrained(next(iter(CONFIGS)), 0)
    for item in family.hidden_items(task, 3, 200):
        student.encode([{"role": "user", "content": item.prompt}])
        answer = student.encode([{"role": "user", "content": item.answer}])
        assert len(answer) <= task.max_completion_tokens  # the end token is one of them


@each_family
def test_the_brief_tells_every_two_tasks_apart(family: NanoFamily) -> None:
    briefs = [family.instruction(parameters) for parameters in family.variants()]
    assert len(set(briefs)) == len(briefs) > 1


@each_task
def test_the_brief_states_the_parameters(family: NanoFamily, task: Task) -> None:
    words = {"<": "up", ">": "down", "+": "+", "-": "-"}
    for name, value in task.parameters.items():
        if (family.name, name) == ("add", "digits"):
            assert f"from {'1 to 9' if value == 1 else '10 to 29'}," in task.brief
        else:
            assert words.get(str(value), str(value)) in task.brief


REPLIES: dict[str, Callable[[Item], str]] = {
    "nothing": lambda item: "",
    "the prompt": lambda item: item.prompt,
    "the prompt without its end": lambda item: item.prompt.removesuffix("="),
    "the word": lambda item: word_of(item.prompt),
    "the word's first letter": lambda item: word_of(item.prompt)[:1],
    "the word's length": lambda item: str(len(word_of(item.prompt))),
}


@each_task
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_replies_that_copy_score_at_most_chance(family: NanoFamily, task: Task, reply: Callable[[Item], str]) -> None:
    items = many_items(task.key)
    score = sum(family.score(item, reply(item)) for item in items) / ITEMS
    assert score <= allowed(family)


@each_task
def test_the_best_constant_scores_at_most_chance(family: NanoFamily, task: Task) -> None:
    items = many_items(task.key)
    ((_, count),) = Counter(item.answer for item in items).most_common(1)
    assert count / ITEMS <= allowed(family)


@functools.cache
def many_items(key: str) -> list[Item]:
    family, task = next((family, task) for family, task in TASKS if task.key == key)
    return family.hidden_items(task, 11, ITEMS)


def allowed(family: NanoFamily) -> float:
    """Return the family's chance and three standard errors of a score on `ITEMS` items."""
    return family.chance + 3 * math.sqrt(family.chance * (1 - family.chance) / ITEMS)


@each_family
def test_chance_is_no_higher_than_it_must_be(family: NanoFamily) -> None:
    best = 0.0
    for parameters in family.variants():
        items = many_items(family.task(parameters, 0).key)
        ((_, constant),) = Counter(item.answer for item in items).most_common(1)
        copied = [sum(reply(item) == item.answer for item in items) for reply in REPLIES.values()]
        best = max(best, constant / ITEMS, max(copied) / ITEMS)
    assert family.chance <= best + 0.1
