"""From examples to what a Tinker server trains on, and what its answer says: the one place where servers differ.

Tinker (SDK 0.38.0) adds the loss up over tokens and wants no weights for a policy loss: positions with advantage 0, the
prompt's, have no gradient. SkyRL 0.4.0 (JAX backend) differs:

- Its loss is the mean over a sequence's tokens, then over sequences. Advantages are multiplied by both counts.
- It counts the prompt's positions in that mean unless `weights` are 0 there. They are sent.
- A pass comes without metrics (Tinker says `loss:sum` and others). They are computed here, for both.
- The log-probabilities of a sampler's prompt are one short. None are asked for: those of a pass are right in both.

Letters: T positions of an example's prompt and answer, without the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainwright.agent.policy import Example
from trainwright.agent.tinker_settings import TinkerSettings

if TYPE_CHECKING:
    from tinker import types

Floats = npt.NDArray[np.float64]


def policy_datums(examples: Sequence[Example], settings: TinkerSettings) -> list[types.Datum]:
    """Return one datum an example for the losses `importance_sampling`, `ppo` and `cispo`."""
    from tinker import types

    datums = []
    for example in examples:
        prompt, answer = example.completion.prompt_tokens, example.completion.tokens
        before, count = len(prompt) - 1, len(answer)
        tokens = [*prompt, *answer]
        scale = count * len(examples) if settings.server == "skyrl" else 1
        inputs = {
            "target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
            "logprobs": types.TensorData.from_numpy(_padded(before, example.completion.logprobs)),
            "advantages": types.TensorData.from_numpy(_padded(before, [example.advantage * scale] * count)),
        }
        if settings.server == "skyrl":
            inputs["weights"] = types.TensorData.from_numpy(_padded(before, [1.0] * count))
        datums.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    return datums


def _padded(before: int, values: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return the values of an answer's tokens behind zeros for the prompt's positions, (T)."""
    return np.concatenate([np.zeros(before, np.float32), np.asarray(values, np.float32)])


@dataclass(frozen=True)
class Pass:
    """What a forward and backward pass said about the answers' tokens, all in one row."""

    trainer: Floats
    """Log-probabilities by the trainer, before the step."""
    sampler: Floats
    """Log-probabilities by the sampler, when the answer was written."""
    advantages: Floats
    fresh: npt.NDArray[np.bool_]
    """Whether the sampler had the weights that the trainer has."""

    def metrics(self, settings: TinkerSettings) -> dict[str, float]:
        """Return loss, entropy and divergence, each a mean over tokens, and the mismatch of sampler and trainer.

        `entropy` is the mean of -log p of what was sampled. `logprob_mismatch` is the mean and `logprob_mismatch_max`
        the maximum of the absolute difference, over answers that the current weights wrote: where older weights did,
        the difference is what the policy has learnt since. Without such answers there is no mismatch to measure.
        """
        difference = self.trainer - self.sampler
        ratio = np.exp(difference)
        clipped = np.clip(ratio, settings.clip_low, settings.clip_high)
        if settings.loss == "ppo":
            objective = np.minimum(ratio * self.advantages, clipped * self.advantages)
        elif settings.loss == "cispo":
            objective = clipped * self.trainer * self.advantages
        else:
            objective = ratio * self.advantages
        metrics = {
            "loss": float(-objective.mean()),
            "entropy": float(-self.trainer.mean()),
            "kl": float(-difference.mean()),
            "clip_share": float((ratio != clipped).mean()),
            "stale_share": float((~self.fresh).mean()),
        }
        if self.fresh.any():
            apart = np.abs(difference[self.fresh])
            metrics |= {"logprob_mismatch": float(apart.mean()), "logprob_mismatch_max": float(apart.max())}
        return metrics


def read_pass(examples: Sequence[Example], output: types.ForwardBackwardOutput, weights: int) -> Pass:
    """Return the log-probabilities in a pass over `policy_datums(examples)`, of weights so many optimizer steps old.

    Raises `ValueError` when the server's answer does not fit the examples or is not finite.
    """
    if len(output.loss_fn_outputs) != len(examples):
        raise ValueError(f"{len(output.loss_fn_outputs)} outputs for {len(examples)} examples")
    trainer: list[Floats] = []
    for example, fields in zip(examples, output.loss_fn_outputs, strict=True):
        row = np.asarray(fields["logprobs"].data, np.float64).ravel()
        expected = len(example.completion.prompt_tokens) + len(example.completion.tokens) - 1
        if len(row) != expected:
            raise ValueError(f"{len(row)} log-probabilities for {expected} positions")
        trainer.append(row[len(example.completion.prompt_tokens) - 1 :])
    lengths = [len(example.completion.tokens) for example in examples]
    found = Pass(
        np.concatenate(trainer),
        np.concatenate([np.asarray(example.completion.logprobs, np.float64) for example in examples]),
        np.repeat([example.advantage for example in examples], lengths),
        np.repeat([example.completion.weights == weights for example in examples], lengths),
    )
    if not np.isfinite(found.trainer).all():
        raise ValueError("log-probabilities that are not finite")
    return found
