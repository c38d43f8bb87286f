from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainwright.messages import Message
from trainwright.students.nano import ALPHABET, CONFIGS, END, MAX_PROMPT, PAD, NanoStudent
from trainwright.students.student import UnreadablePrompt

TEXTS = ["reverse abc", "sort zxyab", "a", "", "12+34=", "count x in axbxcxdxexfxgxhxixjxkx: how many?"]


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def student() -> NanoStudent:
    """A student whose weights are far from their initial values, so that no term is near 0 or 1 by accident."""
    state = NanoStudent.untrained("nano-64", 0).state_dict()
    noise = seeded(1)
    return NanoStudent(
        CONFIGS["nano-64"],
        {name: tensor + 0.1 * torch.randn(tensor.shape, generator=noise) for name, tensor in state.items()},
    )


@pytest.fixture
def adapted(student: NanoStudent) -> NanoStudent:
    """The student with a LoRA adapter that changes its outputs."""
    student.add_adapter(rank=4, alpha=8.0, target="all", seed=0)
    noise = seeded(2)
    for parameter in student.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise)
    return student


def as_transformers(student: NanoStudent) -> Qwen3ForCausalLM:
    model = Qwen3ForCausalLM(Qwen3Config(**student.config.as_qwen3())).eval()
    missing, unexpected = model.load_state_dict(student.state_dict(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@torch.no_grad()
def oracle_logprobs(model: Qwen3ForCausalLM, prompt: list[int], tokens: Tensor, temperature: float) -> Tensor:
    """The log-distribution (T, V) over each completion token, from transformers, one sequence at a time, no cache."""
    logits = model(torch.tensor([prompt + tokens.tolist()])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


# The architecture is transformers' Qwen3


@pytest.mark.parametrize("name", CONFIGS)
def test_every_logit_equals_that_of_transformers(name: str) -> None:
    student = NanoStudent.untrained(name, 3)
    model = as_transformers(student)
    prompt, tokens = student.encode(user("reverse abc")), torch.tensor([5, 6, 7, END])
    expected = oracle_logprobs(model, prompt, tokens, 1.0)
    for token in range(student.config.vocab):
        alternatives = tokens.clone()
        alternatives[-1] = token
        found, _ = student.logprobs([prompt], alternatives[None], temperature=1.0)
        torch.testing.assert_close(found[0, -1], expected[-1, token], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_and_entropies_equal_those_of_transformers(adapted: NanoStudent, temperature: float) -> None:
    model = as_transformers(adapted)
    prompts = [adapted.encode(user(text)) for text in TEXTS for _ in range(2)]
    tokens = torch.randint(2, adapted.config.vocab, (len(prompts), 9), generator=seeded())
    for row, end in enumerate([0, 8, 3, 4, 1, 7, 5, 5, 2, 6, 8, 0]):
        tokens[row, end:] = PAD
        tokens[row, end] = END
    logprobs, entropies = adapted.logprobs(prompts, tokens, temperature=temperature)
    for row, prompt in enumerate(prompts):
        kept = tokens[row, : tokens[row].tolist().index(END) + 1]
        expected = oracle_logprobs(model, prompt, kept, temperature)
        torch.testing.assert_close(
            logprobs[row, : len(kept)], expected.gather(1, kept[:, None])[:, 0], atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            entropies[row, : len(kept)], -(expected.exp() * expected).sum(-1), atol=1e-5, rtol=1e-5
        )
        assert not logprobs[row, len(kept) :].any()
        assert not entropies[row, len(kept) :].any()


# Sampling


@pytest.mark.parametrize("repeats", [1, 2, 3, 8])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_batched_sampling_draws_what_one_by_one_sampling_draws(
    adapted: NanoStudent, repeats: int, temperature: float
) -> None:
    model = as_transformers(adapted)
    prompts = [adapted.encode(user(text)) for text in TEXTS for _ in range(repeats)]
    drawn = adapted.sample(prompts, temperature=temperature, max_tokens=12, generator=seeded(5))
    uniforms = torch.rand(12, len(prompts), 1, generator=seeded(5))
    for row, prompt in enumerate(prompts):
        tokens: list[int] = []
        while len(tokens) < 12 and END not in tokens:
            logprobs = oracle_logprobs(model, prompt, torch.tensor([*tokens, PAD]), temperature)[-1]
            tokens.append(int((logprobs.exp().cumsum(0) < uniforms[len(tokens), row]).sum()))
        assert drawn.tokens_BT[row, : len(tokens)].tolist() == tokens
        assert not drawn.tokens_BT[row, len(tokens) :].any()
        assert bool(drawn.finished_B[row]) == (END in tokens)
        assert drawn.mask_BT[row].sum() == len(tokens)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("repeats", [1, 8])
def test_recomputed_logprobs_equal_those_of_sampling(adapted: NanoStudent, temperature: float, repeats: int) -> None:
    prompts = [adapted.encode(user(text)) for text in TEXTS for _ in range(repeats)]
    drawn = adapted.sample(prompts, temperature=temperature, max_tokens=16, generator=seeded())
    logprobs, _ = adapted.logprobs(prompts, drawn.tokens_BT, temperature=temperature)
    torch.testing.assert_close(logprobs, drawn.logprobs_BT, atol=1e-5, rtol=0)


def test_random_numbers_do_not_depend_on_the_weights(student: NanoStudent) -> None:
    prompts = [student.encode(user(text)) for text in TEXTS]
    state = student.state_dict()
    # Logits fifty times as large: nearly greedy, so that the two stop at different lengths.
    sharp = NanoStudent(student.config, state | {"model.norm.weight": state["model.norm.weight"] * 50})
    states = []
    for candidate in (student, sharp):
        generator = seeded(9)
        candidate.sample(prompts, temperature=1.0, max_tokens=20, generator=generator)
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_slightly_different_weights_draw_nearly_the_same_tokens(student: NanoStudent) -> None:
    prompts = [student.encode(user("reverse abc"))] * 64
    other = student.fresh()
    other.add_adapter(4, 8.0, "all", seed=0)
    for parameter in other.parameters():
        parameter.data += 0.003
    first, paired = (s.sample(prompts, temperature=1.0, max_tokens=1, generator=seeded(1)) for s in (student, other))
    unpaired = student.sample(prompts, temperature=1.0, max_tokens=1, generator=seeded(2))
    agreement = (first.tokens_BT == paired.tokens_BT).float().mean()
    assert agreement > 0.9 > (first.tokens_BT == unpaired.tokens_BT).float().mean()


def test_sampling_stops_at_the_token_limit_and_when_all_have_ended(student: NanoStudent) -> None:
    prompts = [student.encode(user(text)) for text in TEXTS]
    drawn = student.sample(prompts, temperature=1.0, max_tokens=3, generator=seeded())
    assert drawn.tokens_BT.shape == drawn.mask_BT.shape == drawn.logprobs_BT.shape == (len(TEXTS), 3)
    assert not drawn.finished_B.all()
    alone = [student.sample(prompts[:1], temperature=1.0, max_tokens=200, generator=seeded(s)) for s in range(8)]
    for one in alone:
        assert one.finished_B.item() == (END in one.tokens_BT[0].tolist())
        assert not one.finished_B.item() or one.tokens_BT[0, -1] == END  # no column after the last end
    assert any(one.finished_B.item() and one.tokens_BT.shape[1] < 200 for one in alone)


def test_more_tokens_than_the_context_are_refused(student: NanoStudent) -> None:
    with pytest.raises(ValueError, match="256"):
        student.sample([student.encode(user("a"))], temperature=1.0, max_tokens=256, generator=seeded())


def test_tokens_after_the_end_have_no_effect_on_the_gradient(adapted: NanoStudent) -> None:
    prompts = [adapted.encode(user(text)) for text in TEXTS]
    tokens = torch.randint(2, adapted.config.vocab, (len(prompts), 8), generator=seeded())
    tokens[:, 4] = END
    padded, garbled = tokens.clone(), tokens.clone()
    padded[:, 5:], garbled[:, 5:] = PAD, torch.randint(0, adapted.config.vocab, (len(prompts), 3), generator=seeded(4))
    gradients = []
    for variant in (padded, garbled, padded[:, :5]):
        logprobs, _ = adapted.logprobs(prompts, variant, temperature=1.0)
        gradients.append(torch.autograd.grad(logprobs.sum(), adapted.parameters()))
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            assert torch.equal(a, b)


# Text


@given(st.text(ALPHABET, max_size=MAX_PROMPT))
def test_decoding_returns_what_was_encoded(text: str) -> None:
    student = NanoStudent.untrained("nano-48", 0)
    tokens = student.encode(user(text))
    assert tokens[-1] == END
    assert student.decode(tokens) == student.decode([*tokens, PAD, 7]) == text


@pytest.mark.parametrize(
    ("messages", "part"),
    [
        (user("abc" + "D" + "e"), "'D' at position 3"),
        (user("a" * (MAX_PROMPT + 1)), f"{MAX_PROMPT + 1} characters; nano-64 reads at most {MAX_PROMPT}"),
        ([], "got: none"),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "got: system, user"),
        ([{"role": "assistant", "content": "a"}], "got: assistant"),
    ],
)
def test_an_unreadable_prompt_is_named(student: NanoStudent, messages: list[Message], part: str) -> None:
    with pytest.raises(UnreadablePrompt) as caught:
        student.encode(messages)
    assert part in str(caught.value)


# Adapters and weights


@pytest.mark.parametrize(("target", "count"), [("attention", 4), ("mlp", 4), ("all", 8)])
def test_an_adapter_starts_as_the_identity_and_leaves_the_base_alone(
    student: NanoStudent, target: str, count: int
) -> None:
    before = student.state_dict()
    fresh = student.fresh()
    fresh.add_adapter(rank=4, alpha=8.0, target=target, seed=1)
    assert len(fresh.parameters()) == count
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())
    for parameter in fresh.parameters():
        parameter.data += 0.1
    changed = {name for name, tensor in fresh.state_dict().items() if not torch.equal(tensor, before[name])}
    kinds = {"attention": "self_attn", "mlp": "mlp"}
    assert changed == {name for name in before if "proj" in name and kinds.get(target, "") in name}
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())


def test_adapter_seeds_differ(student: NanoStudent) -> None:
    first, second, third = student.fresh(), student.fresh(), student.fresh()
    for copy, seed in ((first, 1), (second, 1), (third, 2)):
        copy.add_adapter(rank=4, alpha=8.0, target="all", seed=seed)
    assert first.save() == second.save() != third.save()


def test_rank_zero_trains_every_weight_and_leaves_the_base_alone(student: NanoStudent) -> None:
    before = student.state_dict()
    fresh = student.fresh()
    assert fresh.parameters() == []
    fresh.add_adapter(rank=0, alpha=8.0, target="attention", seed=0)
    assert sum(p.numel() for p in fresh.parameters()) == sum(t.numel() for t in before.values())
    logprobs, _ = fresh.logprobs([fresh.encode(user("abc"))], torch.tensor([[4, 5, END]]), temperature=1.0)
    torch.autograd.backward(logprobs.sum())
    for parameter in fresh.parameters():
        assert parameter.grad is not None
        assert parameter.grad.any()
        parameter.data += 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.fresh().state_dict().items())


