"""Checks a LoRA adapter that comes from outside before anything loads it, and gives back only what was checked.

An adapter is an untrusted file: of a rented pod, of a training whose reward code the agent wrote, of a stranger. It
comes as a folder in PEFT's layout (`adapter_of_folder`) or as the bytes that `Adapter.to_bytes` made
(`adapter_of_bytes`). Only safetensors and one JSON file are read, with size limits, and no code, pickle, template or
tokenizer ever is. What passes has exactly the tensors of one `lora_target` of one known architecture, in one rank and
one float type, finite, of bounded norm, and not all zero. Checked against PEFT 0.21.2 and prime-rl 559b447.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from trainwright.students.architecture import TARGETS, Architecture
from trainwright.students.safetensors_header import (
    BYTES,
    HEADER_LIMIT,
    Entry,
    HeaderError,
    parse_header,
    strict_json,
)

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
MAX_RANK = 64
MAX_ALPHA = 256.0
MAX_UPDATE_NORM = 1000.0
"""Largest alpha / rank x |B| x |A| of one layer (Frobenius norms), a bound on the norm of what is added to it."""

_CONFIG_LIMIT = 1 << 16
_PREFIX = "base_model.model."
_FACTS = "trainwright"

_IGNORED = {"base_model_name_or_path", "task_type", "inference_mode", "peft_version", "revision"}
_IGNORED |= {"lora_dropout", "megatron_core", "qalora_group_size"}
"""Keys of PEFT's configuration that say nothing about the function that the adapter computes."""

