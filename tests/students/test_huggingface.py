"""Pretrained students on tiny random models: shared prompts change nothing, adapters are PEFT's, jobs train them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tiny_models import END, STOP, write_tiny_model

from trainwright.engines.torch_grpo import TorchGRPO
from trainwright.environment.environment import Reward, Row
from trainwright.errors import ConfigError, JobFault
from trainwright.job.hyperparameters import Hyperparameters
from trainwright.students import huggingface
from trainwright.students.adapter import CONFIG_FILE, adapter_of_bytes, adapter_of_folder
from trainwright.students.huggingface import HuggingFaceStudent
from trainwright.students.student import UnreadablePrompt

NAME = "hf:tiny"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float32: bfloat16 would hide small differences."""
    monkeypatch.setattr(huggingface, "fast_dtype", lambda _: torch.float32)


@pytest.fixture
def student(folder: Path) -> HuggingFaceStudent:
    return HuggingFaceStudent(NAME, folder)


def prompts_of(student: HuggingFaceStudent, texts: Sequence[str]) -> list[list[int]]:
    return [student.encode([{"role": "user", "content": text}]) for text in texts]


def sample(student: HuggingFaceStudent, prompts: list[list[int]], seed: int = 0, max_tokens: int = 12):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)
    return student.sample(prompts, temperature=1.0, max_tokens=max_tokens, generator=generator)