def test_adapter_names_are_those_of_peft(adapted: NanoStudent) -> None:
    state = safetensors.torch.load(adapted.save())
    assert state["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"].shape == (4, 64)
    assert state["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"].shape == (64, 4)
    merged, base = adapted.state_dict(), adapted.fresh().state_dict()
    for name in ("layers.1.self_attn.k_proj", "layers.0.mlp.up_proj"):
        a, b = (state[f"base_model.model.model.{name}.lora_{kind}.weight"] for kind in "AB")
        torch.testing.assert_close(merged[f"model.{name}.weight"], base[f"model.{name}.weight"] + 8.0 / 4 * b @ a)


@pytest.mark.parametrize("rank", [0, 4])
def test_saved_weights_load_into_a_fresh_copy(student: NanoStudent, rank: int) -> None:
    trained = student.fresh()
    trained.add_adapter(rank, 8.0, "all", seed=0)
    for parameter in trained.parameters():
        parameter.data += 0.05
    loaded = student.fresh()
    loaded.load(trained.save())
    assert loaded.save() == trained.save()
    prompts = [student.encode(user("reverse abc"))] * 4
    first, second = (s.sample(prompts, temperature=1.0, max_tokens=8, generator=seeded()) for s in (trained, loaded))
    assert torch.equal(first.logprobs_BT, second.logprobs_BT)


