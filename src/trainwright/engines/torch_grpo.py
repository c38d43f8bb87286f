"""GRPO in plain torch, on policy: one batch of groups, one update.

Advantages are group-relative (arXiv:2402.03300). The objective is the clipped importance ratio of PPO
(arXiv:1707.06347) without a KL term, a mean over all completion tokens of the batch (`loss_type="dapo"` in TRL 1.16,
arXiv:2503.14476): a token weighs the same in a short completion as in a long one, so length is neither rewarded nor
punished. Equality with TRL's loss and gradient is a test.

Letters for shapes: B sequences, G groups, T completion tokens.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from trainwright.cache import content_hash
from trainwright.config import EngineConfig
from trainwright.engines.engine import StepMetrics, Training
from trainwright.environment.environment import Environment
from trainwright.errors import JobFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.seeds import derive_seed
from trainwright.students.student import Student, UnreadablePrompt, parts_of

CLIP = 0.2  # half-width of the interval of the importance ratio
PHASES = ("sampling", "environment", "learning")


class TorchGRPO:
    """The `torch` engine: trains any `Student` in this process. The caller sets the number of torch threads."""

    loads_student = False

    def __init__(self, config: EngineConfig | None = None) -> None:
        """Take no settings: everything is the job's. The parameter is that of every engine's factory."""
        self.fingerprint = content_hash("torch", sys.modules[__name__])

    def check(self, hyperparameters: Hyperparameters) -> None:
        """Refuse nothing: the ranges of `job/hyperparameters.py` are this engine's."""

    def train(
        self,
        student: Student,
        environment: Environment,
        hyperparameters: Hyperparameters,
        seed: int,
        on_step: Callable[[StepMetrics], None] | None = None,
    ) -> Training:
        """See `Engine.train`. The same arguments give the same bits on the same machine.

        Raises `JobFault`: `no_rows` for an empty taskset, `unreadable_prompt`, `non_finite` for a loss, gradient or
        weight that is NaN or infinite; and whatever the environment raises.
        """
        hp = hyperparameters
        student.add_adapter(hp.lora_rank, hp.lora_alpha, hp.lora_target, derive_seed(seed, "adapter"))
        parameters = student.parameters()
        optimizer = torch.optim.AdamW(parameters, lr=hp.learning_rate, weight_decay=hp.weight_decay, fused=True)
        generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
        rows = _Rows(student, environment)
        cpu = _CpuSeconds()
        metrics: list[StepMetrics] = []
        for step in range(hp.max_steps):
            with cpu.phase("environment"):
                batch = [row for row in rows.take(hp.batch_size // hp.group_size) for _ in range(hp.group_size)]
            prompts = [prompt for _, prompt in batch]
            with cpu.phase("sampling"):
                completions = student.sample(
                    prompts, temperature=hp.temperature, max_tokens=hp.max_completion_tokens, generator=generator
                )
                replies = [student.decode(tokens) for tokens in completions.tokens_BT.tolist()]
            with cpu.phase("environment"):
                scored = environment.score([(index, reply) for (index, _), reply in zip(batch, replies, strict=True)])
            with cpu.phase("learning"):
                rewards_B = torch.tensor([reward.total for reward in scored], device=completions.mask_BT.device)
                advantages_B, spread_B = group_advantages(rewards_B, hp.group_size, hp.advantage)
                rate = hp.learning_rate * min(1.0, (step + 1) / (hp.warmup_steps + 1))
                loss = clipped = grad_norm = 0.0
                learned = spread_B.nonzero()[:, 0]  # the gradient of the others is exactly zero
                tokens = completions.mask_BT.sum()
                if len(learned):
                    optimizer.zero_grad()
                    learned_prompts = [prompts[i] for i in learned.tolist()]
                    for part in parts_of(student, learned_prompts, completions.tokens_BT[learned]):
                        rows_of_part = learned[part.start : part.stop]
                        logprobs_BT, _ = student.logprobs(
                            learned_prompts[part.start : part.stop],
                            completions.tokens_BT[rows_of_part],
                            temperature=hp.temperature,
                        )
                        loss_sum, clipped_sum = clipped_objective(
                            logprobs_BT,
                            completions.logprobs_BT[rows_of_part],
                            advantages_B[rows_of_part],
                            completions.mask_BT[rows_of_part],
                        )
                        torch.autograd.backward(loss_sum / tokens)
                        loss += float(loss_sum.detach() / tokens)
                        clipped += float(clipped_sum / tokens)
                    grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, hp.max_grad_norm))
                    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                        raise JobFault("non_finite", f"step {step + 1}: loss {loss}, gradient norm {grad_norm}")
                    optimizer.param_groups[0]["lr"] = rate
                    optimizer.step()
                metrics.append(
                    {
                        "step": float(step + 1),
                        "reward_mean": float(rewards_B.mean()),
                        "reward_std": float(rewards_B.std(correction=0)),
                        "no_spread_share": 1.0 - len(learned) / len(batch),
                        "skipped": float(not len(learned)),
                        # The mean surprise of sampled tokens: an unbiased estimate of the policy's entropy, in nats.
                        "entropy": float(-completions.logprobs_BT.sum() / tokens),
                        "truncation_share": 1.0 - float(completions.finished_B.float().mean()),
                        "tokens": float(tokens),
                        "loss": loss,
                        "clip_share": clipped,
                        "grad_norm": grad_norm,
                        "learning_rate": rate,
                    }
                )
            if on_step is not None:
                on_step(metrics[-1])
        if not all(bool(parameter.isfinite().all()) for parameter in parameters):
            raise JobFault("non_finite", "the trained weights hold a value that is not finite")
        return Training(student.save(), metrics, dict(cpu.seconds))


