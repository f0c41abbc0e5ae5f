"""The public calls with rows sharded over "data", heads or channels over "tensor", without communication."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels.conv_step import conv_step
from pallas_kernels.gated_conv import gated_conv
from pallas_kernels.linear_recurrence import linear_recurrence
from pallas_kernels.rms_norm import add_rms_norm
from pallas_kernels.row_products import conv_row_product, row_products
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.softmax_loss import softmax_loss
from pallas_kernels.taylor_attention import mosaic_support, taylor_attention
from pallas_kernels.taylor_step import taylor_step
from pallas_kernels.window_attention import window_attention
from pallas_kernels.window_step import Rotary, window_step

MESH_AXES = {"b": "data", "h": "tensor"}
"""Axis of an array -> axis of the mesh over which it is sharded."""


@dataclass(frozen=True)
class Call:
    """A function of arrays and the axes of each, one word per axis, such as "b n h k"."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    axes: tuple[str, ...]

    def sharded(self, mesh: Mesh) -> list[jax.ShapeDtypeStruct]:
        """The arguments with their shardings."""
        specs = (PartitionSpec(*map(MESH_AXES.get, axes.split())) for axes in self.axes)
        return [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
            for x, spec in zip(self.arguments, specs, strict=True)
        ]


def _call(name: str, function: Callable[..., Any], *described: tuple[str, Any], **sizes: int) -> Call:
    """From (axes, dtype) per argument and the size of each axis."""
    sizes = {"k": 16, "v": 64, "f": 153, "w": 64} | sizes
    arguments = [jax.ShapeDtypeStruct([sizes[a] for a in axes.split()], dtype) for axes, dtype in described]
    return Call(name, function, tuple(arguments), tuple(axes for axes, _ in described))


def _gradients(function: Callable[..., Any], count: int = 3) -> Callable[..., Any]:
    """The gradients of the first `count` arguments, from all and the result's gradient."""

    def run(*arrays: jax.Array) -> Any:
        *arguments, gradient = arrays
        return jax.vjp(lambda *x: function(*x, *arguments[count:]), *arguments[:count])[1](gradient)

    return run


def calls(batch: int, heads: int, length: int, dtype: Any = jnp.bfloat16) -> list[Call]:
    """Each kernel; the backward pass runs the kernels of the forward pass, too."""
    call = functools.partial(_call, b=batch, n=length, h=heads)
    keys, values, packing = ("b n h k", dtype), ("b n h v", dtype), ("b n", jnp.int32)
    key, value, ring = ("b h k", dtype), ("b h v", dtype), ("b w h v", dtype)
    state, rings = [("b h f v", jnp.float32), ("b h f", jnp.float32)], [ring, ring, ("b", jnp.int32)]
    token = [("b u h", dtype), ("b t h", dtype), ("b", jnp.int32), ("c h", dtype)]
    product = [("k", dtype), ("u h k", dtype), ("o t h", dtype), ("o", jnp.int32), ("c h", dtype)]
    channels, maps = ("b n h", dtype), ("b n s", dtype)
    scan = [channels, channels, ("h s", jnp.float32), maps, maps, ("h", dtype), ("b h s", jnp.float32)]
    one = ("b n u k", dtype)
    gates, memory = ("b n h", jnp.float32), ("b h k v", jnp.float32)
    channels_of = keys, keys, values, ("b n h k", jnp.float32)
    with_state = functools.partial(taylor_attention, return_state=True)

    def scanned(*arrays: jax.Array) -> jax.Array:
        return selective_scan(*arrays)[0]

    def recurrence(*arrays: jax.Array) -> jax.Array:
        *arrays, beta = arrays
        return linear_recurrence(*arrays, beta=beta)[0]

    def low_rank(*arrays: jax.Array) -> jax.Array:
        *arrays, a, b = arrays
        return linear_recurrence(*arrays, low_rank=(a, b))[0]

    def shared(*arrays: jax.Array) -> jax.Array:
        return linear_recurrence(*arrays)[0]

    def packed(q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array) -> Any:
        return taylor_attention(q, k, v, starts=starts)

    def window(q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array) -> Any:
        return window_attention(q, k, v, left=15, starts=starts)

    rotary = Rotary(dim=32, base=10000.0, interleaved=False)
    return [
        call("taylor_attention with state", with_state, keys, keys, values),
        call("taylor_attention packed", packed, keys, keys, values, packing),
        call("taylor_attention backward", _gradients(taylor_attention), keys, keys, values, values),
        call("window_attention backward", _gradients(window), keys, keys, values, packing, values),
        call("taylor_step", taylor_step, key, key, value, *state),
        call("window_step", functools.partial(window_step, rotary=rotary), value, value, value, *rings),
        call("conv_step", conv_step, *token, u=2, t=2, c=3),
        call("gated_conv backward", _gradients(gated_conv, 1), ("b n u h", dtype), ("b n h", dtype), u=2),
        call("selective_scan backward", _gradients(scanned, 2), *scan, channels, h=64 * heads, s=2),
        call("delta_rule backward", _gradients(recurrence), keys, keys, values, gates, memory, gates, values),
        call("low_rank backward", _gradients(low_rank), *channels_of, memory, keys, keys, values),
        call("linear_recurrence", shared, one, one, values, gates, memory, u=1),
        call("rms_norm", add_rms_norm, ("b n d", jnp.float32), ("b n d", dtype), ("d", jnp.float32), d=64),
        call("softmax_loss", softmax_loss, ("b k", jnp.float32), ("b", jnp.int32), ("b", jnp.float32), k=64),
        call("row_products", row_products, ("k", dtype), ("h k", dtype), ("h k", dtype), k=64),
        call("conv_row_product", conv_row_product, *product, u=2, t=2, o=1, c=3, k=64),
    ]


def hopper_calls(heads: int = 16, length: int = 2048) -> list[Call]:
    """The Mosaic kernels, with one block per row and head, and with several; none if jax is too old."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []
    backward = _gradients(functools.partial(taylor_attention, backend="mosaic"))
    described = [(axes, jnp.bfloat16) for axes in ("b n h k", "b n h k", "b n h v", "b n h v")]
    return [
        _call(f"taylor_attention mosaic{words}", backward, *described, b=rows, n=length, h=heads)
        for words, rows in (("", 128), (", blocks", 8))
    ]


def mesh(devices: Sequence[Any]) -> Mesh:
    """Two devices over heads, if there are two, and the others over rows."""
    tensor = 2 if len(devices) % 2 == 0 else 1
    return Mesh(np.array(devices).reshape(-1, tensor), tuple(MESH_AXES.values()))


def collectives(program: str) -> list[str]:
    """Names of the operations in compiled text that move data between devices, with repetitions."""
    names = "all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|reduce-scatter"
    return re.findall(rf"\b({names})(?:-start)?\(", program)
