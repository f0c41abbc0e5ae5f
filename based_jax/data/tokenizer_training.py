"""Train a byte-level BPE tokenizer, as that of GPT-2 is, with the library `tokenizers`."""

from collections.abc import Iterator

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from based_jax.data.file_tokenizer import EOT_NAMES
from based_jax.validate import expect

LEAST_VOCABULARY = 257
"""Bytes and the document separator."""


def train_byte_level_bpe(
    texts: Iterator[str], vocab_size: int, *, show_progress: bool = False
) -> tokenizers.Tokenizer:
    """Train on texts, which are read once; the separator is ``<|endoftext|>``.

    Args:
        vocab_size: tokens, of which 257 are the bytes and the separator; fewer if the texts have fewer pairs.
        show_progress: draw the library's progress bars on stderr.

    Raises:
        ValueError: a smaller vocabulary than 257.
    """
    expected = f"at least {LEAST_VOCABULARY}, the bytes and the document separator"
    expect(vocab_size >= LEAST_VOCABULARY, "vocab_size", vocab_size, expected)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT_NAMES[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
