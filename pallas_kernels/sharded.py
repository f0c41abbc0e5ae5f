"""The public calls with rows over "data" and heads over "tensor": none may move anything between devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels.taylor_attention import mosaic_support, taylor_attention
from pallas_kernels.taylor_step import taylor_step
from pallas_kernels.window_step import Rotary, window_step

MESH_AXES = {"b": "data", "h": "tensor"}
"""Axis of an array -> axis of the mesh over which it is split."""


@dataclass(frozen=True)
class Call:
    """A function of arrays and the axes of each, one word per axis as "b n h k"."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    axes: tuple[str, ...]

    def shardings(self, mesh: Mesh) -> tuple[NamedSharding, ...]:
        """One per argument."""
        specs = [PartitionSpec(*map(MESH_AXES.get, axes.split())) for axes in self.axes]
        return tuple(NamedSharding(mesh, spec) for spec in specs)

    def sharded(self, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The arguments with their shardings."""
        return tuple(
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            for x, sharding in zip(self.arguments, self.shardings(mesh), strict=True)
        )


def calls(batch: int = 128, heads: int = 16, length: int = 2048, dtype: Any = jnp.bfloat16) -> list[Call]:
    """Forward and backward of `taylor_attention`, and the decoding steps."""
    tokens = {"b": batch, "n": length, "h": heads, "k": 16, "v": 64, "f": 153, "w": 64}

    def call(name: str, function: Callable[..., Any], *described: tuple[str, Any]) -> Call:
        arguments = [
            jax.ShapeDtypeStruct([tokens[a] for a in axes.split()], dtype) for axes, dtype in described
        ]
        return Call(name, function, tuple(arguments), tuple(axes for axes, _ in described))

    keys, values = ("b n h k", dtype), ("b n h v", dtype)
    key, value, ring = ("b h k", dtype), ("b h v", dtype), ("b w h v", dtype)
    rotary = Rotary(dim=32, base=10000.0, interleaved=False)
    return [
        call("taylor_attention", taylor_attention, keys, keys, values),
        call("taylor_attention with state", _attention_with_state, keys, keys, values),
        call("taylor_attention packed", _attention_packed, keys, keys, values, ("b n", jnp.int32)),
        call("taylor_attention backward", _attention_backward, keys, keys, values, values),
        call("taylor_step", taylor_step, key, key, value, ("b h f v", jnp.float32), ("b h f", jnp.float32)),
        call(
            "window_step",
            lambda *arrays: window_step(*arrays, rotary=rotary),
            *(value, value, value, ring, ring, ("b", jnp.int32)),
        ),
    ]


def hopper_calls(batch: int = 128, heads: int = 16, length: int = 2048) -> list[Call]:
    """The Mosaic kernels: one block per row and head, and the three passes; none where jax is too old."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []

    def call(name: str, batch: int) -> Call:
        def function(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return taylor_attention(q, k, v, return_state=True, backend="mosaic")

        shapes = [(batch, length, heads, size) for size in (16, 16, 64)]
        arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
        return Call(name, function, arguments, ("b n h k", "b n h k", "b n h v"))

    return [call("taylor_attention mosaic", batch), call("taylor_attention mosaic, blocks", batch // 16)]


def mesh(devices: Sequence[Any]) -> Mesh:
    """Two devices over heads where there are so many, the others over rows."""
    tensor = 2 if len(devices) % 2 == 0 else 1
    return Mesh(np.array(devices).reshape(-1, tensor), tuple(MESH_AXES.values()))


def _attention_with_state(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    return taylor_attention(q, k, v, return_state=True)


def _attention_packed(q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array) -> Any:
    return taylor_attention(q, k, v, starts=starts)


def _attention_backward(q: jax.Array, k: jax.Array, v: jax.Array, gradient: jax.Array) -> Any:
    return jax.vjp(taylor_attention, q, k, v)[1](gradient)
