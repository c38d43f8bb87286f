"""What a base student has seen: every family, wider than any task, most answers one edit away from right."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from trainwright.students.nano import CONFIGS, NanoStudent
from trainwright.suites.nano.warm_up import CORRUPTED, FAMILIES, corrupt, warm_up_item, wide_parameters


def edits(one: str, other: str) -> int:
    """Return the optimal string alignment distance: substitutions, drops, insertions and swaps of neighbours."""
    table = {(-1, -1): 0}
    for i in range(len(one)):
        table[i, -1] = i + 1
    for j in range(len(other)):
        table[-1, j] = j + 1
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b))
            if i and j and a == other[j - 1] and one[i - 1] == b:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(one) - 1, len(other) - 1]


@given(st.text("abcdefghij", min_size=1, max_size=8) | st.text("0123456789", min_size=1, max_size=3), st.integers())
def test_a_corrupted_answer_is_one_edit_away_and_never_empty(answer: str, seed: int) -> None:
    corrupted = corrupt(answer, random.Random(seed))
    assert corrupted
    assert edits(answer, corrupted) <= 1
    assert corrupted.isdigit() == answer.isdigit()


def test_each_kind_of_edit_occurs() -> None:
    rng = random.Random(0)
    found = [corrupt("abcd", rng) for _ in range(400)]
    assert {len(text) for text in found} == {3, 4, 5}
    assert any(sorted(text) == list("abcd") and text != "abcd" for text in found)


def test_most_labels_are_wrong_and_the_right_one_is_the_most_likely() -> None:
    rng = random.Random(0)
    item = FAMILIES[0].item(wide_parameters(FAMILIES[0].name, rng), rng)
    labels = [corrupt(item.answer, rng) if rng.random() < CORRUPTED else item.answer for _ in range(4000)]
    right = labels.count(item.answer) / len(labels)
    assert 1 - CORRUPTED - 0.03 < right < 1 - CORRUPTED + 0.15  # an edit may change nothing
    assert max(set(labels), key=labels.count) == item.answer


def test_items_of_every_family_that_students_read() -> None:
    rng = random.Random(0)
    items = [warm_up_item(rng) for _ in range(600)]
    assert {item.prompt[:3] for item in items} == {"rev", "shf", "srt", "unq", "cnt", "add"}
    student = NanoStudent.untrained(next(iter(CONFIGS)), 0)
    for item in items:
        student.encode([{"role": "user", "content": item.prompt}])
        student.encode([{"role": "user", "content": item.answer}])


def shape(prompt: str) -> str:
    """Return the prompt with letters and digits of its content blanked: `shf+2:abc=` gives `shf+2:xxx=`."""
    verb, separator, content = prompt.partition(" " if prompt.startswith("cnt") else ":")
    return verb + separator + re.sub(r"[0-9]", "0", re.sub(r"[a-z]", "x", content))


def test_every_item_of_every_task_is_of_a_kind_that_was_seen() -> None:
    rng = random.Random(0)
    seen = [warm_up_item(rng).prompt for _ in range(4000)]
    shapes, letters = {shape(prompt) for prompt in seen}, {letter for prompt in seen for letter in prompt}
    for family in FAMILIES:
        for parameters in family.variants():
            for item in family.hidden_items(family.task(parameters, 0), 1, 50):
                assert shape(item.prompt) in shapes
                assert set(item.prompt) <= letters
