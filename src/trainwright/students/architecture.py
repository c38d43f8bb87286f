"""The sizes of the pretrained students, and what follows from them without loading one."""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""The linear layers of a block that get an adapter, by the value of `lora_target`."""


@dataclass(frozen=True)
class Architecture:
    """A dense decoder of the Llama and Qwen family: its hub id, and the numbers of its config.json."""

    model: str
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int

    def linear_layers(self, target: str) -> dict[str, tuple[int, int]]:
        """Return (output, input) features of every linear layer that `target` names, by the module's path."""
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        shapes = {
            "q_proj": (queries, self.hidden),
            "k_proj": (keys, self.hidden),
            "v_proj": (keys, self.hidden),
            "o_proj": (self.hidden, queries),
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }
        return {
            f"model.layers.{layer}.{'self_attn' if name in TARGETS['attention'] else 'mlp'}.{name}": shapes[name]
            for layer in range(self.layers)
            for name in TARGETS[target]
        }


QWEN3 = {
    "qwen3-0.6b": Architecture("Qwen/Qwen3-0.6B", 1024, 28, 16, 8, 128, 3072),
    "qwen3-1.7b": Architecture("Qwen/Qwen3-1.7B", 2048, 28, 16, 8, 128, 6144),
}
"""The students of the suite `qwen`; the numbers are those of the config.json at the hub."""
