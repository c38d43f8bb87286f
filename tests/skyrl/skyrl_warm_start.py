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
from trainwright.errors import JobRejected
from trainwright.job.gate import check_static
from trainwright.job.job import Job

BATCH = 16


def pairs(renderer: ChatRenderer, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    """Return a batch of (prompt, answer) in tokens: synthetic jobs that the gate's static part accepts."""
    found = []
    while len(found) < BATCH:
        task = synthetic_task(rng)
        job = synthetic_job(task, rng)
        try:
            check_static(Job.parse(job), task)
        except JobRejected:
            continue
        found.append((renderer.prompt(compact_brief(task)), [*renderer.tokenizer.encode(job), *renderer.stop]))
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
) -> tuple[str, float, float]:
    """Return the saved state after so many supervised steps, and the loss in nats a token before and after them.

    The learning rate falls to zero. The loss is that of the same unseen pairs, so that a small difference is one.
    """
    connection = await Connection.open(settings, None, seed=0)
    unseen = [pair for seed in range(4) for pair in pairs(renderer, random.Random(seed))]
    before = await loss(connection, unseen)
    rng = random.Random(17)
    for step in range(steps):
        await connection.forward_backward([datum(*pair) for pair in pairs(renderer, rng)], "cross_entropy")
        await connection.optim_step(learning_rate * (1 - step / steps))
    after = await loss(connection, unseen)
    path = await connection.save("warm-start", None)
    await connection.close()
    return path, before, after


async def loss(connection: Connection, batch: list[tuple[list[int], list[int]]]) -> float:
    """Return the mean of -log p over the answers' tokens, without a gradient."""
    asked = connection.training.forward([datum(*pair) for pair in batch], "cross_entropy")
    output = await asked.result_async(600)
    rows = [
        np.asarray(fields["logprobs"].data)[-len(answer) :]
        for (_, answer), fields in zip(batch, output.loss_fn_outputs, strict=True)
    ]
    return float(-np.concatenate(rows).mean())
