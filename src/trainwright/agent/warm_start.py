"""The nano agent before reinforcement learning: a language model of synthetic jobs, given their briefs.

Supervised learning on `corpus.py`'s pairs only: it learns what a job looks like and that briefs and jobs share words,
never which jobs are good. Built once and cached by content hash.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import torch
from tokenizers import Tokenizer

from trainwright.agent import brief, corpus, tokenizer
from trainwright.agent.local import NANO_AGENT, VOCABULARY, LocalPolicy, trainable_model
from trainwright.agent.tokenizer import END, fit_tokenizer
from trainwright.cache import cache_folder, content_hash, locked, write_atomically
from trainwright.config import AgentConfig, RunConfig
from trainwright.errors import ConfigError
from trainwright.seeds import derive_seed
from trainwright.students import nano_model
from trainwright.suites.nano import add, base, count, reverse, shift, sort, unique, warm_up

BATCH = 16
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20
TOKENIZER_TEXTS = 1000
THREADS = min(os.cpu_count() or 1, 4)
"""Torch threads of the warm start, which has the machine to itself. The last bits depend on them: part of the key."""

Progress = Callable[[int, int], None]


def local_policy(config: RunConfig, progress: Progress) -> LocalPolicy:
    """Return the agent of a run with `agent.backend = "local"`: the nano agent, or the model that it names."""
    if config.agent.model != NANO_AGENT.name:
        from trainwright.agent.huggingface import pretrained_policy

        return pretrained_policy(config.agent, config.seed, progress)
    return warm_started(config.agent, config.seed, progress)


def warm_started(config: AgentConfig, seed: int, progress: Progress | None = None) -> LocalPolicy:
    """Return the warm-started agent of a run's seed, from the cache or built now (tens of seconds).

    `progress` is called with the steps done and the steps in all.
    """
    sources = (corpus, brief, tokenizer, nano_model, base, reverse, shift, sort, unique, count, add, warm_up)
    recipe = (NANO_AGENT, BATCH, LEARNING_RATE, WARMUP_STEPS, TOKENIZER_TEXTS, config.warm_start_steps, seed, THREADS)
    key = content_hash(*recipe, torch.__version__, *sources)
    folder = cache_folder() / "agents" / f"nano-agent-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    weights, vocabulary = folder / "model.safetensors", folder / "tokenizer.json"
    with locked(weights, lambda: progress(0, config.warm_start_steps) if progress is not None else None):
        if not weights.exists():
            fitted = _fit(seed)
            write_atomically(vocabulary, fitted.to_str().encode())
            write_atomically(weights, _train(fitted, config.warm_start_steps, seed, progress))
    try:
        return LocalPolicy(Tokenizer.from_file(str(vocabulary)), weights.read_bytes(), config)
    except ValueError as error:
        raise ConfigError(f"{weights}: {error}; delete this folder and it is built anew") from None


def _fit(seed: int) -> Tokenizer:
    rng = random.Random(derive_seed(seed, "tokenizer"))
    texts = [corpus.synthetic_job(corpus.synthetic_task(rng), rng) for _ in range(TOKENIZER_TEXTS)]
    return fit_tokenizer(texts, VOCABULARY)


def _train(fitted: Tokenizer, steps: int, seed: int, progress: Progress | None) -> bytes:
    torch.set_num_threads(THREADS)
    rng = random.Random(derive_seed(seed, "warm-start"))
    model = trainable_model(seed=derive_seed(seed, "weights"))
    parameters = model.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS, 1.05 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        prompts, answers = [], []
        for _ in range(BATCH):
            task = corpus.synthetic_task(rng)
            prompts.append([*fitted.encode(brief.compact_brief(task)[0]["content"]).ids, END])
            answers.append([*fitted.encode(corpus.synthetic_job(task, rng)).ids, END])
        longest = max(map(len, answers))
        tokens_BT = torch.tensor([answer + [END] * (longest - len(answer)) for answer in answers])
        logprobs_BT, _ = model.logprobs(prompts, tokens_BT, temperature=1.0)
        loss = -logprobs_BT.sum() / sum(map(len, answers))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if progress is not None:
            progress(step + 1, steps)
    return model.save()
