"""A small kernel with a loop and a matmul, any body on whole arrays, and GPUs, for the tests of the tools."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case
from pallas_kernels.launch import dot, launch, whole

SIZE = 64


class Device(NamedTuple):
    """What jax says of a device."""

    device_kind: str
    compute_capability: str
    platform: str = "gpu"


def run_whole(body: Any, *arrays: Any, size: tuple[int, ...]) -> jax.Array:
    """One program of `body`, from whole arrays to a float32 array."""
    shape = jax.ShapeDtypeStruct(size, jnp.float32)
    specs = {"in_specs": [whole(x) for x in arrays], "out_specs": whole(shape), "out_shape": shape}
    return launch(body, *arrays, grid=(1,), warps=1, name="test", **specs)


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    chunk: int = 64
    warps: int = 4
    stages: int = 1


def gram(x: jax.Array, y: jax.Array, *, variant: Variant) -> jax.Array:
    """x^T y of each row: (B, N, SIZE) twice to (B, SIZE, SIZE) float32."""
    batch, length, _ = x.shape

    def body(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        def step(i: Any, total: jax.Array) -> jax.Array:
            chunk = pl.ds(i * variant.chunk, variant.chunk)
            return dot(x_ref[chunk, :], y_ref[chunk, :], (0, 0), total)

        out_ref[...] = lax.fori_loop(0, length // variant.chunk, step, jnp.zeros((SIZE, SIZE), jnp.float32))

    tokens = pl.BlockSpec((None, length, SIZE), lambda i: (i, 0, 0))
    return launch(
        body,
        x,
        y,
        grid=(batch,),
        in_specs=[tokens, tokens],
        out_specs=pl.BlockSpec((None, SIZE, SIZE), lambda i: (i, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, SIZE, SIZE), jnp.float32),
        warps=variant.warps,
        stages=variant.stages,
        name="gram",
    )


def case(variant: Variant | None = None, length: int = 512) -> Case:
    """The kernel as a case, on (8, `length`, SIZE) bfloat16; without a variant the default one."""
    chosen = variant or Variant()
    x = jax.ShapeDtypeStruct((8, length, SIZE), jnp.bfloat16)
    return Case(
        op="toy",
        kernel="gram",
        shape=f"N{length}",
        variant=chosen,
        function=lambda x, y: gram(x, y, variant=chosen),
        arguments=(x, x),
    )
