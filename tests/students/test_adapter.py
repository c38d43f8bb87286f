"""Adapters from outside: a good one passes unchanged, and every way of being bad is named."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.students import adapter as module
from trainwright.students.adapter import (
    CONFIG_FILE,
    MAX_RANK,
    WEIGHTS_FILE,
    AdapterError,
    adapter_of_bytes,
    adapter_of_folder,
)
from trainwright.students.architecture import QWEN3, TARGETS, Architecture

SMALL = Architecture("org/small", hidden=16, layers=2, heads=4, key_value_heads=2, head_dim=8, intermediate=24)
RANK, ALPHA = 4, 8.0
Tensors = dict[str, torch.Tensor]


def tensors(target: str = "all", rank: int = RANK, prefix: str = "base_model.model.") -> Tensors:
    generator = torch.Generator().manual_seed(1)
    made = {}
    for path, (outputs, inputs) in SMALL.linear_layers(target).items():
        made[f"{prefix}{path}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator)
        made[f"{prefix}{path}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.1
    return made


def config(**changes: Any) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS["all"]),
        "modules_to_save": None,
    } | changes


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes an adapter's folder; `data` replaces the whole weights file."""

    def made(state: Tensors | None = None, data: bytes | None = None, **changes: Any) -> Path:
        if data is None:
            data = safetensors.torch.save(state if state is not None else tensors(), {"format": "pt"})
        (tmp_path / WEIGHTS_FILE).write_bytes(data)
        (tmp_path / CONFIG_FILE).write_text(json.dumps(config(**changes)))
        return tmp_path

    return made


def refusal(folder: Path) -> AdapterError:
    with pytest.raises(AdapterError) as caught:
        adapter_of_folder(folder, SMALL)
    return caught.value


