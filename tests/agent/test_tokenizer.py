"""The tokenizer: nothing is lost, and what a brief and a job share is the same token in both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from trainwright.agent.local import VOCABULARY
from trainwright.agent.tokenizer import END, PAD, fit_tokenizer

FITTED = fit_tokenizer(['student = "nano-64"\nlearning_rate = 0.001\n', 'words have 3 letters of "abcdef".'] * 5, 400)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back(text: str) -> None:
    assert FITTED.decode(FITTED.encode(text).ids) == text


def test_job_texts_come_back_in_few_tokens(tokenizer: Tokenizer, job_texts: list[str]) -> None:
    for text in job_texts:
        tokens = tokenizer.encode(text).ids
        assert tokenizer.decode(tokens) == text
        assert len(tokens) < len(text) / 2


def test_no_text_holds_the_special_tokens(tokenizer: Tokenizer, job_texts: list[str]) -> None:
    assert (tokenizer.token_to_id("<pad>"), tokenizer.token_to_id("<end>")) == (PAD, END)
    assert tokenizer.get_vocab_size() <= VOCABULARY
    used = {token for text in job_texts for token in tokenizer.encode(text).ids}
    assert not used & {PAD, END}


def test_a_quoted_word_is_cut_alike_in_brief_and_job(tokenizer: Tokenizer) -> None:
    word = tokenizer.encode('"abcdef"').ids
    for text in ('words have 3 letters of "abcdef".', 'rng.choices("abcdef", k=3)', '"abcdef" "fed"'):
        tokens = tokenizer.encode(text).ids
        assert any(tokens[at : at + len(word)] == word for at in range(len(tokens)))


def test_a_number_is_a_piece_of_its_own(tokenizer: Tokenizer) -> None:
    for number in ("0.001", "64", "5"):
        alone = tokenizer.encode(number).ids
        line = tokenizer.encode(f"learning_rate = {number}\n").ids
        assert any(line[at : at + len(alone)] == alone for at in range(len(line)))


def test_fitting_is_deterministic(job_texts: list[str]) -> None:
    assert fit_tokenizer(job_texts, 500).to_str() == fit_tokenizer(job_texts, 500).to_str()
