"""Find the tokenizer of a model in a directory."""

from pathlib import Path

from based_jax.data.tokenizers import Tokenizer, add_stop_tokens, load_tokenizer
from based_jax.models.presets import BYTE_VOCAB


def find_tokenizer(directory: Path, spec: str | None, vocab_size: int) -> Tokenizer:
    """Load the tokenizer `spec`, else the model's own, else bytes if the vocabulary has their size."""
    if spec is not None:
        tokenizer = load_tokenizer(spec)
        add_stop_tokens(tokenizer, directory)
        return tokenizer
    tokenizer = own_tokenizer(directory, vocab_size)
    if tokenizer is None:
        raise ValueError(f"tokenizer = None: expected one to be given: {directory} has no tokenizer.json")
    return tokenizer


def own_tokenizer(directory: Path, vocab_size: int) -> Tokenizer | None:
    """Load the model's own tokenizer, else bytes if the vocabulary has their size, else None."""
    if (directory / "tokenizer.json").is_file():
        return load_tokenizer(directory)
    return load_tokenizer("byte") if vocab_size == BYTE_VOCAB else None
