"""The base weights of a nano student: supervised warm-up on mostly corrupted answers, built once and cached.

Deterministic for one machine and torch build: the same recipe gives the same bytes. The file name holds a hash of the
recipe, of the sources it depends on and of the torch version, so that a change of any of them builds a new base.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from trainwright.cache import cache_folder, content_hash, locked, write_atomically
from trainwright.errors import ConfigError
from trainwright.seeds import derive_seed
from trainwright.students import nano, nano_model
from trainwright.students.nano import CONFIGS, END, NanoStudent
from trainwright.suites.nano import add, base, count, reverse, shift, sort, unique, warm_up

STEPS = {"nano-64": 2600, "nano-48": 3600}  # about equal in time; the smaller one needs more of them
BATCH = 128
LEARNING_RATE, WARMUP_STEPS = 5e-3, 50
SEED = 7

Progress = Callable[[int, int], None]


def base_key(name: str) -> str:
    """Return the content hash of a base student: what its cached file and every score on it depend on."""
    sources = (nano, nano_model, warm_up, base, reverse, shift, sort, unique, count, add)
    return content_hash(
        CONFIGS[name], STEPS[name], BATCH, LEARNING_RATE, WARMUP_STEPS, SEED, torch.__version__, *sources
    )


def nano_base(name: str, progress: Progress | None = None) -> NanoStudent:
    """Return the warmed-up base student, from the cache or built now (about a minute on one core).

    `progress` is called with the steps done and the steps in all.
    """
    path = cache_folder() / "students" / f"{name}-{base_key(name)}.safetensors"
    path.parent.mkdir(exist_ok=True)
    student = NanoStudent.untrained(name, SEED)
    with locked(path, lambda: progress(0, STEPS[name]) if progress is not None else None):
        if not path.exists():
            write_atomically(path, _warm_up(name, progress))
    try:
        student.load(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; delete this file and it is built anew") from None
    return NanoStudent(CONFIGS[name], student.state_dict())


def _warm_up(name: str, progress: Progress | None) -> bytes:
    torch.set_num_threads(1)  # two students are built side by side, and more threads would change the last bits
    rng = random.Random(derive_seed(SEED, "warm-up", name))
    student = NanoStudent.untrained(name, SEED)
    student.add_adapter(0, 0.0, "all", SEED)
    parameters = student.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    steps = STEPS[name]
    for step in range(steps):
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS, 1.05 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        items = [warm_up.warm_up_item(rng) for _ in range(BATCH)]
        prompts = [student.encode([{"role": "user", "content": item.prompt}]) for item in items]
        answers = [student.encode([{"role": "user", "content": item.answer}]) for item in items]
        longest = max(map(len, answers))
        tokens_BT = torch.tensor([answer + [END] * (longest - len(answer)) for answer in answers])
        logprobs_BT, _ = student.logprobs(prompts, tokens_BT, temperature=1.0)
        loss = -logprobs_BT.sum() / sum(map(len, answers))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if progress is not None:
            progress(step + 1, steps)
    return student.save()
