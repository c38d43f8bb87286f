"""Reference jobs: they pass the gate's static checks, load under verifiers, and reward what the benchmark scores."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainwright.job.gate import check_static
from trainwright.suites.family import Item, Task
from trainwright.suites.qwen.base import QwenFamily
from trainwright.suites.qwen.countdown import Countdown
from trainwright.suites.qwen.transform import MEANING, Transform
from trainwright.suites.qwen.transform import apply as apply_rule

Family = QwenFamily[Any]


def tasks(family: Family) -> list[Task]:
    return [family.task(variant, 1) for variant in family.variants]


def load(family: Family, task: Task, folder: Path) -> ModuleType:
    """Return the reference job's environment.py as a module, as its text would be imported in the sandbox."""
    path = folder / "environment.py"
    path.write_text(family.reference_job(task, "qwen3-0.6b").files["environment.py"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"environment_{task.key.replace('-', '_').replace('.', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewards(module: ModuleType, item: Item, replies: Sequence[str]) -> list[float]:
    """Return what the job's own rewards give each reply to a row made of this item."""
    import verifiers.v1 as vf

    from trainwright.environment.scoring import Taskset

    class OneRow(module.Problems):  # type: ignore[misc, name-defined]
        def load(self) -> list[Any]:
            return [module.Problem(module.Data(idx=0, prompt=item.prompt, answer=item.answer), self.config.task)]

    taskset = Taskset(OneRow(vf.TasksetConfig(id="job")), 32_768)
    taskset.rows(1)
    found = [sum(score["parts"].values()) for score in taskset.score([(0, reply) for reply in replies])]
    taskset.close()
    return found


def test_the_job_passes_the_static_gate_and_uses_the_whole_budget(family: Family) -> None:
    for task in tasks(family):
        for offer in task.offers:
            job = family.reference_job(task, offer.student)
            settings = check_static(job, task)
            assert settings.student == offer.student
            assert settings.rollouts == offer.rollout_budget
            assert settings.max_completion_tokens == task.max_completion_tokens
            assert tomllib.loads(job.files["train.toml"])["student"] == offer.student


def test_the_job_is_complete_in_itself_and_knows_the_task(family: Family) -> None:
    for task in tasks(family):
        text = family.reference_job(task, "qwen3-0.6b").files["environment.py"]
        assert "trainwright" not in text
        assert text.count("def partial_credit(") == 1
        assert f"PARAMETERS = {dict(task.parameters)!r}\n" in text


def test_a_job_depends_on_the_task_not_on_its_seed(family: Family) -> None:
    hashes = {family.reference_job(family.task(v, seed), "qwen3-0.6b").hash for v in family.variants for seed in (1, 2)}
    assert len(hashes) == len(family.variants)


def test_a_student_that_is_not_offered_is_an_error(family: Family) -> None:
    with pytest.raises(KeyError, match="nano-64"):
        family.reference_job(family.draw(1), "nano-64")


def test_rows_are_varied_fit_the_family_and_are_not_hidden_items(family: Family, tmp_path: Path) -> None:
    import verifiers.v1 as vf

    for task in tasks(family):
        module = load(family, task, tmp_path)
        rows = list(module.Problems(vf.TasksetConfig(id="job")).take(800))
        prompts = {row.data.prompt for row in rows}
        assert len(prompts) > 0.97 * len(rows)
        hidden = family.hidden_items(task, 990_001, 800)
        assert not prompts & {item.prompt for item in hidden}
        assert all("Write the final result between <answer> and </answer>." in prompt for prompt in prompts)
        assert not any("{format}" in prompt or "{text}" in prompt for prompt in prompts)


def test_rewards_rank_replies_to_hidden_items_as_the_benchmark_does(family: Family, tmp_path: Path) -> None:
    for task in tasks(family):
        module = load(family, task, tmp_path)
        items = family.hidden_items(task, 5, 30)
        for item, other in zip(items, [*items[1:], items[0]], strict=True):
            wrong = [family.gold_reply(other), family.gold(item), item.prompt, "", "<answer></answer>"]
            wrong.append(family.gold_reply(item) * 2)
            wrong = [reply for reply in wrong if family.score(item, reply) == 0.0]
            best, *rest = rewards(module, item, [family.gold_reply(item), *wrong])
            assert best >= 0.999
            assert max(rest) < best - 0.3
            assert min(rest) >= 0.0


def solve(numbers: list[tuple[int, str]], target: int, operators: str) -> str | None:
    """Return an expression over all the numbers that is worth the target, by trying all with whole positive steps."""
    if len(numbers) == 1:
        return numbers[0][1] if numbers[0][0] == target else None
    for i, j in itertools.permutations(range(len(numbers)), 2):
        (a, left), (b, right) = numbers[i], numbers[j]
        rest = [pair for k, pair in enumerate(numbers) if k not in (i, j)]
        for operator in operators:
            if operator == "/" and (b == 0 or a % b):
                continue
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]
            found = solve([*rest, (value, f"({left} {operator} {right})")], target, operators) if value > 0 else None
            if found:
                return found
    return None


def test_the_problems_of_the_countdown_job_have_solutions(tmp_path: Path) -> None:
    import verifiers.v1 as vf

    family = Countdown()
    for task in tasks(family):
        module = load(family, task, tmp_path)
        for row in module.Problems(vf.TasksetConfig(id="job")).take(30):
            puzzle = json.loads(row.data.answer)
            puzzle["operators"] = str(task.parameters["operators"])
            solution = solve([(n, str(n)) for n in puzzle["numbers"]], puzzle["target"], puzzle["operators"])
            assert family.score(Item(row.data.prompt, json.dumps(puzzle)), f"<answer>{solution}</answer>") == 1.0


def test_the_rules_of_the_transform_job_are_the_rules_of_the_family(tmp_path: Path) -> None:
    family = Transform()
    module = load(family, family.draw(1), tmp_path)
    rng = random.Random(3)
    for rule in MEANING:
        for _ in range(50):
            text = " ".join("".join(rng.choices("abcdeiou", k=rng.randint(1, 7))) for _ in range(rng.randint(1, 3)))
            count = rng.randint(1, 4)
            assert module.apply(rule, text, count) == apply_rule(rule, text, count)


def test_the_countdown_job_pays_only_for_reaching_the_target(tmp_path: Path) -> None:
    family = Countdown()
    task = family.task({"operators": "+-*/"}, 1)
    module = load(family, task, tmp_path)
    item = Item(
        "Make 24.", json.dumps({"target": 24, "numbers": [3, 8, 8], "operators": "+-*/", "solution": "3 * (8 * 8)"})
    )
    right, near, far, unused, crash = rewards(
        module,
        item,
        [
            f"<answer>{text}</answer>"
            for text in ("8 * 8 / 3 + 24", "8 + 8 + 3", "8 * 8 * 3", "8 * 3", "8 / (8 - 8) * 3")
        ],
    )
    assert right < 0.3  # four numbers: not the given ones
    assert unused < far < near < 0.5
    assert crash <= near
