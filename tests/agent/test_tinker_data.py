"""Examples as a server's data: aligned by position, one gradient on both kinds of servers, metrics by their formula."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("tinker", reason="needs the extra 'tinker'")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tinker import types

from trainwright.agent.policy import Completion, Example
from trainwright.agent.tinker_data import policy_datums, read_pass
from trainwright.agent.tinker_settings import TinkerSettings

TINKER, SKYRL = (TinkerSettings.model_validate({"base_model": "m", "server": server}) for server in ("tinker", "skyrl"))
tokens = st.lists(st.integers(0, 99), min_size=1, max_size=6)


@st.composite
def examples(draw: st.DrawFn) -> list[Example]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        answer = draw(tokens)
        logprobs = draw(st.lists(st.floats(-5, -0.01), min_size=len(answer), max_size=len(answer)))
        completion = Completion("", draw(tokens), answer, logprobs, weights=draw(st.sampled_from([None, 2, 3])))
        found.append(Example(completion, draw(st.floats(-1, 1))))
    return found


def output(rows: list[list[float]]) -> types.ForwardBackwardOutput:
    fields = [{"logprobs": types.TensorData(data=row, dtype="float32", shape=[len(row)])} for row in rows]
    return types.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=fields)


@given(examples())
def test_each_position_predicts_the_next_token_and_only_the_answer_has_an_advantage(batch: list[Example]) -> None:
    for example, datum in zip(batch, policy_datums(batch, TINKER), strict=True):
        prompt, answer = example.completion.prompt_tokens, example.completion.tokens
        assert datum.model_input.to_ints() == [*prompt, *answer][:-1]
        assert list(datum.loss_fn_inputs["target_tokens"].data) == [*prompt, *answer][1:]
        assert set(datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}
        before = len(prompt) - 1
        expected = [0.0] * before + [example.advantage] * len(answer)
        assert list(datum.loss_fn_inputs["advantages"].data) == pytest.approx(expected)
        assert list(datum.loss_fn_inputs["logprobs"].data) == pytest.approx(
            [0.0] * before + example.completion.logprobs
        )


@given(examples())
def test_the_weights_of_a_tokens_gradient_are_equal_on_both_servers(batch: list[Example]) -> None:
    """SkyRL: per-token loss times weights, over the sum of weights, then over sequences. Tinker: the plain sum."""
    for ours, theirs in zip(policy_datums(batch, TINKER), policy_datums(batch, SKYRL), strict=True):
        weights = np.array(theirs.loss_fn_inputs["weights"].data)
        skyrl = np.array(theirs.loss_fn_inputs["advantages"].data) * weights / weights.sum() / len(batch)
        assert skyrl == pytest.approx(np.array(ours.loss_fn_inputs["advantages"].data), abs=1e-6)


@given(examples(), st.floats(-0.3, 0.3))
def test_the_mismatch_is_over_answers_of_the_current_weights(batch: list[Example], shift: float) -> None:
    rows = []
    for example in batch:
        apart = shift if example.completion.weights == 3 else 1.0
        rows.append(
            [0.0] * (len(example.completion.prompt_tokens) - 1) + [p + apart for p in example.completion.logprobs]
        )
    metrics = read_pass(batch, output(rows), weights=3).metrics(TINKER)
    fresh = [example for example in batch if example.completion.weights == 3]
    count = sum(len(example.completion.tokens) for example in batch)
    assert metrics["stale_share"] == pytest.approx(1 - sum(len(one.completion.tokens) for one in fresh) / count)
    if fresh:
        assert metrics["logprob_mismatch"] == pytest.approx(abs(shift), abs=1e-5)
        assert metrics["logprob_mismatch_max"] == pytest.approx(abs(shift), abs=1e-5)
    else:
        assert "logprob_mismatch" not in metrics


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("importance_sampling", -(2.0 * 1.0 + 0.5 * -1.0) / 2),
        ("ppo", -(1.2 * 1.0 + -0.8) / 2),
        ("cispo", -(1.2 * math.log(0.5) * 1.0 + 0.8 * math.log(0.125) * -1.0) / 2),
    ],
)
def test_the_loss_is_the_formula_of_its_name(loss: str, expected: float) -> None:
    """Two tokens whose probability doubled and halved, with advantages 1 and -1."""
    batch = [
        Example(Completion("", [7], [8], [math.log(0.25)], weights=0), 1.0),
        Example(Completion("", [7], [9], [math.log(0.25)], weights=0), -1.0),
    ]
    settings = TinkerSettings.model_validate({"base_model": "m", "loss": loss})
    metrics = read_pass(batch, output([[math.log(0.5)], [math.log(0.125)]]), weights=0).metrics(settings)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["clip_share"] == 1.0
    assert metrics["entropy"] == pytest.approx(-(math.log(0.5) + math.log(0.125)) / 2, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("rows", [[], [[0.1, 0.2]], [[float("nan")]]])
def test_an_answer_that_does_not_fit_is_refused(rows: list[list[float]]) -> None:
    batch = [Example(Completion("", [7], [8], [-1.0]), 1.0)]
    with pytest.raises(ValueError, match=r"outputs for|log-probabilities"):
        read_pass(batch, output(rows), weights=0)
