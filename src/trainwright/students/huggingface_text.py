"""The text side of a pretrained student: configuration, tokenizer and chat template, without the weights.

The chat template is the tokenizer's own with thinking switched off (`enable_thinking`, Qwen's name for it; templates
ignore names they don't know): one text for training and measuring. Checked with transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import ConfigError
from trainwright.messages import Message
from trainwright.students.architecture import Architecture
from trainwright.students.student import UnreadablePrompt

MAX_PROMPT = 4096
"""Tokens of a prompt at most, less where half the model's context is less."""
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For a model without a chat template of its own."""


class PretrainedText:
    """What a model's folder says about text: `encode` and `decode` of the `Student` protocol."""

    def __init__(self, name: str, folder: Path) -> None:
        """Read configuration and tokenizer; raise `ConfigError` for a folder or model that can't be a student."""
        from transformers import AutoConfig, AutoTokenizer

        self.name, self.folder = name, folder
        try:
            self.config = AutoConfig.from_pretrained(self.folder)
            self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{self.name}: {self.folder} holds no model that transformers reads: {error}") from None
        self.architecture = _architecture(self.name, self.config)
        self._template = None if self.tokenizer.chat_template else PLAIN_TEMPLATE
        self._ends = self._end_tokens()
        self._pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self._ends)
        self.context = int(self.config.max_position_embeddings)
        self.max_prompt = min(MAX_PROMPT, self.context // 2)

    def _end_tokens(self) -> set[int]:
        """Return every token that ends a reply: those of the generation settings and the tokenizer's own."""
        from transformers import GenerationConfig

        try:
            named = GenerationConfig.from_pretrained(self.folder).eos_token_id
        except OSError:  # there is none; the model's configuration stands in
            named = self.config.eos_token_id
        ends = {self.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
        if not ends:
            raise ConfigError(f"{self.name}: neither its tokenizer nor its configuration names an end token")
        return ends

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the conversation in the model's chat template, thinking off, up to where the reply starts."""
        try:
            tokens: list[int] = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=self._template,
                add_generation_prompt=True,
                enable_thinking=False,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:  # a template refuses in its own words: jinja2.TemplateError and others
            raise UnreadablePrompt(f"the chat template of {self.name} refuses this conversation: {error}") from None
        if len(tokens) > self.max_prompt:
            raise UnreadablePrompt(f"the prompt has {len(tokens)} tokens; {self.name} reads at most {self.max_prompt}")
        return tokens

    @property
    def end_token(self) -> int:
        """Return the token that ends a text to learn from."""
        return int(self.tokenizer.eos_token_id or min(self._ends))

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of a text as it is, without the chat template."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text before the first end token."""
        length = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        text: str = self.tokenizer.decode(list(tokens[:length]), skip_special_tokens=True)
        return text


def _architecture(name: str, config: Any) -> Architecture:
    """Return what an adapter's shapes follow from; raise `ConfigError` for a model of another family."""
    try:
        return Architecture(
            model=name,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            intermediate=config.intermediate_size,
        )
    except AttributeError as error:
        raise ConfigError(
            f"{name}: a model of type {config.model_type!r} can't be a student ({error}); use a dense decoder of the "
            "Llama or Qwen family"
        ) from None
