"""A lean Qwen3 transformer for models of about 0.1 M parameters, where the cost is calls, not arithmetic.

The architecture is that of transformers' `Qwen3ForCausalLM` (checked against transformers 5.24.0): RMSNorm before
attention and feed-forward, RMSNorm on each query and key head, rotary positions (arXiv:2104.09864), SwiGLU, tied
embeddings, no biases; `state_dict` uses its names. What differs is how it is computed:

- The weights of one kind are stacked over layers, so that a LoRA adapter (arXiv:2106.09685) is merged into all of
  them by one `baddbmm`, and an optimizer sees few tensors.
- Norm weights, the attention scale and the temperature are folded into the weights that follow them, once a pass.
- Sequences with one prompt are one packed sequence: the prompt once, then its completions, each of which attends
  to the prompt and to itself only.

Letters for shapes: G groups, S positions of a packed sequence, H hidden, A heads x head_dim, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED = -1e9  # added to the scores of forbidden keys; finite, so that a padded query has no NaN to pass on
STACKS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "norms": ("input_layernorm", "post_attention_layernorm"),
    "qk_norms": ("self_attn.q_norm", "self_attn.k_norm"),
}
TARGETS = {"attention": ("qkv", "out"), "mlp": ("gate_up", "down"), "all": ("qkv", "out", "gate_up", "down")}


@dataclass(frozen=True)
class NanoConfig:
    """The size of a model. `context` is the greatest number of prompt and completion tokens together."""

    name: str
    hidden: int
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int = 256
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight stack: (layers, matrices of the kind, rows, columns)."""
        attention = self.heads * self.head_dim
        return {
            "embed": (self.vocab, self.hidden),
            "norm": (self.hidden,),
            "norms": (self.layers, 2, self.hidden),
            "qk_norms": (self.layers, 2, self.head_dim),
            "qkv": (self.layers, 3, attention, self.hidden),
            "out": (self.layers, 1, self.hidden, attention),
            "gate_up": (self.layers, 2, self.intermediate, self.hidden),
            "down": (self.layers, 1, self.hidden, self.intermediate),
        }


Weights = dict[str, Tensor]


def random_weights(config: NanoConfig, seed: int) -> Weights:
    """Return untrained weights: normal with the standard deviation of Qwen3 (0.02) for the embedding, and
    `1 / sqrt(columns)` for the matrices, which at this width starts better; norms are one."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.shapes().items():
        if "norm" in name:
            weights[name] = torch.ones(shape)
        else:
            scale = 0.02 if name == "embed" else shape[-1] ** -0.5
            weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


def to_state_dict(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of `Qwen3ForCausalLM` (its tied `lm_head` left out)."""
    state = {"model.embed_tokens.weight": weights["embed"], "model.norm.weight": weights["norm"]}
    for stack, names in STACKS.items():
        for layer, matrices in enumerate(weights[stack].unbind()):
            for name, matrix in zip(names, matrices.unbind(), strict=True):
                state[f"model.layers.{layer}.{name}.weight"] = matrix
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def from_state_dict(config: NanoConfig, state: Mapping[str, Tensor]) -> Weights:
    """Return the stacks of a state dict; raise `ValueError` that names what is missing, unknown or misshapen."""
    expected = to_state_dict({name: torch.empty(shape) for name, shape in config.shapes().items()})
    check_tensors(state, {name: tensor.shape for name, tensor in expected.items()}, config.name)
    weights = {"embed": state["model.embed_tokens.weight"].clone(), "norm": state["model.norm.weight"].clone()}
    for stack, names in STACKS.items():
        rows = [[state[f"model.layers.{i}.{name}.weight"] for name in names] for i in range(config.layers)]
        weights[stack] = torch.stack([torch.stack(row) for row in rows])
    return weights


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, torch.Size], owner: str) -> None:
    """Raise `ValueError` unless `found` has exactly the expected names, shapes, type float32 and finite values."""
    if odd := sorted(found.keys() ^ expected.keys()):
        raise ValueError(f"weights do not fit {owner}: {odd[0]!r} is {'missing' if odd[0] in expected else 'unknown'}")
    for name, tensor in found.items():
        if tensor.shape != expected[name] or tensor.dtype != torch.float32:
            raise ValueError(
                f"weights do not fit {owner}: {name!r} is {tuple(tensor.shape)} {tensor.dtype}, "
                f"expected {tuple(expected[name])} torch.float32"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"weights do not fit {owner}: {name!r} holds a value that is not finite")


