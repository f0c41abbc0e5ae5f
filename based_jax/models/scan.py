"""Run repeated layers as one loop: traced once; with `remat`, one iteration's activations at a time.

Checkpoints and the converter keep the parameters per layer (`layers_0`, `layers_1`, ...). They are stacked
inside the step, which holds a second copy of them and of their gradients.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.models.block import Block
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.typing import Array, Float


def find_repeats(schedule: str) -> tuple[range, int]:
    """Return the range of repeated layers and the period that leave the fewest layers to trace.

    Without repetition the range is empty. Ties go to the shortest, then the earliest period.

    >>> find_repeats("XCLSCCCLSCCCLSCCY")
    (range(1, 16), 5)
    """
    best, saved = (range(0), 1), 0
    for period in range(1, len(schedule) // 2 + 1):
        for start in range(len(schedule) - 2 * period + 1):
            turn, times = schedule[start : start + period], 1
            while schedule.startswith(turn, start + times * period):
                times += 1
            if period * (times - 1) > saved:
                saved = period * (times - 1)
                best = range(start, start + times * period), period
    return best


def run_repeats(
    blocks: Sequence[Block],
    period: int,
    h: Float[Array, "B N D"],
    residual: Float[Array, "B N D"] | None,
    **context: Any,
) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None]:
    """Run the bound `blocks` in sequence, without states, as one loop.

    Args:
        blocks: pure layers (`Mixer.is_pure`) that repeat after `period` layers except for their parameters.
        h: output of the layer before; residual: the stream, None before the first layer.
        context: further arguments of the blocks.
    """
    turn = [block.unbind()[0] for block in blocks[:period]]
    params = [block.variables["params"] for block in blocks]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[index::period]) for index in range(period)
    ]

    def body(carry: tuple[Any, Any], params: list[Any]) -> tuple[tuple[Any, Any], None]:
        h, residual = carry
        for block, own in zip(turn, params, strict=True):
            outputs: Any = block.apply({"params": own}, h, residual, **context)
            h, residual, _ = outputs
        return (h, residual), None

    if residual is None and turn[0].kind != "postnorm":
        wide = accumulation_dtype(h) if turn[0].residual_in_fp32 else h.dtype
        residual = jnp.zeros(h.shape, wide)
    return lax.scan(body, (h, residual), stacked)[0]
