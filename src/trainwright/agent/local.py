"""The nano agent: a tiny Qwen3-architecture language model on this machine, behind the `Policy` protocol.

Sampling uses no state but weights and the seed it is given, so a probe never disturbs training. The update is the
clipped importance ratio (PPO, arXiv:1707.06347) over the answer's tokens, with the sampler's log-probabilities as old
ones and group-relative advantages, plus the divergence from the warm-started policy (arXiv:2402.03300): without it the
agent forgets how to write what does not pay at once. The loss is a mean over the tokens of the batch.

Letters for shapes: B answers, T tokens of an answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import safetensors.torch
import torch
from tokenizers import Tokenizer

from trainwright.agent.policy import BriefStyle, Completion, Example
from trainwright.agent.tokenizer import END
from trainwright.config import AgentConfig
from trainwright.engines.torch_grpo import clipped_objective
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.messages import Message
from trainwright.students.nano import NanoStudent
from trainwright.students.nano_model import NanoConfig, random_weights, to_state_dict
from trainwright.students.student import Student, parts_of

VOCABULARY = 768
CONTEXT = 1024
NANO_AGENT = NanoConfig(
    "nano-agent", hidden=128, layers=3, heads=4, head_dim=32, intermediate=352, vocab=VOCABULARY, context=CONTEXT
)
SHORTEST_BRIEF = 128
"""Tokens of the context that an answer must leave to the conversation before it."""
MAX_GRAD_NORM = 1.0
THREADS = 2
"""Prompts of an update that are worked on at once, a torch thread each; how many does not change a bit of the sum."""


def trainable_model(weights: bytes | None = None, seed: int = 0) -> NanoStudent:
    """Return the agent's model with every weight trainable: random ones from a seed, or what its `save` wrote.

    Raises `ValueError` when the bytes do not fit.
    """
    model = NanoStudent(NANO_AGENT, to_state_dict(random_weights(NANO_AGENT, seed)))
    if weights is not None:
        model.load(weights)
        model = NanoStudent(NANO_AGENT, model.state_dict())
    model.add_adapter(0, 0.0, "all", 0)
    return model


def reference_drift(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence to the reference policy, summed over tokens (estimator of arXiv:2402.03300, eq. 4)."""
    difference_BT = reference_BT - logprobs_BT
    return ((difference_BT.exp() - difference_BT - 1) * mask_BT).sum()


def _prompt_of(example: Example) -> list[int]:
    return example.completion.prompt_tokens


class _Batch:
    """The examples of one prompt as tensors."""

    def __init__(self, examples: Sequence[Example]) -> None:
        completions = [example.completion for example in examples]
        shape = len(examples), max(len(completion.tokens) for completion in completions)
        self.prompts = [completion.prompt_tokens for completion in completions]
        self.advantages_B = torch.tensor([example.advantage for example in examples])
        self.tokens_BT = torch.full(shape, 0)
        self.old_BT, self.mask_BT, self.reference_BT = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        for row, completion in enumerate(completions):
            length = len(completion.tokens)
            self.tokens_BT[row, :length] = torch.tensor(completion.tokens)
            self.old_BT[row, :length] = torch.tensor(completion.logprobs)
            self.mask_BT[row, :length] = 1.0


@dataclass(frozen=True)
class _Part:
    """What one batch adds to an update: gradients, and sums over its tokens."""

    gradients: tuple[torch.Tensor, ...]
    loss: float
    clipped: float
    drift: float
    entropy: float
    divergence: float
    mismatch: float