_NEUTRAL = {"alora_invocation_tokens", "alpha_pattern", "arrow_config", "auto_mapping", "corda_config"}
_NEUTRAL |= {"ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "kasa_config"}
_NEUTRAL |= {"layer_replication", "layers_pattern", "layers_to_transform", "loftq_config", "lora_bias"}
_NEUTRAL |= {"lora_ga_config", "megatron_config", "modules_to_save", "monteclora_config", "rank_pattern"}
_NEUTRAL |= {"target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "use_rslora"}
_NEUTRAL |= {"velora_config"}
"""Keys that could change that function; their values must be empty or false."""

_PLAIN_STARTS = (True, False, "gaussian")
"""Values of `init_lora_weights` that leave the base weights alone; others, such as pissa, move part of them over."""


class AdapterError(ValueError):
    """An adapter that must not be loaded. `code` is one of file, header, config, keys, shape, rank, dtype,
    not_finite, norm, zero; `message` is one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


@dataclass(frozen=True)
class Adapter:
    """A checked adapter: rank, alpha, `lora_target`, and the file that its tensors are in.

    `entries` are by PEFT's names (`base_model.model.` + module + `.lora_A.weight`), in a fixed order.
    """

    rank: int
    alpha: float
    target: str
    entries: Mapping[str, Entry]
    data: bytes

    def tensor(self, name: str) -> NDArray[numpy.float32]:
        """Return one tensor, converted to float32."""
        return _floats(self.data, self.entries[name])

    def to_bytes(self, student: str) -> bytes:
        """Return a fresh safetensors file with the facts in its metadata: what students save and load.

        The same adapter gives the same bytes, whatever the order and names in the file it came from.
        """
        facts = {"student": student, "rank": self.rank, "alpha": self.alpha, "target": self.target}
        header: dict[str, Any] = {"__metadata__": {_FACTS: json.dumps(facts)}}
        position = 0
        for name, entry in self.entries.items():
            size = entry.stop - entry.start
            offsets = [position, position + size]
            header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
            position += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors are aligned
        parts = [self.data[entry.start : entry.stop] for entry in self.entries.values()]
        return b"".join([len(text).to_bytes(8, "little"), text, *parts])

    def files(self, architecture: Architecture, student: str) -> dict[str, bytes]:
        """Return the adapter as the files of PEFT's layout, by name, with a configuration of our own."""
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": architecture.model,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(TARGETS[self.target]),
            "inference_mode": True,
        }
        return {WEIGHTS_FILE: self.to_bytes(student), CONFIG_FILE: json.dumps(config, indent=2).encode() + b"\n"}

    def write(self, folder: Path, architecture: Architecture, student: str) -> None:
        """Write those files into an existing folder."""
        for name, data in self.files(architecture, student).items():
            (folder / name).write_bytes(data)


def adapter_of_folder(folder: Path, architecture: Architecture) -> Adapter:
    """Return the adapter in a folder of PEFT's layout; other files there are never opened. Raises `AdapterError`.

    The tensors' names may lack PEFT's prefix `base_model.model.`, as in prime-rl's folders.
    """
    settings = _config(_read(folder, CONFIG_FILE, _CONFIG_LIMIT))
    return _adapter(_read(folder, WEIGHTS_FILE, _size_limit(architecture)), architecture, *settings)


def adapter_of_bytes(data: bytes, architecture: Architecture, student: str) -> Adapter:
    """Return the adapter that `Adapter.to_bytes` wrote for a student; raise `AdapterError` for anything else."""
    if len(data) > _size_limit(architecture):
        raise AdapterError("file", f"the adapter has {len(data)} bytes; at most {_size_limit(architecture)} are read")
    try:
        facts = strict_json(parse_header(data).metadata.get(_FACTS, "").encode())
    except HeaderError as error:
        raise AdapterError("header", f"not a saved adapter: {error}") from None
    if set(facts) != {"student", "rank", "alpha", "target"} or facts["student"] != student:
        raise AdapterError("config", f"not an adapter of {student}: {str(facts)[:200]}")
    if not isinstance(facts["target"], str) or facts["target"] not in TARGETS:
        raise AdapterError("config", f"the adapter names an unknown target {str(facts['target'])[:40]!r}")
    rank, alpha = _scale(facts["rank"], facts["alpha"])
    return _adapter(data, architecture, rank, alpha, facts["target"])


def _adapter(data: bytes, architecture: Architecture, rank: int, alpha: float, target: str) -> Adapter:
    """Return the checked adapter of a safetensors file with the given facts."""
    try:
        found = dict(parse_header(data).entries)
    except HeaderError as error:
        raise AdapterError("header", f"{WEIGHTS_FILE}: {error}") from None
    layers = architecture.linear_layers(target)
    if not any(name.startswith(_PREFIX) for name in found):
        found = {_PREFIX + name: entry for name, entry in found.items()}
    shapes = {}
    for module, (outputs, inputs) in layers.items():
        shapes[_name(module, "A")] = (rank, inputs)
        shapes[_name(module, "B")] = (outputs, rank)
    for kind, names in (("lacks", shapes.keys() - found.keys()), ("has the unknown", found.keys() - shapes.keys())):
        if names:
            raise AdapterError("keys", f"the adapter {kind} tensor {min(names)[:120]!r} ({len(names)} in all)")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise AdapterError("shape", f"{name} has the shape {found[name].shape}; it must be {shape}")
    if len({entry.dtype for entry in found.values()}) != 1:
        raise AdapterError("dtype", "the adapter mixes float types")
    adapter = Adapter(rank, alpha, target, {name: found[name] for name in shapes}, data)
    _check_values(adapter, layers)
    return adapter


def _check_values(adapter: Adapter, layers: Mapping[str, tuple[int, int]]) -> None:
    any_update = False
    for module in layers:
        norms = {}
        for kind in "AB":
            name = _name(module, kind)
            values = adapter.tensor(name)
            if not numpy.isfinite(values).all():
                raise AdapterError("not_finite", f"{name} holds NaN or infinity")
            norms[kind] = math.sqrt(float(numpy.square(values, dtype=numpy.float64).sum()))
        update = adapter.alpha / adapter.rank * norms["A"] * norms["B"]
        if update > MAX_UPDATE_NORM:
            raise AdapterError(
                "norm", f"the update of {module} has a norm of up to {update:.3g}, over {MAX_UPDATE_NORM:g}"
            )
        any_update |= update > 0
    if not any_update:
        raise AdapterError("zero", "the adapter adds nothing: in every layer A or B is all zeros")


def _config(data: bytes) -> tuple[int, float, str]:
    """Return rank, alpha and target of PEFT's configuration, every key of which must be known and harmless."""
    try:
        config = strict_json(data)
    except HeaderError as error:
        raise AdapterError("config", f"{CONFIG_FILE}: {error}") from None
    if config.pop("peft_type", None) != "LORA":
        raise AdapterError("config", f"{CONFIG_FILE}: peft_type is not LORA")
    if config.pop("bias", "none") != "none":
        raise AdapterError("config", f"{CONFIG_FILE}: bias is not none")
    if config.pop("init_lora_weights", True) not in _PLAIN_STARTS:
        raise AdapterError("config", f"{CONFIG_FILE}: init_lora_weights changes the base weights")
    rank, alpha = _scale(config.pop("r", None), config.pop("lora_alpha", None))
    modules = config.pop("target_modules", None)
    named = {tuple(sorted(names)): target for target, names in TARGETS.items()}
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise AdapterError("config", f"{CONFIG_FILE}: target_modules is not a list of names")
    target = named.get(tuple(sorted(modules)))
    if target is None:
        raise AdapterError("config", f"{CONFIG_FILE}: target_modules is no known set: {str(modules)[:200]}")
    for key, value in config.items():
        if key in _NEUTRAL and not value:
            continue
        if key not in _IGNORED:
            raise AdapterError("config", f"{CONFIG_FILE}: {key[:60]} = {str(value)[:60]} is not allowed")
    return rank, alpha, target


def _scale(rank: Any, alpha: Any) -> tuple[int, float]:
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise AdapterError("rank", f"the rank is {str(rank)[:40]}; it must be an integer from 1 to {MAX_RANK}")
    if type(alpha) not in (int, float) or not 0 < alpha <= MAX_ALPHA:
        raise AdapterError("config", f"alpha is {str(alpha)[:40]}; it must be a number up to {MAX_ALPHA:g}")
    return rank, float(alpha)


def _name(module: str, kind: str) -> str:
    return f"{_PREFIX}{module}.lora_{kind}.weight"


def _floats(data: bytes, entry: Entry) -> NDArray[numpy.float32]:
    if entry.dtype == "BF16":  # the upper half of a float32
        halves = numpy.frombuffer(data, "<u2", math.prod(entry.shape), entry.start)
        return (halves.astype(numpy.uint32) << 16).view(numpy.float32).reshape(entry.shape)
    kind = "<f4" if entry.dtype == "F32" else "<f2"
    values = numpy.frombuffer(data, kind, math.prod(entry.shape), entry.start)
    return values.astype(numpy.float32, copy=False).reshape(entry.shape)


def _size_limit(architecture: Architecture) -> int:
    features = sum(map(sum, architecture.linear_layers("all").values()))
    return 8 + HEADER_LIMIT + features * MAX_RANK * max(BYTES.values())


def _read(folder: Path, name: str, limit: int) -> bytes:
    """Return a regular file of a folder, through no link and only up to its limit."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK a named pipe would hang us
    try:
        inside = os.open(folder, flags | os.O_DIRECTORY)
        try:
            descriptor = os.open(name, flags, dir_fd=inside)
        finally:
            os.close(inside)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise AdapterError("file", f"{name} is not a regular file")
            if status.st_size > limit:
                raise AdapterError("file", f"{name} has {status.st_size} bytes; at most {limit} are read")
            data = file.read(limit + 1)
    except OSError as error:
        raise AdapterError("file", f"{name} can't be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise AdapterError("file", f"{name} grows while it is read")
    return data