def raw(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


@pytest.mark.parametrize("prefix", ["base_model.model.", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", TARGETS)
def test_a_good_one_passes_and_stays_what_it_was(write: Write, target: str, dtype: torch.dtype, prefix: str) -> None:
    state = {name: tensor.to(dtype) for name, tensor in tensors(target, prefix=prefix).items()}
    adapter = adapter_of_folder(write(state, target_modules=list(TARGETS[target])), SMALL)
    assert (adapter.rank, adapter.alpha, adapter.target) == (RANK, ALPHA, target)
    written = safetensors.torch.load(adapter.to_bytes("small"))
    assert written.keys() == {f"base_model.model.{name.removeprefix(prefix)}" for name in state}
    for name, tensor in state.items():
        full = f"base_model.model.{name.removeprefix(prefix)}"
        assert torch.equal(written[full], tensor)
        assert numpy.array_equal(adapter.tensor(full), tensor.float().numpy())


def test_bytes_are_canonical_and_read_back(write: Write, tmp_path: Path) -> None:
    forwards = adapter_of_folder(write(tensors()), SMALL).to_bytes("small")
    backwards = adapter_of_folder(write(dict(reversed(tensors(prefix="").items()))), SMALL).to_bytes("small")
    assert forwards == backwards
    again = adapter_of_bytes(forwards, SMALL, "small")
    assert again.to_bytes("small") == forwards
    folder = tmp_path / "written"
    folder.mkdir()
    again.write(folder, SMALL, "small")
    assert adapter_of_folder(folder, SMALL).to_bytes("small") == forwards
    assert json.loads((folder / CONFIG_FILE).read_text())["base_model_name_or_path"] == "org/small"
    with pytest.raises(AdapterError, match="not an adapter of other"):
        adapter_of_bytes(forwards, SMALL, "other")


def test_the_real_students_have_their_known_numbers_of_parameters() -> None:
    """Per layer and rank: the sums of input and output features, as PEFT counts trainable parameters."""
    for name, per_rank in (("qwen3-0.6b", 630_784), ("qwen3-1.7b", 1_089_536)):
        assert sum(map(sum, QWEN3[name].linear_layers("all").values())) == per_rank


def damaged(**changes: Any) -> Tensors:
    """Return good tensors with some replaced or, by None, removed."""
    state = tensors()
    for name, value in changes.items():
        full = "base_model.model." + name.replace("__", ".")
        if value is None:
            del state[full]
        else:
            state[full] = value
    return state


Q_A, Q_B = "model__layers__0__self_attn__q_proj__lora_A__weight", "model__layers__0__self_attn__q_proj__lora_B__weight"
BAD_TENSORS = {
    "a tensor is missing": (damaged(**{Q_A: None}), "keys"),
    "a layer is missing": ({k: v for k, v in tensors().items() if "layers.1" not in k}, "keys"),
    "an unknown tensor": (damaged(model__embed_tokens__weight=torch.ones(4, 4)), "keys"),
    "a base weight": (damaged(model__layers__0__self_attn__q_proj__weight=torch.ones(32, 16)), "keys"),
    "a norm's weight": (damaged(model__norm__weight=torch.ones(16)), "keys"),
    "a layer too many": (damaged(model__layers__2__self_attn__q_proj__lora_A__weight=torch.ones(4, 16)), "keys"),
    "two ways of naming": (tensors() | {k: v.clone() for k, v in tensors(prefix="").items()}, "keys"),
    "no tensor": ({}, "keys"),
    "a tensor of the base's size": (damaged(**{Q_B: torch.ones(32, 16)}), "shape"),
    "a transposed tensor": (damaged(**{Q_A: torch.ones(16, RANK)}), "shape"),
    "a rank of its own": (damaged(**{Q_A: torch.ones(8, 16), Q_B: torch.ones(32, 8)}), "shape"),
    "a third dimension": (damaged(**{Q_A: torch.ones(1, RANK, 16)}), "shape"),
    "a mix of types": (damaged(**{Q_A: torch.ones(RANK, 16, dtype=torch.float16)}), "dtype"),
    "integers": (damaged(**{Q_A: torch.ones(RANK, 16, dtype=torch.int8)}), "header"),
    "doubles": ({k: v.double() for k, v in tensors().items()}, "header"),
    "NaN": (damaged(**{Q_A: torch.full((RANK, 16), torch.nan)}), "not_finite"),
    "one infinity": (damaged(**{Q_B: torch.ones(32, RANK).index_fill_(0, torch.tensor(3), torch.inf)}), "not_finite"),
    "a huge norm": (damaged(**{Q_B: torch.full((32, RANK), 1e6)}), "norm"),
    "a norm beyond float32": (damaged(**{Q_B: torch.full((32, RANK), 3e38)}), "norm"),
    "all zeros in B": ({k: v if "lora_A" in k else torch.zeros_like(v) for k, v in tensors().items()}, "zero"),
    "all zeros": ({k: torch.zeros_like(v) for k, v in tensors().items()}, "zero"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors_are_refused(write: Write, name: str) -> None:
    state, code = BAD_TENSORS[name]
    error = refusal(write(state))
    assert error.code == code
    assert len(str(error)) < 400


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nan_is_found_in_half_types(write: Write, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in tensors().items()}
    list(state.values())[-1][0, 0] = torch.nan
    assert refusal(write(state)).code == "not_finite"


def test_one_trained_layer_is_enough(write: Write) -> None:
    state = {k: v if "lora_A" in k else torch.zeros_like(v) for k, v in tensors().items()}
    next(v for k, v in state.items() if "lora_B" in k)[0, 0] = 1e-6
    assert adapter_of_folder(write(state), SMALL).rank == RANK


BAD_CONFIGS = {
    "a rank of 4096": ({"r": 4096}, "rank"),
    "a rank of zero": ({"r": 0}, "rank"),
    "a rank that is true": ({"r": True}, "rank"),
    "a rank that is text": ({"r": "4"}, "rank"),
    "another rank than the tensors": ({"r": 8}, "shape"),
    "no alpha": ({"lora_alpha": None}, "config"),
    "a negative alpha": ({"lora_alpha": -1}, "config"),
    "a huge alpha": ({"lora_alpha": 1e9}, "config"),
    "another method": ({"peft_type": "IA3"}, "config"),
    "trained biases": ({"bias": "all"}, "config"),
    "a pattern for modules": ({"target_modules": ".*"}, "config"),
    "half of the modules": ({"target_modules": ["q_proj"]}, "config"),
    "a module twice": ({"target_modules": [*TARGETS["attention"], "q_proj"]}, "config"),
    "a foreign module": ({"target_modules": [*TARGETS["all"], "lm_head"]}, "config"),
    "saved modules": ({"modules_to_save": ["lm_head"]}, "config"),
    "code by name": ({"auto_map": {"AutoModel": "evil.Model"}}, "config"),
    "another mapping": ({"auto_mapping": {"base_model_class": "Evil"}}, "config"),
    "a rank of its own for a layer": ({"rank_pattern": {"q_proj": 4096}}, "config"),
    "another formula": ({"use_dora": True}, "config"),
    "another scale": ({"use_rslora": True}, "config"),
    "a part of the base": ({"init_lora_weights": "pissa"}, "config"),
    "an unknown key": ({"trust_remote_code": True}, "config"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_configurations_are_refused(write: Write, name: str) -> None:
    changes, code = BAD_CONFIGS[name]
    assert refusal(write(**changes)).code == code


def test_what_peft_writes_itself_is_allowed(write: Write) -> None:
    """The keys of `LoraConfig` of PEFT 0.21.2 with their default values."""
    empty = {"alpha_pattern": {}, "rank_pattern": {}, "loftq_config": {}, "exclude_modules": None, "eva_config": None}
    false = dict.fromkeys(("fan_in_fan_out", "use_dora", "use_rslora", "use_qalora", "lora_bias", "use_bdlora"), False)
    others = {"megatron_core": "megatron.core", "qalora_group_size": 16, "peft_version": "0.21.2", "revision": None}
    folder = write(**empty, **false, **others, init_lora_weights=True, inference_mode=True)
    assert adapter_of_folder(folder, SMALL).target == "all"


TEN_GIGABYTES = 10 * 10**9
ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BAD_FILES = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "ten gigabytes of header": raw({}, length=TEN_GIGABYTES),
    "the longest header": raw({}, length=2**64 - 1),
    "a header longer than the file": raw({}, length=1000),
    "a header of spaces": raw(b" " * (1 << 20)),
    "a pickle": pickle.dumps({"weight": [1.0] * 100}),
    "a pickle of torch": b"PK\x03\x04" + bytes(100),
    "no JSON": raw(b"{not json"),
    "no UTF-8": raw(b'{"\xff": 1}'),
    "a list": raw([]),
    "deep nesting": raw(b"[" * 100_000),
    "NaN in the header": raw(b'{"a": NaN}'),
    "a key twice": raw(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {}}', bytes(4)),
    "metadata of numbers": raw({"__metadata__": {"a": 1}}),
    "metadata that is a list": raw({"__metadata__": []}),
    "a tensor that is a number": raw({"a": 1}),
    "a tensor with a further key": raw({"a": ENTRY | {"code": "x"}}, bytes(4)),
    "an unknown type": raw({"a": ENTRY | {"dtype": "F8_E4M3"}}, bytes(4)),
    "a type that is a list": raw({"a": ENTRY | {"dtype": []}}, bytes(4)),
    "a negative size": raw({"a": ENTRY | {"shape": [-1]}}, bytes(4)),
    "a size that is true": raw({"a": ENTRY | {"shape": [True]}}, bytes(4)),
    "a huge size": raw({"a": ENTRY | {"shape": [2**62, 2**62]}}, bytes(4)),
    "a thousand dimensions": raw({"a": ENTRY | {"shape": [1] * 1000}}, bytes(4)),
    "one offset": raw({"a": ENTRY | {"data_offsets": [0]}}, bytes(4)),
    "offsets backwards": raw({"a": ENTRY | {"data_offsets": [4, 0]}}, bytes(4)),
    "offsets beyond the file": raw({"a": ENTRY | {"data_offsets": [100, 104]}}, bytes(4)),
    "bytes that don't fit the shape": raw({"a": ENTRY | {"data_offsets": [0, 8]}}, bytes(8)),
    "tensors that overlap": raw({"a": ENTRY, "b": ENTRY}, bytes(4)),
    "a gap": raw({"a": ENTRY, "b": ENTRY | {"data_offsets": [8, 12]}}, bytes(12)),
    "bytes behind the tensors": raw({"a": ENTRY}, bytes(100)),
    "too few bytes": raw({"a": ENTRY}, bytes(3)),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_hostile_files_are_refused(write: Write, name: str) -> None:
    error = refusal(write(data=BAD_FILES[name]))
    assert error.code == "header"
    assert len(str(error)) < 500
    with pytest.raises(AdapterError):
        adapter_of_bytes(BAD_FILES[name], SMALL, "small")


FACTS = {"student": "small", "rank": RANK, "alpha": ALPHA, "target": "all"}


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ("", "header"),
        ("[]", "header"),
        (json.dumps(FACTS | {"rank": 4096}), "rank"),
        (json.dumps(FACTS | {"alpha": "8"}), "config"),
        (json.dumps(FACTS | {"target": []}), "config"),
        (json.dumps(FACTS | {"target": "embeddings"}), "config"),
        (json.dumps(FACTS | {"more": 1}), "config"),
        (json.dumps(FACTS | {"target": "mlp"}), "keys"),
    ],
)
def test_bad_facts_are_refused(facts: str, code: str) -> None:
    with pytest.raises(AdapterError) as caught:
        adapter_of_bytes(safetensors.torch.save(tensors(), {"trainwright": facts}), SMALL, "small")
    assert caught.value.code == code


def test_only_regular_files_in_a_real_folder_are_read(write: Write, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    folder = write()
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        target = (folder / name).rename(elsewhere / name)
        (folder / name).symlink_to(target)
        assert refusal(folder).code == "file"
        (folder / name).unlink()
        assert refusal(folder).code == "file"
        os.mkfifo(folder / name)
        assert refusal(folder).code == "file"
        (folder / name).unlink()
        (folder / name).mkdir()
        assert refusal(folder).code == "file"
        (folder / name).rmdir()
        target.rename(folder / name)
    linked = elsewhere / "link"
    linked.symlink_to(folder)
    assert refusal(linked).code == "file"
    assert refusal(folder / "nowhere").code == "file"
    assert adapter_of_folder(folder, SMALL).rank == RANK


def test_a_file_that_is_too_large_is_not_read(write: Write) -> None:
    folder = write()
    os.truncate(folder / WEIGHTS_FILE, 10 * 10**9)  # sparse
    error = refusal(folder)
    assert error.code == "file"
    assert "10000000000 bytes" in error.message
    (folder / CONFIG_FILE).write_text(" " * (1 << 17))
    assert refusal(folder).code == "file"


def test_other_files_of_the_folder_are_never_opened(write: Write) -> None:
    folder = write()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(print))
    (folder / "modeling.py").write_text("raise SystemExit\n")
    (folder / "chat_template.jinja").symlink_to("/etc/passwd")
    with tarfile.open(folder / "more.tar", "w") as archive:
        archive.add(folder / "modeling.py", "../../modeling.py")
    assert adapter_of_folder(folder, SMALL).rank == RANK


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 4000), flipped=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_harmless(position: int, flipped: int) -> None:
    data = bytearray(adapter_bytes())
    data[position % len(data)] ^= flipped
    try:
        adapter = adapter_of_bytes(bytes(data), SMALL, "small")
    except AdapterError:
        return
    loaded = safetensors.torch.load(adapter.to_bytes("small"))
    assert all(bool(tensor.isfinite().all()) for tensor in loaded.values())
    assert loaded.keys() == tensors().keys()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=100).map(raw) | st.text(max_size=100).map(lambda t: raw(t)))
def test_any_bytes_end_in_an_answer(data: bytes) -> None:
    with pytest.raises(AdapterError):
        adapter_of_bytes(data, SMALL, "small")


def adapter_bytes() -> bytes:
    """Return the bytes of a small good adapter."""
    return bytes(safetensors.torch.save(tensors(), {"trainwright": json.dumps(FACTS)}))


def test_what_passes_is_what_safetensors_itself_reads(write: Write) -> None:
    adapter = adapter_of_folder(write(), SMALL)
    ours, theirs = adapter.to_bytes("small"), safetensors.numpy.load(adapter.to_bytes("small"))
    assert {name: adapter.tensor(name).tolist() for name in adapter.entries} == {
        k: v.tolist() for k, v in theirs.items()
    }
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load(ours[:-1])


def test_the_limits_let_the_largest_allowed_adapter_through() -> None:
    features = sum(map(sum, QWEN3["qwen3-1.7b"].linear_layers("all").values()))
    assert module._size_limit(QWEN3["qwen3-1.7b"]) > features * MAX_RANK * 4
