"""`kernel.step` through jax-triton."""

import jax
from jax.experimental import pallas as pl

from pallas_kernels import triton_launch
from pallas_kernels.taylor_step.kernel import Variant


def step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    *tables: jax.Array,
    eps: float,
    variant: Variant,
) -> tuple[jax.Array, ...]:
    """Run the kernel; arguments and results as `kernel.step`.

    Raises:
        ImportError: `triton` or `jax_triton` is missing.
    """
    batch, heads, width = q.shape
    count, value_size = kv.shape[2:]
    return triton_launch.launch(
        triton_launch.kernels("taylor_step.triton_kernel").taylor_step,
        *tables, q, k, v, kv, z,
        grid=(batch * heads,),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (v, kv, z)],
        warps=variant.warps, stages=variant.stages, aliases={6: 1, 7: 2}, name="taylor_step_triton",
        WIDTH=width, CHANNELS=pl.next_power_of_2(width), COUNT=count, VALUE_SIZE=value_size,
        COLUMNS=pl.next_power_of_2(value_size), ROWS=variant.rows, SCALE=width**-0.5, EPS=eps,
    )  # fmt: skip