class LocalPolicy:
    """A policy of torch weights, a tokenizer and an AdamW optimizer. Implements `Policy`."""

    name = "nano-agent"
    brief: BriefStyle = "compact"
    torch_threads = 1
    """One: the last bits of a sum over threads are not the same each time."""
    update_threads = THREADS

    def __init__(self, tokenizer: Tokenizer, weights: bytes, config: AgentConfig) -> None:
        if config.max_tokens > CONTEXT - SHORTEST_BRIEF:
            raise ConfigError(
                f"agent.max_tokens = {config.max_tokens}: {self.name} holds {CONTEXT} tokens of brief and answer; "
                f"use at most {CONTEXT - SHORTEST_BRIEF}"
            )
        self.tokenizer = tokenizer
        self.config = config
        self.reference = self._model_of(weights)
        self._set_weights(weights)

    def _model_of(self, weights: bytes) -> Student:
        return trainable_model(weights)

    def _set_weights(self, weights: bytes) -> None:
        self.model = self._model_of(weights)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def encode(self, conversation: Sequence[Message]) -> list[int]:
        """Return prompt tokens: each message's text and an end token, the oldest cut where the context is too small."""
        tokens: list[int] = []
        for message in conversation:
            tokens += [*self.tokenizer.encode(message["content"]).ids, END]
        return tokens[-(CONTEXT - self.config.max_tokens) :]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer's tokens, without the end token."""
        return str(self.tokenizer.decode([token for token in tokens if token != END]))

    async def sample(self, conversations: Sequence[Sequence[Message]], seed: int) -> list[Completion]:
        """Return one answer a conversation; equal conversations should stand together, their prompt is read once."""
        return await asyncio.to_thread(self._sample, [self.encode(one) for one in conversations], seed)

    def _sample(self, prompts: list[list[int]], seed: int) -> list[Completion]:
        torch.set_num_threads(self.torch_threads)
        sampled = self.model.sample(
            prompts,
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
            generator=torch.Generator().manual_seed(seed),
        )
        lengths = sampled.mask_BT.sum(1).long().tolist()
        completions = []
        for row, length in enumerate(lengths):
            tokens = sampled.tokens_BT[row, :length].tolist()
            completions.append(
                Completion(
                    text=self.text(tokens),
                    prompt_tokens=prompts[row],
                    tokens=tokens,
                    logprobs=sampled.logprobs_BT[row, :length].tolist(),
                    finished=bool(sampled.finished_B[row]),
                )
            )
        return completions

    async def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take `epochs` clipped policy-gradient steps on the batch; equal prompts should stand together."""
        return await asyncio.to_thread(self._update, examples)

    def _update(self, examples: Sequence[Example]) -> dict[str, float]:
        torch.set_num_threads(self.torch_threads)
        batches = [batch for _, group in groupby(examples, _prompt_of) for batch in self._batches(list(group))]
        count = sum(float(batch.mask_BT.sum()) for batch in batches)
        parameters = self.model.parameters()
        metrics: dict[str, float] = {}
        with ThreadPoolExecutor(
            self.update_threads, initializer=torch.set_num_threads, initargs=(self.torch_threads,)
        ) as threads:
            list(threads.map(self._add_reference, batches))
            for epoch in range(self.config.epochs):
                parts = list(
                    threads.map(self._gradients, batches)
                )  # in the order of the batches: the same sum each time
                for parameter, *gradients in zip(parameters, *(part.gradients for part in parts), strict=True):
                    parameter.grad = torch.stack(gradients).sum(0) / count
                grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))
                if not math.isfinite(grad_norm):
                    raise TrainwrightError(
                        f"the policy diverged: its gradient is {grad_norm}; lower agent.learning_rate"
                    )
                self.optimizer.param_groups[0]["lr"] = self._rate()
                self.optimizer.step()
                if epoch == 0:  # before any step: this difference is the sampler's mismatch, not the update
                    metrics["logprob_mismatch"] = max(part.mismatch for part in parts)
                    metrics["entropy"] = sum(part.entropy for part in parts) / count
                    metrics["reference_kl"] = sum(part.drift for part in parts) / count
                metrics["loss"] = sum(part.loss for part in parts) / count
                metrics["clip_share"] = sum(part.clipped for part in parts) / count
                metrics["kl"] = sum(part.divergence for part in parts) / count
                metrics["grad_norm"] = grad_norm
        metrics["tokens"] = count
        return metrics

    def _batches(self, examples: Sequence[Example]) -> list[_Batch]:
        """Return the examples of one prompt in parts whose gradients fit the memory: for a small model one."""
        whole = _Batch(examples)
        parts = parts_of(self.model, whole.prompts, whole.tokens_BT)
        return [whole] if len(parts) == 1 else [_Batch(examples[part.start : part.stop]) for part in parts]

    def _add_reference(self, batch: _Batch) -> None:
        with torch.no_grad():
            batch.reference_BT = self._logprobs(self.reference, batch)[0]

    def _logprobs(self, model: Student, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return model.logprobs(batch.prompts, batch.tokens_BT, temperature=self.config.temperature)

    def _gradients(self, batch: _Batch) -> _Part:
        """Return the gradient of the loss, summed over the batch's tokens, without touching the parameters' own."""
        logprobs_BT, entropy_BT = self._logprobs(self.model, batch)
        loss, clipped = clipped_objective(logprobs_BT, batch.old_BT, batch.advantages_B, batch.mask_BT)
        drift = reference_drift(logprobs_BT, batch.reference_BT, batch.mask_BT)
        gradients = torch.autograd.grad(loss + self.config.reference_kl * drift, self.model.parameters())
        difference_BT = (batch.old_BT - logprobs_BT.detach()) * batch.mask_BT
        return _Part(
            gradients,
            loss=float(loss.detach()),
            clipped=float(clipped),
            drift=float(drift.detach()),
            entropy=float(entropy_BT.sum()),
            divergence=float(difference_BT.sum()),
            mismatch=float(difference_BT.abs().max()),
        )

    def _rate(self) -> float:
        """Return the learning rate of the next optimizer step, counted by the optimizer's own state."""
        state = self.optimizer.state_dict()["state"]
        done = int(state[0]["step"]) if state else 0
        rise = min(1.0, (done + 1) / (self.config.warmup_steps + 1))
        fall = max(0.2, 1 - 0.8 * done / self.config.decay_steps) if self.config.decay_steps else 1.0
        return self.config.learning_rate * min(rise, fall)

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and optimizer state; the folder appears whole or not at all."""
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "model.safetensors").write_bytes(self.model.save())
        self._save_tokenizer(partial)
        state = self.optimizer.state_dict()["state"]
        tensors = {f"{index}.{key}": value for index, entry in state.items() for key, value in entry.items()}
        (partial / "optimizer.safetensors").write_bytes(safetensors.torch.save(tensors))
        (partial / "policy.json").write_text(json.dumps({"name": self.name, "config": self.config.model_dump()}))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    def _save_tokenizer(self, folder: Path) -> None:
        self.tokenizer.save(str(folder / "tokenizer.json"))

    def _load_tokenizer(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def load(self, folder: Path) -> None:
        """Restore a saved policy in place, optimizer included; raise `ConfigError` when the folder does not fit."""
        try:
            weights = (folder / "model.safetensors").read_bytes()
            tensors = safetensors.torch.load((folder / "optimizer.safetensors").read_bytes())
            self._load_tokenizer(folder)
            self._set_weights(weights)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise ConfigError(f"{folder}: not a checkpoint of {self.name}: {error}") from None
        self._restore_optimizer(tensors)

    def _restore_optimizer(self, tensors: Mapping[str, torch.Tensor]) -> None:
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
        full = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": full["param_groups"]})

    async def close(self) -> None:
        """Nothing to release."""
