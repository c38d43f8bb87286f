"""Pretrained students: any causal language model of the Llama and Qwen family with LoRA, on a GPU or on CPU threads.

Adapters are PEFT's (checked with peft 0.21.2, transformers 5.24.0). Completions of one prompt share its keys and
values, in sampling and, differentiably, in training: on short replies most of a GRPO step would otherwise go into
reading the same prompt again and again.

Letters for shapes: U unique prompts, B sequences, P prompt tokens, T completion tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from trainwright.errors import ConfigError, JobFault
from trainwright.students.adapter import AdapterError, adapter_of_bytes
from trainwright.students.architecture import TARGETS
from trainwright.students.huggingface_text import PretrainedText
from trainwright.students.student import Completions, UnreadablePrompt

CPU_PART_BYTES = 4 << 30
"""What the activations of one backward pass may take on a CPU; on a GPU a third of its memory."""
SHORTEST_PART = 256
"""Tokens that a part has room for in any case."""
PART_LOGITS = 1 << 27
"""Completion tokens x vocabulary of one backward pass; it holds about four such tensors, 0.5 GiB each."""


class HuggingFaceStudent(PretrainedText):
    """The `Student` protocol on a folder that `from_pretrained` reads. The weights are loaded when first needed."""

    def __init__(self, name: str, folder: Path, fetch_weights: Callable[[], Path] | None = None) -> None:
        """Read configuration and tokenizer; raise `ConfigError` for a folder or model that can't be a student.

        `fetch_weights` returns the folder with the weights in it, where they may have to be downloaded first.
        """
        super().__init__(name, folder)
        self._fetch_weights = fetch_weights or (lambda: folder)
        self._base: Any = None  # the module as loaded, frozen; shared with copies
        self._model: Any = None  # the one in use: the base, or a copy with an adapter or trainable weights
        self._trained = False
        self._adapter: dict[str, Any] | None = None

    def fresh(self) -> HuggingFaceStudent:
        """Return a copy that shares tokenizer and base weights, which nothing writes to, and has no adapter."""
        self._load_base()
        other = copy.copy(self)
        other._model, other._trained, other._adapter = other._base, False, None
        return other

    # Weights

    @cached_property
    def device(self) -> torch.device:
        """Return where the model runs: the first GPU, else the CPU."""
        return default_device()

    @cached_property
    def part_tokens(self) -> int:
        """Return how many prompt and completion tokens one backward pass may have."""
        sizes, gpu = self.architecture, self.device.type == "cuda"
        bytes_a_token = sizes.layers * (50 * sizes.hidden + 23 * sizes.intermediate)  # measured, with an adapter on all
        room = torch.cuda.get_device_properties(self.device).total_memory // 3 if gpu else CPU_PART_BYTES
        return max(SHORTEST_PART, room // bytes_a_token)

    def _load_base(self) -> None:
        if self._base is not None:
            return
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                self._fetch_weights(), dtype=fast_dtype(self.device), use_safetensors=True, attn_implementation="sdpa"
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.name}: the weights in {self.folder} can't be loaded: {error}") from None
        self._check_layers(model)
        self._base = model.to(self.device).eval().requires_grad_(False)
        self._model = self._base

    def _check_layers(self, model: torch.nn.Module) -> None:
        """Raise `ConfigError` unless an adapter of this model is one that `adapter.py` can check."""
        found = {name: tuple(m.weight.shape) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        for name, shape in self.architecture.linear_layers("all").items():
            if found.get(name) != shape:
                raise ConfigError(
                    f"{self.name}: a model of type {self.config.model_type!r} can't be a student (no linear "
                    f"layer {name} of shape {shape}); use a dense decoder of the Llama or Qwen family"
                )

    def add_adapter(self, rank: int, alpha: float, target: str, seed: int) -> None:
        """See `Student.add_adapter`; factors are float32. Rank 0 trains a float32 copy of all weights."""
        if target not in TARGETS:
            raise ValueError(f"unknown adapter target {target!r}; known: {', '.join(TARGETS)}")
        self._load_base()
        self._trained = True
        if rank == 0:
            self._model = copy.deepcopy(self._base).float().requires_grad_(True)
            return
        from peft import LoraConfig, get_peft_model

        shared = {id(tensor): tensor for tensor in self._base.state_dict(keep_vars=True).values()}
        module = copy.deepcopy(self._base, memo=shared)  # a new tree of modules over the same weights
        settings = LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=list(TARGETS[target]), lora_dropout=0.0, bias="none",
            task_type="CAUSAL_LM",
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = get_peft_model(module, settings).eval()
        self._adapter = {"student": self.name, "rank": rank, "alpha": float(alpha), "target": target}

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters; none before `add_adapter`."""
        if not self._trained:
            return []
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def save(self) -> bytes:
        """Return the adapter under PEFT's names with its facts as metadata, else all weights under the model's.

        Raises `JobFault` (`non_finite`) for an adapter that no `load` would take: one grown beyond all measure.
        """
        facts = self._adapter or {"student": self.name}
        data = bytes(safetensors.torch.save(self._state(), {"trainwright": json.dumps(facts)}))
        if self._adapter is not None:
            try:
                adapter_of_bytes(data, self.architecture, self.name)
            except AdapterError as error:
                if error.code in ("norm", "not_finite"):
                    raise JobFault("non_finite", f"{error.message}; the learning rate is too high") from None
                if error.code != "zero":
                    raise
        return data

    def _state(self) -> dict[str, Tensor]:
        if self._adapter is None:
            self._load_base()
            state = dict(self._model.named_parameters())  # tied weights once
        else:
            from peft import get_peft_model_state_dict

            state = get_peft_model_state_dict(self._model)
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def load(self, data: bytes) -> None:
        """Load what `save` returned, or an `Adapter` of `adapter.py`; raise `ValueError` when it does not fit.

        An adapter that adds nothing leaves the base student.
        """
        if _facts(data).keys() == {"student"}:
            self._load_all(data)
            return
        try:
            checked = adapter_of_bytes(data, self.architecture, self.name)
        except AdapterError as error:
            if error.code != "zero":  # the last of its checks: all others have passed
                raise ValueError(f"an adapter that does not fit {self.name}: {error}") from error
            self._load_base()
            return
        from peft import set_peft_model_state_dict

        self.add_adapter(checked.rank, checked.alpha, checked.target, seed=0)
        tensors = {name: torch.from_numpy(checked.tensor(name).copy()) for name in checked.entries}
        set_peft_model_state_dict(self._model, tensors)

    def _load_all(self, data: bytes) -> None:
        facts = _facts(data)
        if facts["student"] != self.name:
            raise ValueError(f"weights do not fit {self.name}: they are of {facts['student']!r}")
        self.add_adapter(0, 0.0, "all", 0)
        own, state = dict(self._model.named_parameters()), safetensors.torch.load(data)
        if {n: v.shape for n, v in state.items()} != {n: v.shape for n, v in own.items()}:
            raise ValueError(f"weights do not fit {self.name}: other tensors or shapes")
        if not all(bool(value.isfinite().all()) for value in state.values()):
            raise ValueError(f"weights of {self.name} hold a value that is not finite")
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)

    # Sampling and log-probabilities

    def sample(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, generator: torch.Generator
    ) -> Completions:
        """See `Student.sample`. The uniform number of (token position, prompt index) depends on the generator only,
        so that two sets of weights are compared on common random numbers."""
        self._load_base()
        self._check_length(prompts, max_tokens)
        with torch.no_grad():
            return self._sample(prompts, temperature, max_tokens, generator)

    def _sample(
        self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int, generator: torch.Generator
    ) -> Completions:
        count = len(prompts)
        uniforms_TB = torch.rand(max_tokens, count, generator=generator).to(self.device)
        tokens_BT = torch.full((count, max_tokens), self._pad, device=self.device)
        logprobs_BT = torch.zeros(count, max_tokens, device=self.device)
        lengths_B = torch.full((count,), max_tokens, device=self.device)
        ends = torch.tensor(sorted(self._ends), device=self.device)
        cache, mask_BS, next_B, owner_B = self._read(prompts)
        cache.batch_select_indices(owner_B)
        position_B = mask_BS.sum(1)
        running = torch.arange(count, device=self.device)  # the sequences that the cache still holds
        for step in range(max_tokens):
            mask_BS = torch.cat([mask_BS, mask_BS.new_ones(len(mask_BS), 1)], 1)
            logits_BV = self._forward(next_B[:, None], mask_BS, position_B[:, None], cache)[:, 0] / temperature
            position_B = position_B + 1
            next_B, chosen_B = _draw(logits_BV, uniforms_TB[step, running])
            tokens_BT[running, step], logprobs_BT[running, step] = next_B, chosen_B
            ended_B = torch.isin(next_B, ends) & (lengths_B[running] == max_tokens)
            lengths_B[running[ended_B]] = step + 1
            open_B = lengths_B[running] > step + 1
            if not open_B.any():
                break
            if int(open_B.sum()) * 4 <= len(running) * 3:  # let go of those that have ended
                keep = open_B.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                running, mask_BS, next_B, position_B = running[keep], mask_BS[keep], next_B[keep], position_B[keep]
        longest = int(lengths_B.clamp(max=step + 1).max())
        tokens_BT, logprobs_BT = tokens_BT[:, :longest], logprobs_BT[:, :longest]
        mask_BT = (torch.arange(longest, device=self.device) < lengths_B[:, None]).float()
        last_B = tokens_BT.gather(1, (lengths_B.clamp(max=longest) - 1)[:, None])[:, 0]
        tokens_BT = torch.where(mask_BT > 0, tokens_BT, self._pad)
        return Completions(tokens_BT, mask_BT, logprobs_BT * mask_BT, torch.isin(last_B, ends))

    def logprobs(
        self, prompts: Sequence[Sequence[int]], tokens_BT: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """See `Student.logprobs`. Both are 0 after the first end token; entropies carry no gradient."""
        self._load_base()
        self._check_length(prompts, tokens_BT.shape[1])
        tokens_BT = tokens_BT.to(self.device)
        mask_BT = self._mask(tokens_BT)
        longest = int(mask_BT.sum(1).max())
        padding = (0, tokens_BT.shape[1] - longest)
        tokens_BT, mask_BT = tokens_BT[:, :longest], mask_BT[:, :longest]
        cache, mask_BS, last_B, owner_B = self._read(prompts)
        cache.batch_select_indices(owner_B)
        inputs_BT = torch.cat([last_B[:, None], tokens_BT[:, :-1]], 1)
        positions_BT = mask_BS.sum(1, keepdim=True) + torch.arange(longest, device=self.device)
        logits_BTV = self._forward(inputs_BT, torch.cat([mask_BS, mask_BT.long()], 1), positions_BT, cache)
        logits_NV = logits_BTV[mask_BT].float() / temperature
        normal_N = logits_NV.logsumexp(-1)
        logprobs_BT = torch.zeros(tokens_BT.shape, device=self.device)
        logprobs_BT[mask_BT] = logits_NV.gather(1, tokens_BT[mask_BT][:, None])[:, 0] - normal_N
        entropies_BT = torch.zeros(tokens_BT.shape, device=self.device)
        with torch.no_grad():
            expected_N = ((logits_NV - normal_N[:, None]).exp_() * logits_NV).sum(-1)
            entropies_BT[mask_BT] = normal_N - expected_N
        return torch.nn.functional.pad(logprobs_BT, padding), torch.nn.functional.pad(entropies_BT, padding)

    def parts(self, prompts: Sequence[Sequence[int]], tokens_BT: Tensor) -> list[range]:
        """See `LargeStudent.parts`: by tokens, a shared prompt counted once, and by the size of the logits."""
        lengths = self._mask(tokens_BT).sum(1).tolist()
        parts: list[range] = []
        start, longest, read = 0, 0, 0
        for row, length in enumerate(lengths):
            known = row > start and prompts[row] == prompts[row - 1]
            longest, read = max(longest, length), read + (0 if known else len(prompts[row]))
            completion = (row - start + 1) * longest
            if row > start and (
                read + completion > self.part_tokens or completion * self.config.vocab_size > PART_LOGITS
            ):
                parts.append(range(start, row))
                start, longest, read = row, length, len(prompts[row])
        return [*parts, range(start, len(lengths))]

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor, Tensor, Tensor]:
        """Return keys and values of the unique prompts up to their last tokens; for each sequence which of their
        columns (B, P) it sees, its prompt's last token (B,) and which of the unique prompts it has (B,).

        Prompts are padded on the right, where the causal mask keeps the padding from everything that is read.
        """
        from transformers import DynamicCache

        unique = list(dict.fromkeys(map(tuple, prompts)))
        place = {prompt: index for index, prompt in enumerate(unique)}
        owner_B = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=self.device)
        longest = max(map(len, unique)) - 1
        rows = [[*prompt[:-1], *[self._pad] * (longest + 1 - len(prompt))] for prompt in unique]
        ids_UP = torch.tensor(rows, device=self.device)
        lengths_U = torch.tensor([len(prompt) - 1 for prompt in unique], device=self.device)
        positions_P = torch.arange(longest, device=self.device)
        mask_UP = (positions_P < lengths_U[:, None]).long()
        cache = DynamicCache()
        rows_at_once = max(1, self.part_tokens // longest)
        read = []
        for start in range(0, len(unique), rows_at_once):
            some = slice(start, start + rows_at_once)
            read.append(DynamicCache())
            self._forward(ids_UP[some], mask_UP[some], positions_P.expand_as(ids_UP[some]), read[-1], keep=1)
        for index, layers in enumerate(zip(*(one.layers for one in read), strict=True)):
            cache.update(torch.cat([one.keys for one in layers]), torch.cat([one.values for one in layers]), index)
        last_U = torch.tensor([prompt[-1] for prompt in unique], device=self.device)
        return cache, mask_UP[owner_B], last_U[owner_B], owner_B

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any, keep: int = 0) -> Tensor:
        """Return the logits of the last `keep` tokens (0: all); keys and values are added to the cache."""
        logits: Tensor = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits

    def _mask(self, tokens_BT: Tensor) -> Tensor:
        """Return true up to and including the first end token."""
        ends_BT = torch.isin(tokens_BT, torch.tensor(sorted(self._ends), device=tokens_BT.device)).long()
        return ends_BT.cumsum(-1) - ends_BT == 0

    def _check_length(self, prompts: Sequence[Sequence[int]], completion: int) -> None:
        lengths = [len(prompt) for prompt in prompts]
        if min(lengths) < 2:
            raise UnreadablePrompt(f"{self.name} needs prompts of two tokens or more")
        if max(lengths) + completion > self.context:
            message = (
                f"{max(lengths)} prompt and {completion} completion tokens exceed the {self.context} of {self.name}"
            )
            raise UnreadablePrompt(message)


def default_device() -> torch.device:
    """Return the first GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 where the hardware multiplies in it, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    flags = Path("/proc/cpuinfo")
    fast = flags.exists() and any(flag in flags.read_text() for flag in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if fast else torch.float32


def _draw(logits_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (B,) by inversion of the distribution function, and their log-probabilities (B,)."""
    logprobs_BV = logits_BV.float().log_softmax(-1)
    cdf_BV = logprobs_BV.exp().cumsum(-1)
    drawn_B1 = torch.searchsorted(cdf_BV, uniforms_B[:, None] * cdf_BV[:, -1:])
    drawn_B1 = drawn_B1.clamp_(max=logits_BV.shape[-1] - 1)
    return drawn_B1[:, 0], logprobs_BV.gather(1, drawn_B1)[:, 0]


def _facts(data: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(json.loads(header["__metadata__"]["trainwright"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not the saved weights of a student: {error!r}") from error
