from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from trainwright.engines.engine import StepMetrics
from trainwright.engines.torch_grpo import TorchGRPO, clipped_objective, group_advantages
from trainwright.environment.environment import Reward, Row
from trainwright.errors import InfraFault, JobFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students.nano import CONFIGS, END, PAD, NanoStudent
from trainwright.students.nano_model import from_state_dict, to_state_dict
from trainwright.students.student import Completions


@dataclass
class FakeEnvironment:
    """An environment in this process: prompts, a reward function of (prompt, reply), and what it was asked."""

    prompts: Sequence[str]
    reward: Callable[[str, str], float]
    asked: list[list[tuple[int, str]]] = field(default_factory=list)
    _next: int = 0

    def rows(self, count: int) -> list[Row]:
        indices = range(self._next, min(self._next + count, len(self.prompts)))
        self._next = indices.stop
        return [Row(index, ({"role": "user", "content": self.prompts[index]},)) for index in indices]

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        self.asked.append(list(replies))
        return [Reward(self.reward(self.prompts[index], reply), {}, 0.0) for index, reply in replies]


PROMPTS = ["reverse abc", "sort zxyab", "a", "12+34=", "count x in axbx", "unique aab", "shift 3 abc", "b"]


EMBEDDING = "model.embed_tokens.weight"


def share_of_a(_: str, reply: str) -> float:
    return reply.count("a") / max(len(reply), 1)


def hyperparameters(**changes: Any) -> Hyperparameters:
    settings: dict[str, Any] = {"student": "nano-48", "max_steps": 3, "batch_size": 32, "max_completion_tokens": 8}
    return Hyperparameters(**settings | changes)


@pytest.fixture
def student() -> NanoStudent:
    return NanoStudent.untrained("nano-48", 0)


# Equality with TRL


@pytest.fixture(scope="module")
def trl_reference() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "trl_reference.py"
    spec = importlib.util.spec_from_file_location("trl_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trainer_for(trl_reference: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    def build(student: NanoStudent, reward: Callable[[str, str], float] = share_of_a, **changes: Any) -> Any:
        hp = hyperparameters(batch_size=24, group_size=4, lora_rank=0, **changes)
        trainer = trl_reference.build_trainer(student, PROMPTS[:6], reward, hp, tmp_path)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return build


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


@pytest.mark.parametrize("kind", ["mean", "mean_std"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradient_equal_those_of_trl(
    student: NanoStudent, trainer_for: Callable[..., Any], kind: str, temperature: float
) -> None:
    trainer = trainer_for(student, temperature=temperature, advantage=kind)
    clipped_shares = []
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        base = NanoStudent.untrained(student.name, seed).state_dict()
        noise = {name: 0.1 * torch.randn(tensor.shape, generator=draw) for name, tensor in base.items()}
        ours = NanoStudent(student.config, {name: tensor + noise[name] for name, tensor in base.items()})
        trainer.model.load_state_dict(ours.state_dict(), strict=False)
        ours.add_adapter(rank=0, alpha=0.0, target="all", seed=0)

        texts = [PROMPTS[int(i)] for i in torch.randint(len(PROMPTS), (6,), generator=draw) for _ in range(4)]
        prompts = [ours.encode([{"role": "user", "content": text}]) for text in texts]
        length = int(torch.randint(1, 13, (1,), generator=draw))
        tokens = torch.randint(2, student.config.vocab, (24, length), generator=draw)
        for row, end in enumerate(torch.randint(length + 2, (24,), generator=draw).tolist()):  # some have no end
            tokens[row, end : end + 1] = END
            tokens[row, end + 1 :] = PAD
        mask = torch.tensor([[float(END not in row[:i]) for i in range(length)] for row in tokens.tolist()])
        rewards = torch.randint(0, 3, (24,), generator=draw) / 2
        advantages, _ = group_advantages(rewards, 4, kind)

        logprobs, _ = ours.logprobs(prompts, tokens, temperature=temperature)
        old = (logprobs.detach() + 0.3 * torch.randn(logprobs.shape, generator=draw)) * mask
        loss_sum, clipped = clipped_objective(logprobs, old, advantages, mask)
        loss = loss_sum / mask.sum()
        gradient = torch.autograd.grad(loss, ours.parameters())
        clipped_shares.append(float(clipped / mask.sum()))

        prompt_ids, prompt_mask = left_padded(prompts)
        inputs = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": tokens,
            "completion_mask": mask.long(),
            "advantages": advantages,
            "old_per_token_logps": old,
            "num_items_in_batch": mask.sum(),
        }
        trainer.model.zero_grad()
        expected = trainer.compute_loss(trainer.model, inputs)
        expected.backward()

        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-7)
        stacks = from_state_dict(student.config, base)  # in the order of the parameters
        found = to_state_dict(dict(zip(stacks, gradient, strict=True)))
        for name, parameter in trainer.model.named_parameters():
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-5 * scale + 1e-9)
    assert max(clipped_shares) > 0.1  # the clipping was in force


