"""Sizes, memory and state of a program of the Mosaic kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.launch import is_interpreted
from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_features import COLUMNS, KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import plgpu

CHUNK = 128
PART = 64
"""Tokens of a warpgroup, keys of one product of scores, value channels of a program."""

STAGES = 2

SHARE = COLUMNS // gpu.THREADS
"""Columns of the state that a warpgroup keeps."""

WRITTEN, PUBLISHED = 0, 1
"""Barriers of the two warpgroups: before the state is updated, and before it is read."""

f32, bf16 = jnp.float32, jnp.bfloat16


@dataclass(frozen=True)
class Plan:
    """The sizes of one call, padded: tokens to whole blocks, values to whole parts."""

    batch: int
    heads: int
    blocks: int
    block: int
    """tokens per program, a multiple of `CHUNK`"""
    values: int
    eps: float
    packed: bool

    @property
    def length(self) -> int:
        return self.blocks * self.block

    @property
    def parts(self) -> int:
        return self.values // PART

    def grid(self, blocks: int) -> tuple[int, int, int]:
        """Return the grid of programs for `blocks` blocks, in the order of `mosaic_launch.GRID`."""
        return self.heads * self.parts, self.batch, blocks


class State(NamedTuple):
    """State that a warpgroup carries from chunk to chunk; the moments are in shared memory."""

    kv: jax.Array
    """(64, 112) float32"""
    count: Any
    """keys in the state"""
    rounds: Any
    """chunks so far, float32"""


class Side(NamedTuple):
    """Names of the tokens whose features a program sums, x (tokens, 16), and of what it multiplies them with,
    u (tokens, 64): S += u^T phi(x)."""

    x: str
    u: str
    others: tuple[str, ...] = ()
    """further arrays that the sum needs"""


KEYS, QUERIES = Side("k", "v"), Side("q", "do", ("rden", "e"))


def scratch_types(
    side: Side, reads: Sequence[str] = (), values_out: Any = None, gradients: bool = False
) -> Any:
    """Return the shared memory of a program.

    Args:
        reads: names of further arrays to load in each chunk; if any, the program reads its state.
        values_out: the layout of a result (tokens, 64), if there is one.
        gradients: whether the program computes gradients of the features.
    """

    def smem(*shape: int, transforms: Any = (), dtype: Any = bf16) -> Any:
        return plgpu.SMEM(shape, dtype, transforms=transforms)

    def stages(name: str) -> Any:
        if name in ("rden", "e"):
            return smem(STAGES, CHUNK, dtype=f32)
        if name in ("q", "k"):
            return smem(STAGES, CHUNK, KEY_SIZE, transforms=gpu.TILE)
        if name in ("v", "do", "y"):
            return smem(STAGES, CHUNK, PART, transforms=gpu.TILE)
        return smem(STAGES, CHUNK, KEY_SIZE)  # "plain_", for loads of columns

    loads = dict.fromkeys((side.x, f"plain_{side.x}", side.u, *side.others, *reads))
    refs = {name: stages(name) for name in loads}
    refs |= {
        "phi": smem(1, CHUNK, COLUMNS, transforms=gpu.TILE),
        "moments": smem(features.ROWS, KEY_SIZE, dtype=f32),
        "arrived": plgpu.Barrier(num_arrivals=len(loads), num_barriers=STAGES),
        "together": plgpu.Barrier(num_arrivals=gpu.THREADS, num_barriers=2),
    }
    if side is QUERIES:
        refs["weighted"] = smem(1, CHUNK, KEY_SIZE, transforms=gpu.TILE)
    if reads:
        refs |= {
            "kv": smem(1, PART, COLUMNS, transforms=gpu.TILE),
            "rounded": smem(features.ROWS, KEY_SIZE, transforms=gpu.TILE),
            "staging": smem(gpu.THREADS, PART, COLUMNS) if is_interpreted() else smem(8),
        }
    if values_out is not None:
        refs["values_out"] = smem(gpu.THREADS, PART, PART, transforms=values_out)
    if gradients:
        refs["factors"] = smem(features.STRIPS, PART, KEY_SIZE, transforms=gpu.TILE)
    return refs


def values_layout(value_size: int) -> Any:
    """Return the layout of results in shared memory; of the wide one, copies cannot drop any columns."""
    return gpu.TILE if value_size % PART else gpu.WIDE_TILE
