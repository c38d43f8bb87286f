"""The nano agent's tokenizer: byte-level BPE fitted to job texts.

Quoted strings, numbers and line ends are pieces of their own, so that an alphabet or a number in the brief is the same
token as in a job, while the boilerplate of a line merges into few tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, END = 0, 1
PIECES = r'"[^"\n]*"|[0-9]+(?:\.[0-9]+)?|\n[\n ]*|[^"0-9\n]+|"'


def fit_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Return a tokenizer of at most `vocabulary` tokens (Hugging Face tokenizers 0.23); ids 0 and 1 are pad and end.

    Every byte is a token, so any text can be encoded and decoded without loss.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
