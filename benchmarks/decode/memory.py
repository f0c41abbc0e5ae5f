"""Compute the memory of decoding from shapes and the compiler's plan: bytes per sequence, largest batch.

memory >= weights + B (state + scratch of a row) + scratch of zero rows
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from based_jax.models import ModelConfig
from benchmarks.decode.models import abstract_weights, model_config, one_of_each, state_bytes, weight_bytes
from benchmarks.decode.programs import Work, decode_arguments, decoding

PLANNED_BATCHES, PLANNED_CONTEXTS = (4, 8), (1024, 2048)
"""Batches for which scratch memory is planned: it is linear in the batch."""

STEPS = 2
"""Tokens of the planned program; its loop takes the same memory for any number."""


def memory_rows(
    names: Sequence[str], sizes: Sequence[str], contexts: Sequence[int], dtype: str, memory: float
) -> list[dict[str, Any]]:
    """Return each model's memory for each context, and how many sequences fit into `memory` bytes.

    Keys: size, model, context; bytes of the weights, of a sequence's state, and of the scratch memory that
    the compiler plans for zero rows and for each further one; largest_batch (0: not even one).
    """
    rows = []
    for size in sizes:
        for name in names:
            config = model_config(name, size, dtype)
            weights = weight_bytes(config)
            for context in contexts:
                state, scratch = state_bytes(config, context), scratch_bytes(config, context)
                rows.append(
                    {
                        "size": size,
                        "model": name,
                        "context": context,
                        "weight_bytes": weights,
                        "state_bytes": state,
                        "scratch_bytes": scratch[0],
                        "scratch_bytes_per_row": scratch[1],
                        "largest_batch": largest_batch(memory, weights, state, scratch),
                    }
                )
    return rows


def largest_batch(memory: float, weights: int, state: int, scratch: tuple[int, int]) -> int:
    """Return the number of sequences that fit; `scratch` is for zero rows, and for each row."""
    none, each = scratch
    return max(0, int((memory - weights - none) // (state + each)))


def scratch_bytes(config: ModelConfig, context: int) -> tuple[int, int]:
    """Return the scratch memory of decoding that XLA plans on this device: for zero rows, and for each row.

    It is planned for one layer of each kind, since layers use it one after another.
    """
    short, (low, high) = one_of_each(config), PLANNED_CONTEXTS
    planned = _of_none_and_each(short, low)
    if state_bytes(short, low) == state_bytes(short, high):
        return planned
    none, each = (
        max(0, first + (second - first) * (context - low) // (high - low))
        for first, second in zip(planned, _of_none_and_each(short, high), strict=True)
    )
    return none, each


@cache
def _of_none_and_each(config: ModelConfig, context: int) -> tuple[int, int]:
    low, high = PLANNED_BATCHES
    few, many = (_planned(config, Work(batch, context - STEPS, STEPS, context)) for batch in PLANNED_BATCHES)
    each = max(0, -(-(many - few) // (high - low)))
    return max(0, few - low * each), each


def _planned(config: ModelConfig, work: Work) -> int:
    arguments = decode_arguments(config, abstract_weights(config), work)
    analysis = decoding(config, work.tokens).lower(*arguments).compile().memory_analysis()
    return 0 if analysis is None else analysis.temp_size_in_bytes
