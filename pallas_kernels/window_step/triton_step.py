"""`kernel.step` through jax-triton."""

import jax
from jax.experimental import pallas as pl

from pallas_kernels import triton_launch
from pallas_kernels.window_step.kernel import Variant, split


def step(
    q: jax.Array, k: jax.Array, v: jax.Array, k_ring: jax.Array, v_ring: jax.Array,
    length: jax.Array, start: jax.Array, origin: jax.Array, partner: jax.Array, frequency: jax.Array,
    *, scale: float, variant: Variant,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Run the kernel; arguments and results as `kernel.step`.

    Raises:
        ImportError: `triton` or `jax_triton` is missing.
    """
    batch, slots, heads, width = k_ring.shape
    shared, value_size = q.shape[2], v.shape[-1]
    queries, full, tail = split(slots, shared, variant)
    y = jax.ShapeDtypeStruct((batch, heads, shared, value_size), v.dtype)
    return triton_launch.launch(
        triton_launch.kernels("window_step.triton_kernel").window_step,
        length, start, origin, partner, frequency, q, k, v, k_ring, v_ring,
        grid=(batch * heads * (shared // queries),),
        out_shape=[y, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k_ring, v_ring))],
        warps=variant.warps, stages=variant.stages, aliases={8: 1, 9: 2}, name="window_step_triton",
        HEADS=heads, PARTS=shared // queries, QUERIES=queries, SLOTS=slots,
        TILE=variant.slots, FULL=full, TAIL=tail,
        WIDTH=width, CHANNELS=len(partner), VALUE_SIZE=value_size, COLUMNS=pl.next_power_of_2(value_size),
        SCALE=scale,
    )  # fmt: skip