@pytest.mark.parametrize("kind", ["mean", "mean_std"])
def test_advantages_equal_those_of_trl(student: NanoStudent, trainer_for: Callable[..., Any], kind: str) -> None:
    drawn = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(1)) / 2
    drawn[:4] = 1.0  # a group without spread
    rewards = iter(drawn.tolist())
    trainer = trainer_for(student, lambda *_: next(rewards), advantage=kind)
    output = trainer._generate_and_score_completions([{"prompt": text} for text in PROMPTS[:6] for _ in range(4)])
    advantages, spread = group_advantages(drawn, 4, kind)
    torch.testing.assert_close(advantages, output["advantages"], rtol=1e-5, atol=1e-6)
    assert not spread[:4].any()


@pytest.mark.parametrize("kind", ["mean", "mean_std"])
def test_a_whole_training_equals_one_by_trl_on_the_same_completions(
    student: NanoStudent, trainer_for: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = student.state_dict()
    student = NanoStudent(student.config, state | {EMBEDDING: 10 * state[EMBEDDING]})
    changes = {"max_steps": 6, "learning_rate": 1e-3, "temperature": 0.9, "max_grad_norm": 0.05, "advantage": kind}
    ours = student.fresh()
    sample, drawn = ours.sample, []

    def recording_sample(*arguments: Any, **settings: Any) -> Completions:
        drawn.append(sample(*arguments, **settings))
        return drawn[-1]

    monkeypatch.setattr(ours, "sample", recording_sample)
    hp = hyperparameters(batch_size=24, group_size=4, lora_rank=0, **changes)
    training = TorchGRPO().train(ours, FakeEnvironment(PROMPTS[:6], share_of_a), hp, seed=4)

    trainer, replayed = trainer_for(student, **changes), iter(drawn)

    def replay(prompts: list[list[int]], *_: Any) -> tuple[list[list[int]], None]:
        completions = next(replayed)
        lengths = completions.mask_BT.sum(1).long().tolist()
        return [row[:length] for row, length in zip(completions.tokens_BT.tolist(), lengths, strict=True)], None

    monkeypatch.setattr(trainer, "_generate_single_turn", replay)
    trainer.train()

    assert next(replayed, None) is None
    assert max(row["grad_norm"] for row in training.metrics) > 0.05  # the clipping was in force
    expected, before = trainer.model.state_dict(), student.state_dict()
    for name, tensor in ours.state_dict().items():
        moved, apart = (expected[name] - before[name]).norm(), (expected[name] - tensor).norm()
        assert apart < 1e-3 * moved, name


# The objective


def test_groups_without_spread_have_no_advantage_at_all() -> None:
    rewards = torch.tensor([0.1] * 3 + [0.1, 0.2, 0.3])  # the mean of three 0.1 is not 0.1 in float32
    for kind in ("mean", "mean_std"):
        advantages, spread = group_advantages(rewards, 3, kind)
        assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
        assert spread.tolist() == [False] * 3 + [True] * 3
    assert group_advantages(torch.tensor([1.0, 2.0]), 1, "mean_std")[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "passes"),
    [(1.0, 1.0, True), (1.3, 1.0, False), (0.7, 1.0, True), (1.3, -1.0, True), (0.7, -1.0, False), (1.1, 1.0, True)],
)
def test_clipping_stops_the_gradient_only_where_the_ratio_has_gone_far_enough(
    ratio: float, advantage: float, passes: bool
) -> None:
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss, clipped = clipped_objective(logprobs, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert bool(gradient) is passes
    assert bool(clipped) is not passes


def test_masked_tokens_have_no_effect() -> None:
    logprobs = torch.randn(3, 4, requires_grad=True)
    mask = torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    loss, _ = clipped_objective(logprobs, torch.randn(3, 4), torch.randn(3), mask)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert not gradient[mask == 0].any()


# Training


@pytest.mark.parametrize("kind", ["mean", "mean_std"])
@pytest.mark.parametrize(("rank", "rate"), [(0, 3e-3), (8, 2e-2)])
def test_a_reward_that_can_be_learned_goes_up(student: NanoStudent, kind: str, rank: int, rate: float) -> None:
    # An untrained embedding is too small for an adapter, which leaves it as it is, to reach sure choices.
    state = student.state_dict()
    student = NanoStudent(student.config, state | {EMBEDDING: 10 * state[EMBEDDING]})
    hp = hyperparameters(max_steps=30, learning_rate=rate, lora_rank=rank, advantage=kind)
    training = TorchGRPO().train(student.fresh(), FakeEnvironment(PROMPTS, share_of_a), hp, seed=0)
    rewards = [row["reward_mean"] for row in training.metrics]
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.5
    trained = student.fresh()
    trained.load(training.weights)
    prompts = [student.encode([{"role": "user", "content": text}]) for text in PROMPTS]
    generator = torch.Generator().manual_seed(1)
    drawn = trained.sample(prompts, temperature=1.0, max_tokens=8, generator=generator)
    assert sum(share_of_a("", trained.decode(tokens)) for tokens in drawn.tokens_BT.tolist()) / len(prompts) > 0.5


def test_metrics_say_what_happened(student: NanoStudent) -> None:
    environment = FakeEnvironment(PROMPTS, share_of_a)
    reported: list[StepMetrics] = []
    hp = hyperparameters(max_steps=4, warmup_steps=3, learning_rate=0.1, max_grad_norm=0.001)
    training = TorchGRPO().train(student.fresh(), environment, hp, seed=0, on_step=reported.append)
    assert training.metrics == reported
    assert [row["step"] for row in reported] == [1, 2, 3, 4]
    assert [row["learning_rate"] for row in reported] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert set(training.cpu_seconds) == {"sampling", "environment", "learning"}
    assert min(training.cpu_seconds.values()) > 0
    for row, replies in zip(reported, environment.asked, strict=True):
        rewards = torch.tensor([share_of_a("", reply) for _, reply in replies])
        groups = rewards.view(-1, 8)
        assert row["reward_mean"] == pytest.approx(float(rewards.mean()))
        assert row["reward_std"] == pytest.approx(float(rewards.std(correction=0)))
        assert row["no_spread_share"] == pytest.approx(float((groups.amax(1) == groups.amin(1)).float().mean()))
        assert row["clip_share"] == 0.0  # on policy, so every ratio is 1
        assert 0 <= row["truncation_share"] <= 1
        assert row["grad_norm"] > 0
    assert reported[0]["entropy"] == pytest.approx(math.log(student.config.vocab), abs=0.1)  # nearly uniform


def test_truncated_and_ended_completions_are_told_apart(student: NanoStudent) -> None:
    # The reward counts what the student was asked to write, so that lengths can be read off the replies.
    environment = FakeEnvironment(PROMPTS, lambda _, reply: float(len(reply)))
    hp = hyperparameters(max_steps=1, batch_size=512, max_completion_tokens=30)
    (row,) = TorchGRPO().train(student, environment, hp, seed=0).metrics
    assert 0.3 < row["truncation_share"] < 0.9  # near-uniform tokens: (49/50)^30 = 0.55
    assert row["tokens"] < 512 * 30
    assert row["truncation_share"] * 512 * 30 < row["tokens"]


def test_groups_without_spread_train_nothing(student: NanoStudent) -> None:
    constant, mixed = student.fresh(), student.fresh()
    hp = hyperparameters(weight_decay=0.1, lora_rank=0)
    training = TorchGRPO().train(constant, FakeEnvironment(PROMPTS, lambda *_: 0.3), hp, seed=0)
    assert all(
        torch.equal(a, b) for a, b in zip(constant.state_dict().values(), student.state_dict().values(), strict=True)
    )
    for row in training.metrics:
        assert (row["skipped"], row["no_spread_share"], row["loss"], row["grad_norm"]) == (1.0, 1.0, 0.0, 0.0)

    def only_first_prompt(prompt: str, reply: str) -> float:
        return share_of_a(prompt, reply) if prompt == PROMPTS[0] else 1.0

    training = TorchGRPO().train(mixed, FakeEnvironment(PROMPTS[:4], only_first_prompt), hp, seed=0)
    assert {row["no_spread_share"] for row in training.metrics} <= {0.75, 1.0}
    assert any(row["grad_norm"] > 0 for row in training.metrics)


def test_skipping_groups_without_spread_does_not_change_the_update(student: NanoStudent) -> None:
    prompts = [student.encode([{"role": "user", "content": text}]) for text in PROMPTS[:3] for _ in range(4)]
    copy = student.fresh()
    copy.add_adapter(0, 0.0, "all", 0)
    drawn = copy.sample(prompts, temperature=1.0, max_tokens=8, generator=torch.Generator().manual_seed(0))
    advantages, spread = group_advantages(torch.tensor([0.0, 1, 0, 1] + [0.5] * 4 + [0, 0, 0, 1]), 4, "mean")
    gradients = []
    for chosen in (spread, torch.ones_like(spread)):
        kept = [prompt for prompt, keep in zip(prompts, chosen.tolist(), strict=True) if keep]
        logprobs, _ = copy.logprobs(kept, drawn.tokens_BT[chosen], temperature=1.0)
        loss, _ = clipped_objective(logprobs, drawn.logprobs_BT[chosen], advantages[chosen], drawn.mask_BT[chosen])
        gradients.append(torch.autograd.grad(loss, copy.parameters()))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rank", [0, 8])
def test_the_same_seed_gives_the_same_bits(student: NanoStudent, rank: int) -> None:
    hp = hyperparameters(lora_rank=rank)
    first, again, other = (
        TorchGRPO().train(student.fresh(), FakeEnvironment(PROMPTS, share_of_a), hp, seed=seed) for seed in (5, 5, 6)
    )
    assert first.weights == again.weights != other.weights
    assert first.metrics == again.metrics


# Rows


@pytest.mark.parametrize("count", [1, 3, 4, 5, 20])
def test_rows_come_in_order_and_start_again_when_exhausted(student: NanoStudent, count: int) -> None:
    environment = FakeEnvironment((PROMPTS * 3)[:count], share_of_a)
    TorchGRPO().train(student, environment, hyperparameters(max_steps=3, batch_size=16, group_size=4), seed=0)
    asked = [index for replies in environment.asked for index, _ in replies]
    assert asked == [position % count for position in range(12) for _ in range(4)]


def test_an_unending_taskset_is_read_only_as_far_as_needed(student: NanoStudent) -> None:
    environment = FakeEnvironment(PROMPTS * 10_000, share_of_a)
    TorchGRPO().train(student, environment, hyperparameters(max_steps=2, batch_size=16, group_size=4), seed=0)
    assert environment._next == 8


# Faults


def fault(student: NanoStudent, environment: FakeEnvironment, **changes: Any) -> JobFault:
    with pytest.raises(JobFault) as caught:
        TorchGRPO().train(student, environment, hyperparameters(**changes), seed=0)
    return caught.value


def test_no_rows_is_the_jobs_fault(student: NanoStudent) -> None:
    assert fault(student, FakeEnvironment([], share_of_a)).code == "no_rows"


def test_an_unreadable_row_is_the_jobs_fault_and_named(student: NanoStudent) -> None:
    error = fault(student, FakeEnvironment([*PROMPTS[:3], "Z"], share_of_a))
    assert error.code == "unreadable_prompt"
    assert "row 3" in error.message
    assert "'Z' at position 0" in error.message


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_never_reaches_the_weights(student: NanoStudent, reward: float) -> None:
    environment = FakeEnvironment(PROMPTS, lambda _, reply: reward if "a" in reply else 0.0)
    assert fault(student, environment).code == "non_finite"


def test_weights_that_overflow_are_the_jobs_fault(student: NanoStudent) -> None:
    for steps in (1, 3):
        error = fault(student.fresh(), FakeEnvironment(PROMPTS, share_of_a), learning_rate=1e39, max_steps=steps)
        assert error.code == "non_finite"


@pytest.mark.parametrize("error", [JobFault("reward_raised", "x"), InfraFault("lost", "y")])
def test_faults_of_the_environment_pass_through(student: NanoStudent, error: Exception) -> None:
    def raising(*_: str) -> float:
        raise error

    with pytest.raises(type(error)) as caught:
        TorchGRPO().train(student, FakeEnvironment(PROMPTS, raising), hyperparameters(), seed=0)
    assert caught.value is error


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("target", ["attention", "mlp", "all"])
def test_every_size_and_target_trains(name: str, target: str) -> None:
    student = NanoStudent.untrained(name, 0)
    hp = hyperparameters(student=name, lora_target=target, max_steps=2, temperature=0.8)
    training = TorchGRPO().train(student.fresh(), FakeEnvironment(PROMPTS, share_of_a), hp, seed=0)
    trained = student.fresh()
    trained.load(training.weights)
    before = student.state_dict()
    changed = {name for name, tensor in trained.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all("proj" in name for name in changed)
