"""The nano agent's policy: sampling that leaves no trace, updates that learn, checkpoints that continue bit for bit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainwright.agent.local import CONTEXT, LocalPolicy
from trainwright.agent.policy import Completion, Example
from trainwright.agent.tokenizer import END
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.messages import Message

Briefs = list[list[Message]]
MakePolicy = Callable[..., LocalPolicy]


def sample(policy: LocalPolicy, briefs: Briefs, seed: int = 1) -> list[Completion]:
    return asyncio.run(policy.sample(briefs, seed))


def update(policy: LocalPolicy, examples: list[Example]) -> dict[str, float]:
    return asyncio.run(policy.update(examples))


def examples_of(policy: LocalPolicy, briefs: Briefs, seed: int = 1) -> list[Example]:
    """Return answers with advantages that sum to zero, four a brief."""
    answers = sample(policy, [brief for brief in briefs for _ in range(4)], seed)
    return [Example(answer, (-1.0, 0.25, 1.0, -0.25)[place % 4]) for place, answer in enumerate(answers)]


def probability(policy: LocalPolicy, completion: Completion) -> float:
    """Return the log-probability of a completion under the policy's present weights."""
    with torch.no_grad():
        logprobs, _ = policy.model.logprobs(
            [completion.prompt_tokens], torch.tensor([completion.tokens]), temperature=policy.config.temperature
        )
    return float(logprobs.sum())


def test_the_same_seed_gives_the_same_answers(make_policy: MakePolicy, briefs: Briefs) -> None:
    first, second = make_policy(), make_policy()
    assert sample(first, briefs) == sample(second, briefs)
    assert sample(first, briefs, seed=2) != sample(first, briefs, seed=1)