def group_advantages(rewards_B: Tensor, group_size: int, kind: str) -> tuple[Tensor, Tensor]:
    """Return advantages (B,) and whether each one's group has spread (B,).

    `mean` is reward - group mean (Dr. GRPO, arXiv:2503.20783); `mean_std` divides that by the group's standard
    deviation + 1e-4, as TRL does. A group of equal rewards has advantages of exactly zero.
    """
    rewards_GK = rewards_B.view(-1, group_size)
    spread_G1 = rewards_GK.amax(1, keepdim=True) != rewards_GK.amin(1, keepdim=True)
    advantages_GK = rewards_GK - rewards_GK.mean(1, keepdim=True)
    if kind == "mean_std" and group_size > 1:
        advantages_GK = advantages_GK / (rewards_GK.std(1, keepdim=True) + 1e-4)
    advantages_GK = advantages_GK.where(spread_G1, 0.0)
    return advantages_GK.flatten(), spread_G1.expand_as(rewards_GK).flatten()


def clipped_objective(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss, summed over completion tokens, and how many of them the clipping holds back.

    Per token -min(r A, clip(r, 1 - 0.2, 1 + 0.2) A) with r the ratio of new to old probability. `old_logprobs_BT` are
    those of the sampler.
    """
    advantages_B1 = advantages_B[:, None]
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    unclipped_BT, clipped_BT = ratio_BT * advantages_B1, ratio_BT.clamp(1 - CLIP, 1 + CLIP) * advantages_B1
    loss_BT = -torch.minimum(unclipped_BT, clipped_BT)
    return (loss_BT * mask_BT).sum(), ((clipped_BT < unclipped_BT) * mask_BT).sum()


class _Rows:
    """The taskset as an endless sequence of (row index, prompt tokens): in order, then from the start again."""

    def __init__(self, student: Student, environment: Environment) -> None:
        self._student, self._environment = student, environment
        self._seen: list[tuple[int, list[int]]] = []
        self._next, self._exhausted = 0, False

    def take(self, count: int) -> list[tuple[int, list[int]]]:
        """Return the next `count`; raise `JobFault` when there is no row at all or one can't be read."""
        while not self._exhausted and (missing := self._next + count - len(self._seen)) > 0:
            fetched = self._environment.rows(missing)
            for row in fetched:
                try:
                    self._seen.append((row.index, self._student.encode(row.messages)))
                except UnreadablePrompt as error:
                    raise JobFault("unreadable_prompt", f"row {row.index}: {error}") from error
            self._exhausted = not fetched
        if not self._seen:
            raise JobFault("no_rows", "the taskset has no rows")
        taken = [self._seen[(self._next + i) % len(self._seen)] for i in range(count)]
        self._next += count
        return taken


class _CpuSeconds:
    """CPU seconds of this process, all threads, by phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started
