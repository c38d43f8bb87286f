"""Any pretrained causal language model with LoRA as the trainer agent, on this machine: `agent.model`.

The policy is the nano agent's, sampling and update included; only model, tokenizer and chat format are others. With
`warm_start_steps` it first reads synthetic jobs as chat answers to their briefs, cached; without, it starts as it is.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from trainwright.agent import brief, corpus
from trainwright.agent.local import LocalPolicy, _Batch
from trainwright.agent.policy import Completion, Example
from trainwright.agent.warm_start import Progress
from trainwright.cache import cache_folder, content_hash, locked, write_atomically
from trainwright.config import AgentConfig
from trainwright.errors import ConfigError
from trainwright.messages import Message
from trainwright.seeds import derive_seed
from trainwright.students.huggingface import HuggingFaceStudent
from trainwright.students.registry import base_student, prepare_student, student_key
from trainwright.students.student import Student, UnreadablePrompt, parts_of

log = logging.getLogger(__name__)

WARMUP_STEPS = 5
SHORTEST_BRIEF = 256
"""Tokens of the context that an answer must leave to the conversation before it."""


def pretrained_policy(config: AgentConfig, seed: int, progress: Progress) -> HuggingFacePolicy:
    """Return the agent of a run; raise `ConfigError` for a model that can't be one or had here."""
    prepare_student(config.model)
    base = base_student(config.model)
    if not isinstance(base, HuggingFaceStudent):
        raise ConfigError(f"agent.model = {config.model!r} is no pretrained model; see docs/students.md")
    base.max_prompt = base.context - config.max_tokens
    if base.max_prompt < SHORTEST_BRIEF:
        raise ConfigError(
            f"agent.max_tokens = {config.max_tokens}: {base.name} holds {base.context} tokens of brief and answer; "
            f"use at most {base.context - SHORTEST_BRIEF}"
        )
    return HuggingFacePolicy(base, _warm_started(base, config, seed, progress), config, seed)


class HuggingFacePolicy(LocalPolicy):
    """A `LocalPolicy` of a pretrained model's adapter. No weights are a fresh adapter, drawn from the seed."""

    update_threads = 1

    def __init__(self, base: HuggingFaceStudent, weights: bytes, config: AgentConfig, seed: int) -> None:
        self.name = base.name
        self.brief = config.pretrained.brief
        self.torch_threads = os.cpu_count() or 1
        self.config = config
        self._base, self._seed = base, seed
        self.reference = self._model_of(weights)
        self._set_weights(weights)

    def _model_of(self, weights: bytes) -> Student:
        return adapted(self._base, self.config, self._seed, weights)

    def encode(self, conversation: Sequence[Message]) -> list[int]:
        """Return prompt tokens in the model's chat template; raise `UnreadablePrompt` for one that is too long."""
        return self._base.encode(conversation)

    def text(self, tokens: Sequence[int]) -> str:
        return self._base.decode(tokens)

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        """Return one answer a conversation; one that leaves no room for an answer gets an empty one."""
        readable = []
        for row, conversation in enumerate(conversations):
            try:
                self.encode(conversation)
                readable.append(row)
            except UnreadablePrompt as error:
                log.warning("no answer: %s", error)
        sampled = await super().sample([conversations[row] for row in readable], seed) if readable else []
        answers = dict(zip(readable, sampled, strict=True))
        return [answers.get(row, Completion("", finished=False)) for row in range(len(conversations))]

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """See `LocalPolicy.update`; empty answers teach nothing."""
        told = [example for example in examples if example.completion.tokens]
        return await super().update(told) if told else {}

    def _logprobs(self, model: Student, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_BT, entropies_BT = super()._logprobs(model, batch)
        return logprobs_BT.cpu(), entropies_BT.cpu()  # where the batch is

    def _save_tokenizer(self, folder: Path) -> None:
        """The tokenizer is the model's own: nothing to save."""

    def _load_tokenizer(self, folder: Path) -> None:
        """The tokenizer is the model's own: nothing to load."""


def adapted(base: HuggingFaceStudent, config: AgentConfig, seed: int, weights: bytes) -> HuggingFaceStudent:
    """Return a copy with an adapter in it: the saved one, or a fresh one that adds nothing yet."""
    model = base.fresh()
    if weights:
        model.load(weights)
    if not model.parameters():  # nothing was saved, or what was saved had not learned yet
        lora = config.pretrained
        model.add_adapter(lora.lora_rank, lora.lora_alpha, lora.lora_target, derive_seed(seed, "adapter"))
    return model


def _warm_started(base: HuggingFaceStudent, config: AgentConfig, seed: int, progress: Progress) -> bytes:
    """Return the adapter after the warm start, from the cache or trained now; no bytes for no steps."""
    if not config.warm_start_steps:
        return b""
    key = content_hash(student_key(base.name), config.pretrained, config.warm_start_steps, seed, corpus, brief)
    path = cache_folder() / "agents" / f"pretrained-{key}.safetensors"
    path.parent.mkdir(exist_ok=True)
    with locked(path, lambda: progress(0, config.warm_start_steps)):
        if not path.exists():
            try:
                write_atomically(path, _train(base, config, seed, progress))
            except UnreadablePrompt as error:
                raise ConfigError(f"agent.model = {base.name!r} can't read its briefs: {error}") from None
    return path.read_bytes()


def _train(base: HuggingFaceStudent, config: AgentConfig, seed: int, progress: Progress) -> bytes:
    """Return the adapter after supervised steps on briefs and jobs of `corpus.py`."""
    torch.set_num_threads(os.cpu_count() or 1)
    settings, steps = config.pretrained, config.warm_start_steps
    rng = random.Random(derive_seed(seed, "warm-start"))
    model = adapted(base, config, seed, b"")
    parameters = model.parameters()
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = settings.warm_start_learning_rate * min(
            1.0, (step + 1) / WARMUP_STEPS, 1.05 - step / steps
        )
        prompts, answers = [], []
        for _ in range(settings.warm_start_batch):
            task = corpus.synthetic_task(rng)
            prompts.append(model.encode(brief.brief_for(task, settings.brief)))
            answers.append([*model.encode_text(corpus.synthetic_job(task, rng)), model.end_token])
        count, longest = sum(map(len, answers)), max(map(len, answers))
        tokens_BT = torch.tensor([answer + [model.end_token] * (longest - len(answer)) for answer in answers])
        optimizer.zero_grad()
        for part in parts_of(cast(Student, model), prompts, tokens_BT):
            rows = slice(part.start, part.stop)
            logprobs_BT, _ = model.logprobs(prompts[rows], tokens_BT[rows], temperature=1.0)
            torch.autograd.backward(-logprobs_BT.sum() / count)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress(step + 1, steps)
    return model.save()
