"""The nano agent as a Hugging Face folder: what a Tinker server needs to serve it as its base model."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config

from trainwright.agent import warm_start
from trainwright.agent.local import NANO_AGENT
from trainwright.config import AgentConfig

TEMPLATE = "{% for message in messages %}{{ message.content }}<end>{% endfor %}"
"""What `LocalPolicy.encode` does: each message's text and an end token."""


def write_tiny_model(folder: Path, warm_start_steps: int, seed: int) -> None:
    """Write the nano agent after so many supervised steps: a Qwen3 model of 0.9 M parameters, and its tokenizer."""
    warm_start.THREADS = 1  # threads that wait for each other on a busy machine are slower than one
    policy = warm_start.warm_started(AgentConfig(warm_start_steps=warm_start_steps), seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(**NANO_AGENT.as_qwen3(), architectures=["Qwen3ForCausalLM"], eos_token_id=1, pad_token_id=0)
    config.dtype = torch.float32
    config.save_pretrained(folder)
    safetensors.torch.save_file(policy.model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=policy.tokenizer, eos_token="<end>", pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
