"""Validate prompts and convert them to the form that the loop takes: right-padded tokens."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax.ops.core.padding import Shift
from based_jax.typing import Array, Int
from based_jax.validate import expect, expect_array

Tokens: TypeAlias = "Array | np.ndarray | Sequence[Sequence[int] | np.ndarray]"
"""(B, N) integers, or B rows of any lengths."""

SMALLEST_BUCKET = 16

CHUNKS = (32, 128, 512)
"""numbers of prompt tokens that are read at a time: one program each"""


class Prompt(NamedTuple):
    """Tokens with padding after each row's own."""

    tokens: Int[Array, "B N"] | np.ndarray
    lengths: Int[Array, " B"] | np.ndarray


def read_prompt(prompt: Tokens, mask: Any, vocab_size: int, *, may_be_empty: bool = False) -> Prompt:
    """Validate a prompt and its mask; values are checked unless they are traced.

    Args:
        prompt, mask: see `generate`.
        may_be_empty: allow rows without tokens.

    Raises:
        TypeError, ValueError: wrong rank or dtype, an empty row, a token outside of the vocabulary, or a mask
            with padding between real tokens.
    """
    array: Any = prompt
    if not hasattr(array, "shape"):
        expect(mask is None, "attention_mask", type(mask).__name__, "None with a list of rows")
        array, mask = _pad_rows(array)
    expect_array("prompt", array, ("B", "N"), "integer")
    batch, length = array.shape
    if mask is not None:
        mask = mask if hasattr(mask, "shape") else np.asarray(mask)
        kind = "bool" if mask.dtype == bool else "integer"  # tokenizers give 1 and 0
        expect_array("attention_mask", mask, (batch, length), kind)
        mask = mask.astype(bool)
    if isinstance(array, Tracer) or isinstance(mask, Tracer):
        if mask is None:
            return Prompt(array.astype(jnp.int32), jnp.full((batch,), length, jnp.int32))
        tokens = Shift(mask, array).left(jnp.where(mask, array, 0))
        return Prompt(tokens.astype(jnp.int32), mask.sum(axis=1, dtype=jnp.int32))

    tokens = np.asarray(array)
    real = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask)
    lengths, firsts = real.sum(axis=1), real.argmax(axis=1)
    for row, (first, count) in enumerate(zip(firsts, lengths, strict=True)):
        is_one_run = bool(real[row, first : first + count].all())
        expect(is_one_run, "attention_mask", f"row {row}", "one run of real tokens, padding around it")
        expect(may_be_empty or count > 0, "prompt", f"row {row}", "at least one token")
    index = (firsts[:, None] + np.arange(length)) % length
    tokens, real = (np.take_along_axis(x, index, axis=1) for x in (tokens, real))
    wrong = tokens[real & ((tokens < 0) | (tokens >= vocab_size))]
    expect(wrong.size == 0, "prompt", int(wrong[0]) if wrong.size else None, f"tokens in [0, {vocab_size})")
    # Padding becomes token 0: other values may lie outside of the vocabulary and make NaNs.
    tokens = np.where(real, tokens, 0)[:, : max(lengths.max(), 1)]
    return Prompt(tokens.astype(np.int32), lengths.astype(np.int32))


def pad_to(prompt: Prompt, length: int) -> Prompt:
    """Return the prompt with `length` columns."""
    numpy: Any = jnp if isinstance(prompt.tokens, Tracer) else np
    missing = length - prompt.tokens.shape[1]
    return prompt._replace(tokens=numpy.pad(prompt.tokens, [(0, 0), (0, missing)]))


def chunk_sizes(length: int, largest: int | None = None) -> list[int]:
    """Split a prompt into chunks of `largest` (by default, of `CHUNKS`) and one for the remainder.

    The remainder is padded to a size of `CHUNKS`, so that prompts of any length compile only a few programs.
    """
    largest = largest or CHUNKS[-1]
    whole, rest = divmod(length, largest)
    fits = [size for size in CHUNKS if rest <= size < largest]
    return [largest] * whole + ([min(fits, default=largest)] if rest else [])


def bucket(length: int) -> int:
    """Round up a length so that few sizes are compiled: four per octave, at most 25% more."""
    step = max(SMALLEST_BUCKET, 1 << max((length - 1).bit_length() - 3, 0))
    return -(-length // step) * step


def _pad_rows(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows of any lengths to one array; return it and its mask."""
    whole = isinstance(rows, Sequence) and not isinstance(rows, str | bytes)
    if not whole:
        raise TypeError(f"prompt = {rows!r}: expected integers of shape (B, N), or rows of them")
    expect(len(rows) > 0, "prompt", rows, "at least one row")
    arrays = []
    for row, tokens in enumerate(rows):
        expect(isinstance(tokens, Sequence | np.ndarray | jax.Array), "prompt", tokens, "rows of tokens")
        array = np.asarray(tokens)
        array = array if array.size else np.zeros(0, np.int64)  # NumPy makes [] an array of floats
        integers = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
        expect(integers, f"prompt[{row}]", tokens, "a row of integers")
        arrays.append(array)
    lengths = np.array([len(array) for array in arrays])
    mask = np.arange(max(lengths.max(), 1))[None] < lengths[:, None]  # empty rows still have a column
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate(arrays)
    return padded, mask


def read_tokens(argument: str, tokens: Sequence[int], vocab_size: int) -> np.ndarray:
    """Validate a list of token ids."""
    values = tokens.tolist() if isinstance(tokens, np.ndarray | jax.Array) else tokens
    if not isinstance(values, Sequence):
        raise TypeError(f"{argument} = {tokens!r}: expected a row of integers")
    for token in values:
        known = isinstance(token, numbers.Integral) and 0 <= int(token) < vocab_size
        expect(known, argument, token, f"tokens in [0, {vocab_size})")
    return np.asarray(values, np.int32)
