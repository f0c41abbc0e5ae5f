"""Sizes, memory and state of a program of the Mosaic kernels."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.launch import is_interpreted
from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention.mosaic_features import COLUMNS, KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import THREADS, TILE, WIDE_TILE, plgpu

CHUNK = 128
PART = 64
"""Tokens of a warpgroup, keys of one product of scores, value channels of a program."""

STAGES = 2

SHARE = COLUMNS // THREADS
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


class Tokens(NamedTuple):
    """Refs of the inputs in device memory; no q for sums only, no packing unless packed."""

    q: Any
    k: Any
    v: Any
    starts: Any = None
    counts: Any = None


def scratch_types(queries: bool, whole: bool) -> dict[str, Any]:
    """Return the shared memory of a program, 165 kB with queries; `whole` if values fill all parts."""

    def smem(*shape: int, transforms: Any = (), dtype: Any = bf16) -> Any:
        return plgpu.SMEM(shape, dtype, transforms=transforms)

    refs = {
        "k": smem(STAGES, CHUNK, KEY_SIZE, transforms=TILE),
        "plain_k": smem(STAGES, CHUNK, KEY_SIZE),  # again, for loads of columns
        "v": smem(STAGES, CHUNK, PART, transforms=TILE),
        "phi": smem(1, CHUNK, COLUMNS, transforms=TILE),
        "moments": smem(features.ROWS, KEY_SIZE, dtype=f32),
        "arrived": plgpu.Barrier(num_arrivals=4 if queries else 3, num_barriers=STAGES),
        "together": plgpu.Barrier(num_arrivals=THREADS, num_barriers=2),
    }
    if queries:
        refs |= {
            "plain_q": smem(STAGES, CHUNK, KEY_SIZE),
            "kv": smem(1, PART, COLUMNS, transforms=TILE),
            "rounded": smem(features.ROWS, KEY_SIZE, transforms=TILE),
            "y": smem(THREADS, PART, PART, transforms=WIDE_TILE if whole else TILE),
            "staging": smem(THREADS, PART, COLUMNS) if is_interpreted() else smem(8),
        }
    return refs