def edited(data: bytes, facts: dict[str, object], tensors: dict[str, Tensor | None]) -> bytes:
    """Saved weights with some facts and tensors replaced (or dropped, where None)."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    known = json.loads(header["__metadata__"]["trainwright"])
    state = safetensors.torch.load(data) | tensors
    kept = {name: tensor for name, tensor in state.items() if tensor is not None}
    return safetensors.torch.save(kept, {"trainwright": json.dumps(known | facts)})


A = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("facts", "tensors", "part"),
    [
        ({"student": "nano-48"}, {}, "nano-48"),
        ({"rank": "x"}, {}, "bad adapter facts"),
        ({"rank": 0}, {}, "bad adapter facts"),
        ({"rank": 10**12}, {}, "bad adapter facts"),
        ({"rank": 64}, {}, "expected (64, "),
        ({"rank": None}, {}, "bad adapter facts"),
        ({"rank": float("inf")}, {}, "bad adapter facts"),
        ({"alpha": "nan"}, {}, "bad adapter facts"),
        ({"target": "everything"}, {}, "bad adapter facts"),
        ({"target": "mlp"}, {}, "unknown"),
        ({}, {A: None}, "missing"),
        ({}, {"surplus": torch.zeros(1)}, "unknown"),
        ({}, {A: torch.zeros(4, 63)}, "expected (4, 64)"),
        ({}, {A: torch.zeros(4, 64, dtype=torch.float16)}, "float16"),
        ({}, {A: torch.full((4, 64), float("nan"))}, "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    adapted: NanoStudent, facts: dict[str, object], tensors: dict[str, Tensor | None], part: str
) -> None:
    fresh = adapted.fresh()
    before = fresh.save()
    with pytest.raises(ValueError) as caught:
        fresh.load(edited(adapted.save(), facts, tensors))
    assert part in str(caught.value)
    assert fresh.save() == before


@given(st.binary(max_size=200))
def test_bytes_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        NanoStudent.untrained("nano-48", 0).load(data)


def test_a_cut_file_is_refused(adapted: NanoStudent) -> None:
    data = adapted.save()
    for length in (0, 7, 8, 100, len(data) - 1):
        with pytest.raises(ValueError):
            adapted.fresh().load(data[:length])
