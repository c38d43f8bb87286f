"""The agent on Tinker against a fake server, through the real SDK: sampling, updates, checkpoints, and the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the extra 'tinker'")

from fake_tinker import FakeTinker
from tinker_agent import BRIEFS, END, GOOD, LOOP, close, make_policy, rated, sample, step, update

from trainwright.agent.policy import Completion, Example
from trainwright.errors import ConfigError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with FakeTinker() as server:
        yield server


def test_answers_come_with_tokens_logprobs_and_text(fake: FakeTinker) -> None:
    answers = sample(make_policy(fake))
    assert len(answers) == 8
    for answer in answers:
        assert answer.prompt_tokens[-1] == END
        assert len(answer.tokens) == len(answer.logprobs) <= 24
        assert answer.finished == (answer.tokens[-1] == END)
        assert answer.text == "".join(map(chr, answer.tokens[:-1] if answer.finished else answer.tokens))
    assert len({tuple(answer.tokens) for answer in answers}) == 8
    assert [answer.prompt_tokens for answer in answers[:4]] == [answers[0].prompt_tokens] * 4


def test_equal_conversations_are_one_request_and_seeds_matter(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    first = sample(policy, seed=1)
    asked = fake.count("asample")
    again = sample(policy, seed=1)
    assert fake.count("asample") - asked == 2
    assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
    assert [answer.tokens for answer in sample(policy, seed=2)] != [answer.tokens for answer in first]


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_what_pays_becomes_likelier(fake: FakeTinker, loss: str) -> None:
    policy = make_policy(fake, loss=loss)
    fake.script = lambda number: [GOOD if number % 2 else 50, 60, 70, END]
    for _ in range(4):
        step(policy)
    learnt = fake.state(policy.state.path).logprobs
    assert learnt[GOOD] > learnt[60] > learnt[50]


def test_an_update_is_one_batch_and_one_saved_state(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    metrics = step(policy)
    assert metrics["logprob_mismatch_max"] < 1e-5
    assert metrics["grad_norm"] > 0
    assert metrics["entropy"] == pytest.approx(np.log(300), rel=0.01)
    first = fake.state(policy.state.path).lineage
    step(policy, seed=2)
    second = fake.state(policy.state.path).lineage
    assert len(first) == 1
    assert second[:1] == first
    assert len(second) == 2
    assert policy.state.steps == 2


def test_substeps_cut_the_batch(fake: FakeTinker) -> None:
    policy = make_policy(fake, num_substeps=3, loss="ppo")
    step(policy)
    assert len(fake.state(policy.state.path).lineage) == 3
    assert policy.state.steps == 3


def test_the_sampler_has_the_new_weights(fake: FakeTinker) -> None:
    policy = make_policy(fake, learning_rate=1.0)
    fake.script = lambda number: [GOOD if number % 2 else 50, END]
    step(policy)
    answers = sample(policy)
    assert answers[0].logprobs == pytest.approx(fake.state(policy.state.path).logprobs[answers[0].tokens], abs=1e-5)


def test_answers_without_tokens_teach_nothing(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    assert update(policy, [Example(Completion("empty"), 1.0)]) == {}
    assert fake.calls == []


def test_an_answer_is_cut_to_the_models_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    with FakeTinker(context=32) as fake:
        answers = sample(make_policy(fake))
        assert {len(answer.prompt_tokens) for answer in answers[:4]} == {11}
        assert max(len(answer.tokens) for answer in answers[:4]) <= 21
        assert answers[4] == Completion("", finished=False)


def test_answers_can_be_sampled_while_the_policy_updates(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    examples = rated(sample(policy))

    async def both() -> list[Completion]:
        updating = asyncio.create_task(policy.update(examples))
        while not fake.count("optim_step"):
            await asyncio.sleep(0.01)
        answers = await policy.sample(BRIEFS, 2)
        assert not updating.done()
        fake.faults.remove(fault)
        await updating
        return answers

    fault = fake.inject("save_weights", 503, times=10_000)
    assert {answer.weights for answer in LOOP.run(both())} == {0}
    assert {answer.weights for answer in sample(policy)} == {1}
    metrics = update(policy, examples)
    assert metrics["stale_share"] == 1.0
    assert "logprob_mismatch" not in metrics


# Cost


def test_cost_counts_a_shared_prompt_once(fake: FakeTinker) -> None:
    policy = make_policy(fake, price={"prefill": 1.0, "cached": 0.1, "sample": 10.0, "train": 100.0})
    answers = sample(policy)
    prompts = [answers[0].prompt_tokens, answers[4].prompt_tokens]
    prefill, sampled = sum(map(len, prompts)), sum(len(answer.tokens) for answer in answers)
    expected = (prefill + 0.1 * 3 * prefill + 10.0 * sampled) / 1e6
    assert sum(answer.usd for answer in answers) == pytest.approx(expected)
    metrics = update(policy, rated(answers))
    trained = sum(len(answer.prompt_tokens) + len(answer.tokens) - 1 for answer in answers)
    assert (metrics["tokens_prefill"], metrics["tokens_cached"]) == (prefill, 3 * prefill)
    assert (metrics["tokens_sample"], metrics["tokens_train"]) == (sampled, trained)
    assert metrics["usd"] == pytest.approx(100 * trained / 1e6)
    assert update(policy, rated(answers))["tokens_sample"] == 0


def test_a_model_without_a_price_costs_tokens_only(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    metrics = step(policy)
    assert metrics["usd"] == 0.0
    assert metrics["tokens_train"] > 0


# Checkpoints


def test_a_checkpoint_is_a_small_file_that_continues(fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake)
    step(policy)
    policy.save(tmp_path / "step-0001")
    table = json.loads((tmp_path / "step-0001" / "tinker.json").read_text())
    assert table["path"] == policy.state.path
    assert table["expires"] == pytest.approx(table["expires"])
    assert [path.name for path in (tmp_path / "step-0001").iterdir()] == ["tinker.json"]
    step(policy, seed=2)

    other = make_policy(fake)
    other.load(tmp_path / "step-0001")
    step(other, seed=2)
    here, there = fake.state(policy.state.path), fake.state(other.state.path)
    assert here.lineage == there.lineage
    assert np.array_equal(here.logits, there.logits)


def test_a_checkpoint_before_the_first_update_is_the_start(fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake)
    policy.save(tmp_path / "step-0001")
    step(policy)
    policy.load(tmp_path / "step-0001")
    step(policy)
    assert len(fake.state(policy.state.path).lineage) == 1


def test_a_run_can_start_from_weights(fake: FakeTinker) -> None:
    policy = make_policy(fake)
    step(policy)
    other = make_policy(fake, start_from=policy.state.path)
    step(other, seed=2)
    started = fake.state(other.state.path)
    assert started.lineage[:1] == fake.state(policy.state.path).lineage


def test_a_checkpoint_of_another_rank_is_refused(fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake)
    step(policy)
    policy.save(tmp_path / "one")
    with pytest.raises(ConfigError, match="a checkpoint of fake/unigram with rank 8, not of"):
        make_policy(fake, rank=16).load(tmp_path / "one")


def test_states_expire_and_the_last_one_is_made_permanent(fake: FakeTinker, tmp_path: Path) -> None:
    policy = make_policy(fake, ttl_days=2.0)
    step(policy)
    first = policy.state.path
    step(policy, seed=2)
    policy.save(tmp_path / "last")
    assert fake.expiry == {first: 2 * 86400, policy.state.path: 2 * 86400}
    close(policy)
    assert fake.expiry == {first: 2 * 86400, policy.state.path: None}
    assert json.loads((tmp_path / "last" / "tinker.json").read_text())["expires"] is None
    assert fake.sessions == {"session0": "finished"}


def test_closing_without_a_connection_says_how_long_the_state_is_kept(
    fake: FakeTinker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy(fake)
    step(policy)
    policy.save(tmp_path / "one")
    other = make_policy(fake)
    other.load(tmp_path / "one")
    close(other)
    assert f"not connected, so the last state stays as it is: {policy.state.path}, kept until 20" in caplog.text
