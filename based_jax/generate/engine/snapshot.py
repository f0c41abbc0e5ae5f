"""Read a prefix once, so that any number of texts continue from the state after it.

A snapshot is a tree of arrays, useful only with the model and the weights that made it.
"""

from collections.abc import Sequence

import numpy as np

from based_jax.generate.capacity import capacity_for, with_capacity
from based_jax.generate.engine.pool import read
from based_jax.generate.loop import Snapshot
from based_jax.generate.prompt import chunk_sizes, read_prompt
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_integer


def snapshot(
    model: LanguageModel, params: Params, tokens: Sequence[int], *, max_length: int | None = None
) -> Snapshot:
    """Read a prefix and return its snapshot.

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        max_length: tokens that the state must hold, later ones included; only KV caches need it. Defaults to
            N. `with_capacity` enlarges a state later.

    Raises:
        TypeError, ValueError: `tokens` is empty, holds values outside of the vocabulary, or has more than
            `max_length` tokens or the model's positions.
    """
    row = np.asarray(read_prompt([tokens], None, model.config.vocab_size).tokens[0])
    most = model.config.max_positions or len(row)
    expect(len(row) <= most, "tokens", len(row), f"at most {most} = max_positions of the model")
    max_length = len(row) if max_length is None else max_length
    expect_integer("max_length", max_length, 1)
    expect(max_length >= len(row), "max_length", max_length, f"at least {len(row)}, the number of tokens")
    state, hidden, begin = model.init_state(1, capacity_for(model, max_length)), None, 0
    for size in chunk_sizes(len(row)):
        chunk = row[begin : begin + size]
        padded = np.pad(chunk, (0, size - len(chunk)))[None]
        state, hidden = read(model, params, state, padded, len(chunk))
        begin += size
    return Snapshot(row, with_capacity(model, state, max_length), hidden)
