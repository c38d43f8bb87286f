"""Tiny random causal language models in folders, with real tokenizers, made in a second."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if not enable_thinking %}<|quiet|>{% endif %}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|end|>", "<|stop|>", "<|system|>", "<|user|>", "<|assistant|>", "<|quiet|>")
END, STOP = 1, 2


def write_tiny_model(folder: Path, kind: str = "qwen3", *, template: bool = True, context: int = 512) -> Path:
    """Write a random model of two layers, `qwen3` or `llama`, with a byte tokenizer that has two end tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE if template else None
    fast.save_pretrained(folder)
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": [END, STOP],
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.5,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(folder)
    return folder
