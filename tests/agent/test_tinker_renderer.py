"""Conversations to tokens and back, with a tokenizer whose chat template is known here.

No Qwen tokenizer can be had on a machine without network; that the renderer of `Qwen/Qwen3.6-35B-A3B` follows its
template is tested upstream.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from trainwright.agent.tinker_renderer import ChatRenderer, make_renderer
from trainwright.errors import ConfigError
from trainwright.messages import Message

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CONVERSATION: list[Message] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "sort ab"}]


def folder(path: Path, tokenizer: Tokenizer, **changes: object) -> str:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    for name, value in changes.items():
        setattr(fast, name, value)
    fast.save_pretrained(path)
    return str(path)


@pytest.fixture
def quiet(tmp_path: Path, tokenizer: Tokenizer) -> ChatRenderer:
    return make_renderer(folder(tmp_path, tokenizer), thinking=False)


@pytest.fixture
def thoughtful(tmp_path: Path, tokenizer: Tokenizer) -> ChatRenderer:
    return make_renderer(folder(tmp_path, tokenizer), thinking=True)


def test_the_prompt_is_the_template_with_thinking_on_or_off(quiet: ChatRenderer, thoughtful: ChatRenderer) -> None:
    text = quiet.tokenizer.decode(quiet.prompt(CONVERSATION))
    assert text == "system:be brief<end>user:sort ab<end>assistant:<think>\n\n</think>\n\n"
    assert quiet.tokenizer.decode(thoughtful.prompt(CONVERSATION)).endswith("assistant:")
    assert quiet.stop == [1]


@pytest.mark.parametrize("text", ["```python environment.py\nx = 1\n```\n", "", "a<tool_call>{}</tool_call>b", " \n "])
def test_an_answer_is_what_was_written(quiet: ChatRenderer, text: str) -> None:
    prompt = quiet.prompt(CONVERSATION)
    tokens = quiet.tokenizer.encode(text)
    assert quiet.answer(prompt, [*tokens, 1]) == text
    assert quiet.answer(prompt, tokens) == text


def test_thoughts_are_not_part_of_the_answer(thoughtful: ChatRenderer) -> None:
    prompt = thoughtful.prompt(CONVERSATION)
    tokens = thoughtful.tokenizer.encode("<think>well, </think>\n\nthe job")
    assert thoughtful.answer(prompt, [*tokens, 1]) == "the job"


def test_a_thought_that_never_ended_is_no_answer(thoughtful: ChatRenderer) -> None:
    tokens = thoughtful.tokenizer.encode("<think>```python environment.py\n")
    assert thoughtful.answer(thoughtful.prompt(CONVERSATION), tokens) == ""


def test_what_a_tokenizer_lacks_is_said_in_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name, message in (("chat_template", "it has no chat template"), ("eos_token", "it has no end token")):
        broken = folder(tmp_path / name, tokenizer, **{name: None})
        with pytest.raises(ConfigError, match=message) as caught:
            make_renderer(broken, thinking=False)
        assert "\n" not in str(caught.value)


def test_a_tokenizer_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "empty"
    missing.mkdir()
    with pytest.raises(ConfigError, match="can't be used") as caught:
        make_renderer(str(missing), thinking=False)
    assert "\n" not in str(caught.value)
