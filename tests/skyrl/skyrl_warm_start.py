"""Supervised steps on synthetic jobs, pushed through the SDK as `cross_entropy`: the warm start of a served model."""

from __future__ import annotations

import random

import numpy as np
from tinker import types

from trainwright.agent.brief import compact_brief
from trainwright.agent.corpus import synthetic_job, synthetic_task
from trainwright.agent.tinker_client import Connection
from trainwright.agent.tinker_renderer import ChatRenderer
from trainwright.agent.tinker_settings import TinkerSettings

BATCH = 16


def pairs(renderer: ChatRenderer, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    """Return a batch of (prompt, answer) in tokens."""
    found = []
    for _ in range(BATCH):
        task = synthetic_task(rng)
        answer = renderer.tokenizer.encode(synthetic_job(task, rng))
        found.append((renderer.prompt(compact_brief(task)), [*answer, *renderer.stop]))
    return found


def datum(prompt: list[int], answer: list[int]) -> types.Datum:
    """Return a pair for `cross_entropy`: the answer's tokens count, the prompt's do not."""
    tokens = [*prompt, *answer]
    weights = np.repeat([0.0, 1.0], [len(prompt) - 1, len(answer)]).astype(np.float32)
    inputs = {
        "target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
        "weights": types.TensorData.from_numpy(weights),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


async def warm_start(
    settings: TinkerSettings, renderer: ChatRenderer, steps: int, learning_rate: float
) -> tuple[str, list[float]]:
    """Return the saved state after so many supervised steps, and the loss of each in nats a token."""
    rng = random.Random(17)
    connection = await Connection.open(settings, None, seed=0)
    losses = []
    for _ in range(steps):
        batch = pairs(renderer, rng)
        output = await connection.forward_backward([datum(*pair) for pair in batch], "cross_entropy")
        rows = [
            np.asarray(fields["logprobs"].data)[-len(answer) :]
            for (_, answer), fields in zip(batch, output.loss_fn_outputs, strict=True)
        ]
        losses.append(float(-np.concatenate(rows).mean()))
        await connection.optim_step(learning_rate)
    path = await connection.save("warm-start", None)
    await connection.close()
    return path, losses
