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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    def as_qwen3(self) -> dict[str, Any]:
        """Return the arguments of transformers' `Qwen3Config` for this size."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.context,
            "tie_word_embeddings": True,
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
    for name, tensor in sorted(found.items()):
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
        self.rank, self.alpha, self.target, self.scale = rank, float(alpha), target, alpha / rank
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
                        state[_peft_name(layer, name, kind)] = matrix.clone()
        return state

    def facts(self) -> dict[str, Any]:
        """Return what `read` needs besides the factors."""
        return {"rank": self.rank, "alpha": self.alpha, "target": self.target}

    @classmethod
    def read(cls, config: NanoConfig, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Adapter:
        """Return the adapter of a `state_dict` and its `facts`; raise `ValueError` when they don't fit."""
        try:
            rank, alpha, target = int(facts["rank"]), float(facts["alpha"]), str(facts["target"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"weights do not fit {config.name}: bad adapter facts {str(facts)[:200]}") from error
        if target not in TARGETS or not math.isfinite(alpha) or not any(rank in t.shape for t in state.values()):
            raise ValueError(f"weights do not fit {config.name}: bad adapter facts {str(facts)[:200]}")
        adapter = cls(config, rank, alpha, target, seed=0)
        check_tensors(state, {name: tensor.shape for name, tensor in adapter.state_dict().items()}, config.name)
        for stack, pair in adapter.factors.items():
            for kind, tensor in zip("AB", pair, strict=True):
                for layer, matrices in enumerate(tensor.data.unbind()):
                    for name, matrix in zip(STACKS[stack], matrices.unbind(), strict=True):
                        matrix.copy_(state[_peft_name(layer, name, kind)])
        return adapter


def _peft_name(layer: int, name: str, kind: str) -> str:
    return f"base_model.model.model.layers.{layer}.{name}.lora_{kind}.weight"


class _UnitNorm(torch.autograd.Function):
    """x / sqrt(|x|^2 + eps) over the last axis: RMSNorm without its weights and the factor sqrt(width).

    Written out because the backward pass that autograd derives for `F.rms_norm` takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, root_eps: Tensor) -> Tensor:
        y, length = _unit_norm(x, root_eps)
        ctx.save_for_backward(y, length)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (dy,), (y, length) = gradients, ctx.saved_tensors
        return torch.addcmul(dy, y, (dy * y).sum(-1, keepdim=True), value=-1) / length, None


def _unit_norm(x: Tensor, root_eps: Tensor) -> tuple[Tensor, Tensor]:
    length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), root_eps)
    return x / length, length


class Layer(NamedTuple):
    """The folded weights of one layer: matrices (inputs, outputs), and (2, 1, head_dim) for queries and keys."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    qk_norm: Tensor


class Network:
    """The weights folded for one pass, and the pieces of a pass. Differentiable in the weights it is made from.

    Inside a query or key head, dimensions i and i + head_dim / 2, which rotary positions turn as a pair, lie side by
    side, so that the turn is one complex product; attention scores don't depend on the order of dimensions.
    """

    def __init__(self, config: NanoConfig, weights: Weights, adapter: Adapter | None, temperature: float) -> None:
        self.config = config
        if adapter is not None:
            weights = weights | {stack: adapter.merge(stack, weights[stack]) for stack in adapter.factors}
        pairs = (config.layers, 2, config.heads, 2, config.head_dim // 2, config.hidden)
        qk = weights["qkv"][:, :2].reshape(pairs).transpose(3, 4).reshape_as(weights["qkv"][:, :2])
        norms = weights["norms"][:, :, None, None] * config.hidden**0.5
        qkv = torch.cat([qk, weights["qkv"][:, 2:]], 1) * norms[:, 0]
        gate_up = weights["gate_up"] * norms[:, 1]
        # Of the two factors sqrt(head_dim) of query and key norm, the attention scale takes one.
        scale = torch.tensor([[1.0], [config.head_dim**0.5]])
        qk_norms = weights["qk_norms"].view(config.layers, 2, 2, -1).transpose(2, 3).flatten(2) * scale
        stacks = (qkv.flatten(1, 2), weights["out"][:, 0], gate_up.flatten(1, 2), weights["down"][:, 0])
        transposed = (stack.transpose(1, 2).unbind() for stack in stacks)
        self.layers = [Layer(*parts) for parts in zip(*transposed, qk_norms[:, :, None].unbind(), strict=True)]
        self.embed = weights["embed"]
        self.head = (weights["embed"] * (weights["norm"] * (config.hidden**0.5 / temperature))).t()
        self._root_eps = {n: torch.tensor((n * config.rms_norm_eps) ** 0.5) for n in (config.hidden, config.head_dim)}
        # What the first layer makes of a token before it is turned depends on the token alone: a table, not a product.
        qk, v = self._project(self.layers[0], self.embed)
        self._first_VQ = torch.cat([qk.flatten(1), v.flatten(1)], 1)

    def _norm(self, x: Tensor) -> Tensor:
        root_eps = self._root_eps[x.shape[-1]]
        if not torch.is_grad_enabled():
            return _unit_norm(x, root_eps)[0]
        normalised: Tensor = _UnitNorm.apply(x, root_eps)  # type: ignore[no-untyped-call]
        return normalised

    def _project(self, layer: Layer, x_NH: Tensor) -> tuple[Tensor, Tensor]:
        qkv = torch.mm(self._norm(x_NH), layer.qkv).view(-1, 3, self.config.heads, self.config.head_dim)
        return self._norm(qkv[:, :2]) * layer.qk_norm, qkv[:, 2]

    def embedded(self, ids_N: Tensor) -> Tensor:
        """Return the residual stream (N, H) before the first layer."""
        return self.embed.index_select(0, ids_N)

    def project(self, index: int, ids_N: Tensor, x_NH: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (N, heads, head_dim) of layer `index`, the first two turned.

        `turns` (N or 1, 1, 1, head_dim / 2) are the rows of `rotary_turns` at the tokens' positions.
        """
        heads, head_dim = self.config.heads, self.config.head_dim
        if index:
            qk, v = self._project(self.layers[index], x_NH)
        else:
            qkv = self._first_VQ.index_select(0, ids_N).view(-1, 3, heads, head_dim)
            qk, v = qkv[:, :2], qkv[:, 2]
        qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * turns).flatten(-2)  # type: ignore[no-untyped-call]
        return qk[:, 0], qk[:, 1], v

    def finish(self, index: int, x_NH: Tensor, attended_NA: Tensor) -> Tensor:
        """Return the residual stream after the attention output and the feed-forward of layer `index`."""
        layer = self.layers[index]
        x_NH = x_NH + torch.mm(attended_NA, layer.out)
        gate, up = torch.mm(self._norm(x_NH), layer.gate_up).chunk(2, -1)
        return x_NH + torch.mm(F.silu(gate) * up, layer.down)

    def hidden(
        self,
        ids_GS: Tensor,
        turns: Tensor,
        bias_GSS: Tensor,
        start: int,
        cache: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Return the last hidden states (G, S - start, H), before the final norm, of the positions from `start` on.

        `turns` as in `project` for N = G x S; `bias_GSS` is added to the scores. A `cache` receives each layer's keys
        and values (G, heads, S, head_dim) in its first S positions.
        """
        groups, length = ids_GS.shape
        heads, head_dim = self.config.heads, self.config.head_dim
        bias, ids_N = bias_GSS.repeat_interleave(heads, 0), ids_GS.flatten()
        x_NH = self.embedded(ids_N)
        for index in range(len(self.layers)):
            projected = self.project(index, ids_N, x_NH, turns)
            q, k, v = (part.view(groups, length, heads, head_dim).transpose(1, 2) for part in projected)
            if cache is not None:
                cache[index][0][:, :, :length] = k
                cache[index][1][:, :, :length] = v
            if index == len(self.layers) - 1:  # the positions before `start` have served as keys and values
                q, bias = q[:, :, start:], bias[:, start:]
                x_NH = x_NH.view(groups, length, -1)[:, start:].flatten(0, 1)
            q, k, v = (part.flatten(0, 1) for part in (q, k, v))
            attended = torch.bmm(torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1), v)
            attended = attended.unflatten(0, (groups, heads)).transpose(1, 2).flatten(2)  # type: ignore[no-untyped-call]
            x_NH = self.finish(index, x_NH, attended.flatten(0, 1))
        return x_NH.view(groups, length - start, -1)

    def logits(self, x_NH: Tensor) -> Tensor:
        """Return logits (N, V) divided by the temperature, from last hidden states."""
        return torch.mm(self._norm(x_NH), self.head)


def rotary_turns(config: NanoConfig) -> Tensor:
    """Return exp(i x position x frequency), complex (context, 1, 1, head_dim / 2)."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half) / half)
    angles = torch.arange(config.context)[:, None, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def runs_of_equal(prompts: list[tuple[int, ...]], limit: int) -> int:
    """Return the greatest K of at most `limit`, and at least 1, such that the prompts are runs of K equal ones."""
    lengths, start = [], 0
    for index in range(1, len(prompts) + 1):
        if index == len(prompts) or prompts[index] != prompts[start]:
            lengths.append(index - start)
            start = index
    common = math.gcd(*lengths)
    return max(k for k in range(1, max(limit, 1) + 1) if common % k == 0)
