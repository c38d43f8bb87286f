"""The reasoning-gym adapter. What needs the extra skips where it is not installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import ConfigError
from trainwright.job.gate import check_static
from trainwright.suites import reasoning_gym as adapter
from trainwright.suites.family import Item, check_claims
from trainwright.suites.reasoning_gym import HIDDEN, VERSION, VISIBLE, Overlap, ReasoningGymFamily, family

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the extra [reasoning-gym] is not installed"
)
QUICK = ("letter_counting", "chain_sum", "word_sorting", "graph_color", "string_insertion", "simple_equations")


class FakeDataset:
    """A stand-in for a dataset: entry i of seed s depends on s + i alone, and the scorer is generous."""

    def __init__(self, seed: int, space: int) -> None:
        self.seed, self.space = seed, space

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = (self.seed + index) * 7919 % self.space
        return {"question": f"Say {number}.", "answer": str(number), "metadata": {}}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        if answer == "crash":
            raise KeyError(answer)
        return 1.0 if answer.strip("+") == entry["answer"] else 0.5


class FakePackage:
    """A stand-in for `reasoning_gym.factory` with datasets whose item spaces are 100 and ten million."""

    DATASETS: dict[str, object] = dict.fromkeys(("small", "large", "composite", "countdown", "spiral_matrix"), object())

    def create_dataset(self, name: str, seed: int, size: int) -> FakeDataset:
        return FakeDataset(seed, 100 if name == "small" else 10**7)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (adapter._dataset, adapter._entry, adapter.overlap):
        cached.cache_clear()
    monkeypatch.setattr(adapter, "_package", FakePackage)


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "VERSION", "0.0.0")
    adapter._package.cache_clear()
    with pytest.raises(ConfigError, match=r"need reasoning-gym 0\.0\.0.*pip install 'trainwright\[reasoning-gym\]'"):
        family("rg-chain_sum")
    adapter._package.cache_clear()


@pytest.mark.usefixtures("fake")
def test_unknown_and_unsafe_datasets_are_refused() -> None:
    with pytest.raises(ConfigError, match="no dataset 'tiny'; known: composite, countdown, large"):
        family("rg-tiny")
    with pytest.raises(ConfigError, match="runs replies as code"):
        family("rg-countdown")
    with pytest.raises(ConfigError, match="name one of them"):
        family("rg-composite")


@pytest.mark.usefixtures("fake")
def test_visible_and_hidden_blocks_never_share_an_entry() -> None:
    large = family("rg-large")
    for seed in (0, 1, 2**16, 2**62):
        starts = [json.loads(next(large.items(kind, seed)).answer)["seed"] for kind in (VISIBLE, HIDDEN)]
        assert starts[1] - starts[0] == adapter.BLOCK
        assert starts[0] % (2 * adapter.BLOCK) == 0
        assert starts[1] + adapter.BLOCK <= 2**31


@pytest.mark.usefixtures("fake")
def test_a_small_item_space_refuses_claims_and_a_large_one_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"rg-small can't support a claim: small: 100\.0% of 800 hidden items"):
        check_claims(family("rg-small"))
    check_claims(family("rg-large"))
    adapter.main(["small", "rg-large"])
    small, large = capsys.readouterr().out.splitlines()
    assert small.endswith("(claims refused)")
    assert large.endswith("(claims allowed)")


def test_exactly_one_percent_is_allowed() -> None:
    assert str(Overlap("x", 8, 800, 4000)).endswith(
        "1.0% of 800 hidden items occur among 4000 visible draws (claims allowed)"
    )
    assert str(Overlap("x", 9, 800, 4000)).endswith("(claims refused)")


@pytest.mark.usefixtures("fake")
def test_only_a_right_block_scores() -> None:
    large = family("rg-large")
    item = large.hidden_items(large.draw(1), 1, 1)[0]
    right = json.loads(item.answer)["answer"]
    assert large.score(item, f"<answer>{right}</answer>") == 1.0
    assert large.score(item, f"<answer>+{right}</answer>") == 1.0
    for reply in (right, "", "<answer></answer>", f"<answer>{right}</answer>" * 2, f"<answer>{right}0</answer>"):
        assert large.score(item, reply) == 0.0
    assert large.score(item, "<answer>crash</answer>") == 0.0


@pytest.mark.usefixtures("fake")
def test_a_scorer_that_runs_replies_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: FakeDataset, answer: str, entry: dict[str, Any]) -> float:
        raise SystemExit("the reply was run")

    monkeypatch.setattr(FakeDataset, "score_answer", run)
    spiral = family("rg-spiral_matrix")
    item = spiral.hidden_items(spiral.draw(1), 1, 1)[0]
    assert spiral.score(item, "<answer>exit()</answer>") == 0.0
    assert spiral.score(item, f"<answer>{json.loads(item.answer)['answer']}</answer>") == 1.0


@pytest.mark.usefixtures("fake")
def test_too_many_items_are_an_error() -> None:
    small = family("rg-small")
    assert len({item.prompt for item in small.hidden_items(small.draw(1), 1, 100)}) == 100
    with pytest.raises(ConfigError, match="has only 100 distinct items"):
        small.hidden_items(small.draw(1), 1, 101)


@pytest.mark.usefixtures("fake")
def test_the_reference_job_ships_visible_entries(tmp_path: Path) -> None:
    large = family("rg-large")
    task = large.draw(1)
    for offer in task.offers:
        job = large.reference_job(task, offer.student)
        assert check_static(job, task).rollouts == offer.rollout_budget
    rows = [json.loads(line) for line in job.files["dataset.jsonl"].splitlines()]
    assert len(rows) == adapter.REFERENCE_ROWS
    assert not {row["prompt"] for row in rows} & {item.prompt for item in large.hidden_items(task, 1, 200)}
    assert large.reference_job(large.draw(2), "qwen3-0.6b") == large.reference_job(task, "qwen3-0.6b")

    for name in ("environment.py", "dataset.jsonl"):
        (tmp_path / name).write_text(job.files[name], encoding="utf-8")
    program = (
        "import environment as e, verifiers.v1 as vf; from trainwright.environment.scoring import Taskset;"
        "t = Taskset(e.Problems(vf.TasksetConfig(id='job')), 32768); t.rows(1);"
        f"r = t.score([(0, '<answer>{rows[0]['answer']}</answer>'), (0, '<answer>x</answer>'), (0, '')]);"
        "print(*(sum(one['parts'].values()) for one in r))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    right, wrong, empty = map(float, run.stdout.split())
    assert right == pytest.approx(1.0)
    assert wrong < 0.5
    assert empty == 0.0


@needs_extra
@pytest.mark.parametrize("dataset", QUICK)
def test_real_datasets_are_families(dataset: str) -> None:
    for cached in (adapter._package, adapter._dataset, adapter._entry):
        cached.cache_clear()
    real = family(f"rg-{dataset}")
    task = real.draw(3)
    assert task == real.draw(3)
    items = real.hidden_items(task, 5, 20)
    assert items == real.hidden_items(task, 5, 20)
    for item in items:
        answer = json.loads(item.answer)["answer"]
        if answer is not None:
            assert real.score(item, f"So: <answer>{answer}</answer>") == 1.0
        for reply in ("", "<answer>I don't know</answer>", "<answer>__import__('os').abort()</answer>"):
            assert real.score(item, reply) == 0.0
        assert real.score(item, f"<answer>{answer}</answer><answer>{answer}</answer>") == 0.0


@needs_extra
def test_a_dataset_without_answers_has_no_reference_job() -> None:
    graph = family("rg-graph_color")
    with pytest.raises(ConfigError, match="name no answer"):
        graph.reference_job(graph.draw(1), "qwen3-0.6b")


@needs_extra
def test_the_known_overlap_of_chain_sum_is_measured_and_refused() -> None:
    """Measured with version 0.1.25: about 3 % (24 of 800), while letter_counting has about 0.5 %."""
    adapter.overlap.cache_clear()
    assert 0.015 < adapter.overlap("chain_sum").share < 0.06
    with pytest.raises(ConfigError, match="rg-chain_sum can't support a claim"):
        check_claims(family("rg-chain_sum"))


@needs_extra
def test_every_dataset_is_a_family_or_refused_with_a_reason() -> None:
    names = adapter.datasets()
    assert set(adapter.REFUSED) | adapter.EXACT_ONLY <= set(names)
    for name in names:
        if name in adapter.REFUSED:
            with pytest.raises(ConfigError, match="can't be a family"):
                family(f"rg-{name}")
        else:
            assert isinstance(family(f"rg-{name}"), ReasoningGymFamily)


def test_an_item_names_its_entry() -> None:
    """The answer of an item is data for scoring, so it must hold all that scoring needs."""
    assert VERSION == "0.1.25"
    item = Item("q", json.dumps({"answer": "4", "seed": 0, "index": 3}))
    assert ReasoningGymFamily("letter_counting").score(item, "<answer>4</answer>") == 1.0