class Adapter:
    """A LoRA adapter: for each adapted stack `a` (L, n, r, columns) and `b` (L, n, rows, r), `scale` = alpha / r."""

    def __init__(self, config: NanoConfig, rank: int, alpha: float, target: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rank, self.alpha, self.target, self.scale = rank, alpha, target, alpha / rank
        self.factors: dict[str, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
        for stack in TARGETS[target]:
            layers, count, rows, columns = config.shapes()[stack]
            # As in PEFT: A uniform with bound 1 / sqrt(columns), B zero, so that the adapter starts as the identity.
            a = (torch.rand(layers, count, rank, columns, generator=generator) * 2 - 1) * columns**-0.5
            b = torch.zeros(layers, count, rows, rank)
            self.factors[stack] = (torch.nn.Parameter(a), torch.nn.Parameter(b))

    def merge(self, stack: str, weight: Tensor) -> Tensor:
        """Return `W + scale * B A` for a whole stack, in its shape."""
        if stack not in self.factors:
            return weight
        a, b = self.factors[stack]
        merged = torch.baddbmm(weight.flatten(0, 1), b.flatten(0, 1), a.flatten(0, 1), alpha=self.scale)
        return merged.view(weight.shape)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the factors under the names of PEFT."""
        state = {}
        for stack, pair in self.factors.items():
            for kind, tensor in zip("AB", pair, strict=True):
                for layer, matrices in enumerate(tensor.detach().unbind()):
                    for name, matrix in zip(STACKS[stack], matrices.unbind(), strict=True):
                        state[f"base_model.model.model.layers.{layer}.{name}.lora_{kind}.weight"] = matrix.clone()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy the factors from what `state_dict` returned."""
        with torch.no_grad():
            for stack, pair in self.factors.items():
                for kind, tensor in zip("AB", pair, strict=True):
                    for layer, matrices in enumerate(tensor.unbind()):
                        for name, matrix in zip(STACKS[stack], matrices.unbind(), strict=True):
                            matrix.copy_(state[f"base_model.model.model.layers.{layer}.{name}.lora_{kind}.weight"])


class Layer(NamedTuple):
    """The folded weights of one layer. `cos` and `sin` are (context, 2, 1, head_dim), for queries and keys."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    cos: Tensor
    sin: Tensor


class Network:
    """The weights folded for one pass, and the pass itself. Differentiable in the weights it is made from."""

    def __init__(
        self,
        config: NanoConfig,
        rope: tuple[Tensor, Tensor],
        weights: Weights,
        adapter: Adapter | None,
        temperature: float,
    ) -> None:
        self.config = config
        if adapter is not None:
            weights = weights | {stack: adapter.merge(stack, weights[stack]) for stack in adapter.factors}
        qkv = (weights["qkv"] * weights["norms"][:, 0, None, None]).flatten(1, 2)
        gate_up = (weights["gate_up"] * weights["norms"][:, 1, None, None]).flatten(1, 2)
        cos, sin = rope
        # rotate_half swaps the halves of a head, so its table takes the norm weights of the other half.
        qk_norms = weights["qk_norms"] * torch.tensor([config.head_dim**-0.5, 1.0])[:, None]
        cos_L = cos[:, None, None] * qk_norms[:, None, :, None]
        sin_L = sin[:, None, None] * qk_norms.roll(config.head_dim // 2, -1)[:, None, :, None]
        self.layers = [
            Layer(*parts)
            for parts in zip(qkv, weights["out"][:, 0], gate_up, weights["down"][:, 0], cos_L, sin_L, strict=True)
        ]
        self.embed = weights["embed"]
        self.head = weights["embed"] * (weights["norm"] / temperature)

    def normalise(self, x: Tensor) -> Tensor:
        """Return RMSNorm without its weights, over the last axis."""
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.rms_norm_eps)

    def queries_keys_values(self, layer: Layer, x_GSH: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, each (G x heads, S, head_dim), from the residual stream."""
        groups, length, _ = x_GSH.shape
        heads, head_dim = self.config.heads, self.config.head_dim
        qkv = F.linear(self.normalise(x_GSH), layer.qkv).view(groups, length, 3, heads, head_dim)
        qk = self.normalise(qkv[:, :, :2])
        qk = torch.addcmul(qk * cos, qk.roll(head_dim // 2, -1), sin)
        q, k = qk.permute(2, 0, 3, 1, 4).reshape(2, groups * heads, length, head_dim)
        v = qkv[:, :, 2].transpose(1, 2).reshape(groups * heads, length, head_dim)
        return q, k, v

    def rest_of_layer(self, layer: Layer, x_GSH: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream after attention output (G x heads, S, head_dim) and feed-forward."""
        groups, length, _ = x_GSH.shape
        heads, head_dim = self.config.heads, self.config.head_dim
        joined = attended.view(groups, heads, length, head_dim).transpose(1, 2).reshape(groups, length, -1)
        x_GSH = x_GSH + F.linear(joined, layer.out)
        gate, up = F.linear(self.normalise(x_GSH), layer.gate_up).chunk(2, -1)
        return x_GSH + F.linear(F.silu(gate) * up, layer.down)

    def hidden(
        self, ids_GS: Tensor, positions: Tensor, bias_GSS: Tensor, cache: list[tuple[Tensor, Tensor]] | None = None
    ) -> Tensor:
        """Return the last hidden states (G, S, H), before the final norm.

        `positions` is (S,) or (G, S); `bias_GSS` is added to the scores. A `cache` receives each layer's keys and
        values in its first S positions.
        """
        x = F.embedding(ids_GS, self.embed)
        bias = bias_GSS.repeat_interleave(self.config.heads, 0)
        for index, layer in enumerate(self.layers):
            q, k, v = self.queries_keys_values(layer, x, layer.cos[positions], layer.sin[positions])
            if cache is not None:
                cache[index][0][:, : k.shape[1]] = k
                cache[index][1][:, : v.shape[1]] = v
            weights = torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1)
            x = self.rest_of_layer(layer, x, torch.bmm(weights, v))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return logits divided by the temperature, from last hidden states."""
        return F.linear(self.normalise(x), self.head)


def rope_tables(config: NanoConfig) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine tables (context, head_dim) such that `x * cos + roll(x, head_dim / 2) * sin`
    is the rotation of `x`."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half) / half)
    angles = torch.arange(config.context)[:, None] * frequencies
    return torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)


def runs_of_equal(prompts: list[tuple[int, ...]], limit: int) -> int:
    """Return the greatest K of at most `limit` such that the prompts are runs of K equal ones."""
    lengths, start = [], 0
    for index in range(1, len(prompts) + 1):
        if index == len(prompts) or prompts[index] != prompts[start]:
            lengths.append(index - start)
            start = index
    common = math.gcd(*lengths)
    return max(k for k in range(1, limit + 1) if common % k == 0)