def test_a_sample_does_not_depend_on_earlier_samples(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy()
    alone = sample(policy, briefs)
    sample(policy, briefs[::-1], seed=9)
    torch.manual_seed(123)
    assert sample(policy, briefs) == alone


def test_sampling_does_not_change_the_next_update(make_policy: MakePolicy, briefs: Briefs) -> None:
    probed, undisturbed = make_policy(), make_policy()
    examples = examples_of(undisturbed, briefs)
    for seed in range(3):
        sample(probed, briefs, seed)
    assert update(probed, examples) == update(undisturbed, examples)
    assert probed.model.save() == undisturbed.model.save()


def test_an_answer_says_what_was_sampled(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy()
    for brief, answer in zip(briefs, sample(policy, briefs), strict=True):
        assert answer.prompt_tokens == policy.encode(brief)
        assert len(answer.tokens) == len(answer.logprobs) <= 24
        assert all(logprob <= 0 for logprob in answer.logprobs)
        assert answer.finished == (answer.tokens[-1] == END)
        assert END not in answer.tokens[:-1]
        assert answer.text == policy.tokenizer.decode([token for token in answer.tokens if token != END])
        assert probability(policy, answer) == pytest.approx(sum(answer.logprobs), abs=1e-3)


def test_a_finished_answer_ends_with_the_end_token(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy(learning_rate=0.01, reference_kl=0)
    tokens = [7, END]
    ending = Completion("", policy.encode(briefs[0]), tokens, [math.log(0.5)] * 2)
    for _ in range(40):
        update(policy, [Example(ending, 1.0)])
    answers = sample(policy, [briefs[0]] * 8)
    finished = [answer for answer in answers if answer.finished]
    assert finished
    assert all(answer.tokens[-1] == END for answer in finished)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_samplers_probabilities_are_those_of_the_update(
    make_policy: MakePolicy, briefs: Briefs, temperature: float
) -> None:
    policy = make_policy(temperature=temperature)
    metrics = update(policy, examples_of(policy, briefs))
    assert metrics["logprob_mismatch"] < 1e-4
    assert metrics["tokens"] > 12
    assert metrics["entropy"] > 0
    assert math.isfinite(metrics["loss"])


def test_an_update_makes_rewarded_answers_likelier_and_punished_ones_rarer(
    make_policy: MakePolicy, briefs: Briefs
) -> None:
    policy = make_policy(learning_rate=1e-3)
    good, bad = sample(policy, [briefs[0]] * 2)
    assert good.tokens != bad.tokens
    before = [probability(policy, one) for one in (good, bad)]
    for _ in range(4):
        update(policy, [Example(good, 1.0), Example(bad, -1.0)])
    after = [probability(policy, one) for one in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_without_advantages_nothing_is_learned(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy()
    before = policy.model.save()
    update(policy, [Example(answer, 0.0) for answer in sample(policy, briefs)])
    assert policy.model.save() == before


def test_clipping_holds_a_second_epoch_back(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy(learning_rate=0.05, epochs=4)
    for _ in range(4):
        metrics = update(policy, examples_of(policy, briefs))
    assert 0 < metrics["clip_share"] <= 1


def test_after_saving_and_loading_the_next_update_is_the_same_bit_for_bit(
    make_policy: MakePolicy, briefs: Briefs, tmp_path: Path
) -> None:
    policy = make_policy()
    update(policy, examples_of(policy, briefs))
    policy.save(tmp_path / "checkpoint")
    following = examples_of(policy, briefs, seed=2)
    uninterrupted = update(policy, following)

    resumed = make_policy()
    resumed.load(tmp_path / "checkpoint")
    assert examples_of(resumed, briefs, seed=2) == following
    assert update(resumed, following) == uninterrupted
    assert resumed.model.save() == policy.model.save()
    state, expected = (one.optimizer.state_dict()["state"] for one in (resumed, policy))
    assert state.keys() == expected.keys()
    for index in expected:
        for name in expected[index]:
            assert torch.equal(state[index][name], expected[index][name])


def test_a_checkpoint_before_any_update_can_be_loaded(make_policy: MakePolicy, briefs: Briefs, tmp_path: Path) -> None:
    policy = make_policy()
    policy.save(tmp_path / "checkpoint")
    other = make_policy()
    update(other, examples_of(other, briefs))
    other.load(tmp_path / "checkpoint")
    assert sample(other, briefs) == sample(policy, briefs)
    assert update(other, examples_of(policy, briefs)) == update(policy, examples_of(policy, briefs))


def test_a_checkpoint_is_replaced_whole(make_policy: MakePolicy, briefs: Briefs, tmp_path: Path) -> None:
    policy = make_policy()
    policy.save(tmp_path / "checkpoint")
    (tmp_path / ".checkpoint.partial").mkdir()  # of a save that was killed
    (tmp_path / ".checkpoint.partial" / "model.safetensors").write_bytes(b"half")
    update(policy, examples_of(policy, briefs))
    policy.save(tmp_path / "checkpoint")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]
    other = make_policy()
    other.load(tmp_path / "checkpoint")
    assert other.model.save() == policy.model.save()


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", [None, b"", b"\x00" * 64])
def test_a_damaged_checkpoint_is_named(
    make_policy: MakePolicy, tmp_path: Path, file: str, damage: bytes | None
) -> None:
    policy = make_policy()
    policy.save(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / file
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(ConfigError, match="checkpoint: not a checkpoint of nano-agent") as caught:
        policy.load(tmp_path / "checkpoint")
    assert "\n" not in str(caught.value)


def test_a_missing_checkpoint_is_named(make_policy: MakePolicy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="step-0001: not a checkpoint"):
        make_policy().load(tmp_path / "step-0001")


def test_a_policy_that_diverges_says_what_to_change(make_policy: MakePolicy, briefs: Briefs) -> None:
    policy = make_policy()
    with pytest.raises(TrainwrightError, match=r"gradient is nan; lower agent\.learning_rate"):
        update(policy, [Example(answer, math.nan) for answer in sample(policy, briefs)])


def test_a_long_conversation_keeps_its_newest_part(make_policy: MakePolicy) -> None:
    policy = make_policy()
    turns: list[Message] = [{"role": "user", "content": f"message {number} says something"} for number in range(400)]
    tokens = policy.encode(turns)
    assert len(tokens) == CONTEXT - policy.config.max_tokens
    newest = policy.encode(turns[-1:])
    assert tokens[-len(newest) :] == newest
    (answer,) = sample(policy, [turns])
    assert answer.tokens


def test_an_answer_must_leave_room_for_the_brief(make_policy: MakePolicy) -> None:
    with pytest.raises(ConfigError, match=r"agent\.max_tokens = 1000: .* use at most 896"):
        make_policy(max_tokens=1000)
    make_policy(max_tokens=896)
