"""From conversations to prompt tokens and back, by the `renderers` package (0.1.12), which knows models' templates.

A model that it knows by name (`Qwen/Qwen3.6-35B-A3B` and many others) has a renderer of its own there, tested against
that model's chat template; of any other tokenizer the chat template is applied as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.errors import ConfigError
from trainwright.messages import Message

THOUGHT_END = "</think>"


@dataclass(frozen=True)
class ChatRenderer:
    """Renders for one model. `stop` are the tokens that end an answer."""

    tokenizer: Any
    renderer: Any
    stop: list[int]

    def prompt(self, conversation: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation up to where the answer begins."""
        messages = [dict(message) for message in conversation]
        tokens: list[int] = self.renderer.render_ids(messages, add_generation_prompt=True)
        return tokens

    def answer(self, prompt: list[int], tokens: list[int]) -> str:
        """Return the answer in sampled tokens as it was written, without thoughts and end token.

        It is empty when the tokens end within a thought. Everything else stays, also what would call a tool elsewhere:
        a job may be about such text.
        """
        parsed = self.renderer.parse_response(tokens, prompt_ids=prompt)
        if parsed.reasoning_complete is False:
            return ""
        end = len(tokens)
        while end and tokens[end - 1] in self.stop:
            end -= 1
        text: str = self.tokenizer.decode(tokens[:end], skip_special_tokens=False)
        return text.partition(THOUGHT_END)[2].lstrip("\n") if parsed.reasoning_content is not None else text


def make_renderer(tokenizer: str, thinking: bool) -> ChatRenderer:
    """Return the renderer of a tokenizer by Hugging Face name or folder, with thinking on or off.

    Raises `ConfigError` when the tokenizer can't be loaded or says neither how it renders nor where an answer ends.
    """
    import renderers
    from renderers.base import MODEL_RENDERER_MAP, load_tokenizer

    logging.getLogger("renderers").setLevel(logging.WARNING)
    try:
        loaded = load_tokenizer(tokenizer)
        config = renderers.config_from_name(MODEL_RENDERER_MAP.get(tokenizer, "default"))
        if config.name == "default" and not loaded.chat_template:
            raise ValueError("it has no chat template")
        controls = renderers.template_field_names(config)
        wanted = {"enable_thinking": thinking} if config.name == "default" or "enable_thinking" in controls else {}
        renderer = renderers.create_renderer(loaded, config, chat_template_kwargs=wanted)
        stop = renderer.get_stop_token_ids()
        if not stop:
            raise ValueError("it has no end token")
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the tokenizer {tokenizer!r} can't be used: {reason}; "
            "set agent.tinker.tokenizer to a Hugging Face name or a folder with its files"
        ) from None
    return ChatRenderer(loaded, renderer, list(stop))