def plain_logprobs(student: HuggingFaceStudent, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Return the log-probabilities of a completion by one ordinary forward pass over the whole text."""
    ids = torch.tensor([prompt + completion])
    logits = student._model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logits.gather(1, torch.tensor(completion)[:, None])[:, 0]


def trained(student: HuggingFaceStudent, rank: int = 4, target: str = "all") -> HuggingFaceStudent:
    """Return a copy whose adapter adds something."""
    copy = student.fresh()
    copy.add_adapter(rank, 8.0, target, seed=3)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return copy


class Echo:
    """A fake environment: a reply earns the share of its characters that are vowels."""

    def rows(self, count: int) -> list[Row]:
        return [Row(n, ({"role": "user", "content": f"row {n}"},)) for n in range(min(count, 8))]

    def score(self, replies: Sequence[tuple[int, str]]) -> list[Reward]:
        shares = [sum(c in "aeiou" for c in reply) / max(1, len(reply)) for _, reply in replies]
        return [Reward(share, {}, 0.0) for share in shares]


def hyperparameters(**changes: object) -> Hyperparameters:
    return Hyperparameters(
        **{"student": NAME, "max_steps": 2, "batch_size": 16, "group_size": 4, "max_completion_tokens": 8} | changes  # type: ignore[arg-type]
    )


def test_the_template_is_the_models_own_with_thinking_off(student: HuggingFaceStudent) -> None:
    tokens = student.encode([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}])
    text = student.tokenizer.decode(tokens)
    assert text == "<|system|>be kind<|end|><|user|>hi<|end|><|assistant|><|quiet|>"


def test_a_model_without_a_template_gets_a_plain_one(tmp_path: Path) -> None:
    student = HuggingFaceStudent(NAME, write_tiny_model(tmp_path, template=False))
    assert student.tokenizer.decode(prompts_of(student, ["hi"])[0]) == "User: hi\nAssistant:"


def test_a_prompt_that_is_too_long_is_unreadable(student: HuggingFaceStudent) -> None:
    with pytest.raises(UnreadablePrompt, match="tokens; hf:tiny reads at most 256"):
        prompts_of(student, ["x" * 300])


def test_a_reply_ends_at_any_end_token(student: HuggingFaceStudent) -> None:
    letters = student.encode_text("abc")
    for end in (END, STOP):
        assert student.decode([*letters, end, *letters]) == "abc"


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_log_probabilities_are_those_of_an_ordinary_forward_pass(kind: str, tmp_path: Path) -> None:
    student = trained(HuggingFaceStudent(NAME, write_tiny_model(tmp_path, kind)))
    prompts = prompts_of(student, ["a", "a rather longer prompt", "a", "a"])
    completions = sample(student, prompts)
    logprobs, entropies = student.logprobs(prompts, completions.tokens_BT, temperature=1.0)
    assert len({int(n) for n in completions.mask_BT.sum(1)}) > 1  # some end before others
    for row, prompt in enumerate(prompts):
        length = int(completions.mask_BT[row].sum())
        expected = plain_logprobs(student, prompt, completions.tokens_BT[row, :length].tolist())
        torch.testing.assert_close(logprobs[row, :length], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(completions.logprobs_BT[row, :length], expected, atol=1e-4, rtol=1e-4)
        assert not logprobs[row, length:].any()
        assert not entropies[row, length:].any()
    assert (entropies[completions.mask_BT > 0] > 0).all()


def test_gradients_are_those_of_an_ordinary_forward_pass(student: HuggingFaceStudent) -> None:
    student = trained(student)
    prompts = prompts_of(student, ["first", "first", "the second"])
    tokens = sample(student, prompts).tokens_BT
    mask = student._mask(tokens)
    ours = torch.autograd.grad(student.logprobs(prompts, tokens, temperature=1.0)[0].sum(), student.parameters())
    total = torch.stack(
        [plain_logprobs(student, p, row[m].tolist()).sum() for p, row, m in zip(prompts, tokens, mask, strict=True)]
    ).sum()
    theirs = torch.autograd.grad(total, student.parameters())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_a_finished_completion_ends_with_an_end_token(student: HuggingFaceStudent) -> None:
    prompts = prompts_of(student, [f"prompt {n}" for n in range(24)])
    sampled = sample(student, prompts, max_tokens=40)
    assert 0 < sampled.finished_B.sum() < len(prompts)
    for row, mask, finished in zip(sampled.tokens_BT, sampled.mask_BT, sampled.finished_B, strict=True):
        length = int(mask.sum())
        assert finished == (int(row[length - 1]) in (END, STOP))
        assert not set(row[: length - 1].tolist()) & {END, STOP}
        assert finished or length == 40


def test_the_random_numbers_of_a_prompt_do_not_depend_on_the_weights(student: HuggingFaceStudent) -> None:
    prompts = prompts_of(student, [f"prompt {n}" for n in range(16)])
    base, same = sample(student, prompts), sample(student.fresh(), prompts)
    assert torch.equal(base.tokens_BT, same.tokens_BT)
    nudged = student.fresh()
    nudged.add_adapter(4, 8.0, "all", seed=3)
    with torch.no_grad():
        for parameter in nudged.parameters():
            parameter.add_(1e-4)
    close, other = sample(nudged, prompts), sample(student, prompts, seed=1)
    agreement = [(base.tokens_BT[:, :4] == one.tokens_BT[:, :4]).float().mean() for one in (close, other)]
    assert agreement[0] > 0.9 > 0.5 > agreement[1]


def test_an_adapter_starts_as_the_base_and_leaves_it_alone(student: HuggingFaceStudent) -> None:
    prompts = prompts_of(student, ["one", "two"])
    before = sample(student, prompts)
    copy = student.fresh()
    copy.add_adapter(4, 8.0, "attention", seed=0)
    assert torch.equal(sample(copy, prompts).tokens_BT, before.tokens_BT)
    assert all(parameter.dtype == torch.float32 for parameter in copy.parameters())
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(1.0)
    assert not torch.equal(sample(copy, prompts).tokens_BT, before.tokens_BT)
    assert torch.equal(sample(student, prompts).tokens_BT, before.tokens_BT)
    shared = {tensor.data_ptr() for tensor in student._base.state_dict().values()}
    assert shared <= {tensor.data_ptr() for tensor in copy._model.state_dict().values()}


@pytest.mark.parametrize("target", ["attention", "mlp", "all"])
def test_a_saved_adapter_is_one_that_passes_every_check_and_loads(student: HuggingFaceStudent, target: str) -> None:
    one, other = trained(student, target=target), student.fresh()
    data = one.save()
    assert adapter_of_bytes(data, student.architecture, NAME).target == target
    other.load(data)
    prompts = prompts_of(student, ["one", "two"])
    assert torch.equal(sample(one, prompts).logprobs_BT, sample(other, prompts).logprobs_BT)
    assert other.save() == data


def test_a_saved_adapter_is_peft_s_own_format(student: HuggingFaceStudent, folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    one = trained(student)
    adapter_of_bytes(one.save(), student.architecture, NAME).write(tmp_path, student.architecture, NAME)
    assert adapter_of_folder(tmp_path, student.architecture).rank == 4
    assert json.loads((tmp_path / CONFIG_FILE).read_text())["r"] == 4
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path)
    ids = torch.tensor(prompts_of(student, ["some text"]))
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=ids).logits, one._model(input_ids=ids).logits)


def test_an_adapter_that_adds_nothing_is_the_base(student: HuggingFaceStudent) -> None:
    untouched, other = student.fresh(), student.fresh()
    untouched.add_adapter(4, 8.0, "all", seed=0)
    other.load(untouched.save())
    assert other.parameters() == []


def test_an_adapter_beyond_all_measure_is_the_jobs_fault(student: HuggingFaceStudent) -> None:
    one = trained(student)
    with torch.no_grad():
        one.parameters()[0].fill_(1e6)
    with pytest.raises(JobFault, match="learning rate is too high"):
        one.save()


def test_foreign_weights_do_not_load(student: HuggingFaceStudent, folder: Path) -> None:
    data = trained(student).save()
    with pytest.raises(ValueError, match="not an adapter of hf:other"):
        HuggingFaceStudent("hf:other", folder).load(data)
    for broken in (b"", data[:-4], data.replace(b"lora_A", b"lora_X"), safetensors.torch.save({"x": torch.zeros(1)})):
        with pytest.raises(ValueError):
            student.fresh().load(broken)


def test_rank_0_trains_a_copy_of_all_weights(student: HuggingFaceStudent) -> None:
    copy = student.fresh()
    copy.add_adapter(0, 0.0, "all", seed=0)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.01)
    other = student.fresh()
    other.load(copy.save())
    prompts = prompts_of(student, ["one", "two"])
    torch.testing.assert_close(sample(other, prompts).logprobs_BT, sample(copy, prompts).logprobs_BT)
    assert not torch.equal(sample(student, prompts).logprobs_BT, sample(copy, prompts).logprobs_BT)


def test_gradients_summed_over_parts_are_those_of_the_batch(
    student: HuggingFaceStudent, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TorchGRPO().train(student.fresh(), Echo(), hyperparameters(), seed=1)
    student.part_tokens = 40
    calls = []
    plain = HuggingFaceStudent.logprobs
    monkeypatch.setattr(HuggingFaceStudent, "logprobs", lambda *a, **k: calls.append(len(a[1])) or plain(*a, **k))
    parts = TorchGRPO().train(student.fresh(), Echo(), hyperparameters(), seed=1)
    assert len(calls) >= 3
    assert max(calls) < 16
    one, other = (safetensors.torch.load(training.weights) for training in (whole, parts))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=2e-5, rtol=1e-3)
    for a, b in zip(whole.metrics, parts.metrics, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_parts_cover_the_batch_in_order_and_stay_below_both_limits(
    student: HuggingFaceStudent, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of(student, ["a", "a", "a", "bb", "bb", "a much longer prompt than that"])
    tokens = torch.full((6, 10), 50)
    assert student.parts(prompts, tokens) == [range(6)]
    student.part_tokens = 45
    parts = student.parts(prompts, tokens)
    assert [row for part in parts for row in part] == list(range(6))
    for part in parts:
        read = sum(map(len, {tuple(prompts[row]) for row in part}))
        assert len(part) == 1 or read + 10 * len(part) <= 45
    monkeypatch.setattr(huggingface, "PART_LOGITS", 1)
    assert [len(part) for part in student.parts(prompts, tokens)] == [1] * 6


def test_a_job_trains_it_and_the_same_seed_gives_the_same_bytes(student: HuggingFaceStudent) -> None:
    hp = hyperparameters(max_steps=12, learning_rate=0.02, batch_size=64, group_size=16)
    one, other = (TorchGRPO().train(student.fresh(), Echo(), hp, seed=5) for _ in range(2))
    assert one.weights == other.weights
    rewards = [row["reward_mean"] for row in one.metrics]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.15


def test_a_folder_without_a_model_and_a_model_of_another_family_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        HuggingFaceStudent(NAME, tmp_path)
    other = write_tiny_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    (other / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="can't be loaded"):
        HuggingFaceStudent(NAME, other).fresh()
