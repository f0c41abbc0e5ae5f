"""Decoding step of Taylor linear attention (Based, arXiv 2402.18668, Algorithm 2), fused and in place.

The state's rows are the symmetric features of a key, times its value, summed over tokens. Each feature is a
product of two channels, or of a channel and 1, times a weight, so tables of two indices and a weight per row
describe them, and the rows need no padding in memory: 153 rows for K = 16.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from pallas_kernels import triton_launch
from pallas_kernels.checks import expect_array, expect_power_of_two, unsupported
from pallas_kernels.launch import barrier, blocks, both, launch, load, store, whole
from pallas_kernels.partition import per_row_and_head, with_gradient_of
from pallas_kernels.taylor_attention.layout import MAX_KEY_SIZE, symmetric_size
from pallas_kernels.triton_launch import expect_backend
from pallas_kernels.tuning import choose
from pallas_kernels.tuning import fastest as fastest_measured

__all__ = ["Variant", "fastest", "supports", "taylor_step"]

MAX_VALUE_SIZE = 256

FEW = 64
"""so many programs, one a row and head, leave half of a GPU without any"""


@dataclass(frozen=True)
class Variant:
    """Block sizes of one program, which processes the state of a (row, head)."""

    rows: int = 16
    """rows of the state per tile, a power of two"""
    warps: int = 2
    stages: int = 1


class Features(NamedTuple):
    """Tables of features: row f is weight[f] * x1[first[f]] * x1[second[f]], x1 being x with a 1 appended."""

    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray


@functools.cache
def features(width: int, rows: int) -> Features:
    """Return the tables of [1, x, x^2, x_m x_n for n < m (row-major)], padded to `rows` with weight 0.

    The weights hold K^(-1/4) per factor and the 1/sqrt(2) of the squares, so that phi(q) . phi(k) =
    1 + s + s^2 / 2 with s = q . k / sqrt(K).
    """
    one, channels = [width], np.arange(width)
    m, n = np.tril_indices(width, -1)
    first = np.concatenate([one, channels, channels, m])
    second = np.concatenate([one, np.full(width, width), channels, n])
    weight = np.repeat([1, width**-0.25, (2 * width) ** -0.5, width**-0.5], [1, width, width, len(m)])
    padding = (0, rows - len(first))
    return Features(
        np.pad(first, padding, constant_values=width).astype(np.int32),
        np.pad(second, padding, constant_values=width).astype(np.int32),
        np.pad(weight, padding).astype(np.float32),
    )


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why `taylor_step` cannot take q, k (B, H, K) and v (B, H, V) here, or None if it can."""
    largest = {"q": MAX_KEY_SIZE, "v": MAX_VALUE_SIZE}
    return unsupported({"q": q, "k": k, "v": v}, 3, largest)


def facts_of(q: Any, k: Any, v: Any, kv: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    sizes = {"key_size": q.shape[-1], "value_size": v.shape[-1], "few": int(q.shape[0] * q.shape[1] <= FEW)}
    return {**sizes, "state": jnp.dtype(kv.dtype).name}


def fastest(q: Any, k: Any, v: Any, kv: Any) -> str:
    """Return "xla" where `formula`'s operations were measured to be as fast as the kernel, else "pallas"."""
    return fastest_measured("taylor_step", rows_and_heads=q.shape[0] * q.shape[1], **facts_of(q, k, v, kv))


def taylor_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    *,
    eps: float = 1e-12,
    variant: Variant | None = None,
    backend: str = "pallas",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Add a token to the state, then read it: S += phi(k) v^T, z += phi(k), y = phi(q) S / (phi(q) z + eps).

    phi is the symmetric second-order Taylor map, [1, x, x^2 / sqrt(2), x_m x_n for n < m] of x / K^(1/4),
    F = 1 + K + K (K + 1) / 2 features. Arithmetic is float32. Under `jit`, a donated state is overwritten.
    Works under `vmap`, with rows and heads sharded, and in reverse mode (with the gradient of `formula`).

    Args:
        q, k: (B, H, K) projections, K <= 32; float32, bfloat16 or float16.
        v: (B, H, V), V <= 256.
        kv: (B, H, F, V) state S; float32, bfloat16 or float16. The new state has the same dtype: 16 bits
            round the sums at every token.
        z: (B, H, F) normaliser.
        eps: added to the denominator.
        variant: block sizes; None takes them from the tuning table.
        backend: "pallas", or "triton" for the same kernel launched through jax-triton.

    Returns:
        y: (B, H, V) in v's dtype, and the new kv and z.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
        ImportError: the backend's package or part of jax is missing.
    """
    expect_backend(backend)
    reason = supports(q, k, v)
    if reason:
        raise ValueError(f"taylor_step: {reason}")
    batch, heads, width = q.shape
    count, value_size = symmetric_size(width), v.shape[-1]
    expect_array("k", k, q.shape)
    expect_array("v", v, (batch, heads, value_size))
    expect_array("kv", kv, (batch, heads, count, value_size))
    expect_array("z", z, (batch, heads, count))
    variant = variant or choose("taylor_step", Variant, **facts_of(q, k, v, kv))
    expect_power_of_two("rows", variant.rows)
    run = per_row_and_head(
        functools.partial(_step, eps=float(eps), variant=variant, backend=backend),
        operands=("b h k", "b h k", "b h v", "b h f v", "b h f"),
        results=("b h v", "b h f v", "b h f"),
        constants=features(width, math.ceil(count / variant.rows) * variant.rows),
    )
    return with_gradient_of(functools.partial(formula, eps=float(eps)), run)(q, k, v, kv, z)


def formula(q, k, v, kv, z, *, eps: float = 1e-12):
    """Compute the kernel's result in plain operations."""
    width, count = q.shape[-1], z.shape[-1]
    first, second, weight = features(width, count)

    def phi(x):
        x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1).astype(jnp.float32)
        return x[..., first] * x[..., second] * weight

    phi_q, phi_k = phi(q), phi(k)
    s = kv.astype(jnp.float32) + phi_k[..., None] * v.astype(jnp.float32)[..., None, :]
    n = z.astype(jnp.float32) + phi_k
    numerator = jnp.einsum("bhf,bhfv->bhv", phi_q, s)
    denominator = jnp.einsum("bhf,bhf->bh", phi_q, n) + eps
    y = numerator / denominator[..., None]
    return y.astype(v.dtype), s.astype(kv.dtype), n.astype(z.dtype)


def _step(*arrays: jax.Array, eps: float, variant: Variant, backend: str) -> tuple[jax.Array, ...]:
    """Run the kernel on q, k, v, kv and z of `taylor_step`, and the tables of `features`, in whole tiles."""
    q, k, v, kv, z, *tables = arrays
    batch, heads, width = q.shape
    count, value_size = kv.shape[2:]
    channels, columns, padded = pl.next_power_of_2(width), pl.next_power_of_2(value_size), len(tables[0])
    operands = *tables, q, k, v, kv, z
    options: dict[str, Any] = {
        "grid": (batch * heads,),
        "out_shape": tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (v, kv, z)),
        "warps": variant.warps,
        "stages": variant.stages,
        "aliases": {6: 1, 7: 2},
    }
    if backend == "triton":
        twin = triton_launch.kernels("taylor_step.triton_kernel").taylor_step
        sizes = {"WIDTH": width, "CHANNELS": channels, "COUNT": count, "VALUE_SIZE": value_size}
        constants = {**sizes, "COLUMNS": columns, "ROWS": variant.rows, "SCALE": width**-0.5, "EPS": eps}
        return triton_launch.launch(twin, *operands, name="taylor_step_triton", **options, **constants)

    # Blocks may extend beyond the arrays' ends; masks keep every access inside.
    blocked = {"k": channels, "v": columns, "f": padded}
    spec = functools.partial(blocks, sizes=blocked, at=lambda i: {"b": i // heads, "h": i % heads})
    results = tuple(map(spec, ("bhv", "bhfv", "bhf")))
    in_specs = [*map(whole, tables), spec("bhk"), spec("bhk"), *results]
    sizes = {"width": width, "count": count, "value_size": value_size, "rows": variant.rows}
    body = functools.partial(_body, **sizes, eps=eps)
    return tuple(launch(body, *operands, in_specs=in_specs, out_specs=results, name="taylor_step", **options))


def _body(
    first, second, weight, q, k, v, kv, z, y, new_kv, new_z, *, width, count, value_size, rows, eps
) -> None:
    """Compute S += phi(k) v^T, z += phi(k), y = phi(q) S / (phi(q) z + eps) for one row and head.

    The token's own term of y is computed from q . k instead of the features: the sum of F signed products of
    large queries and keys then loses digits to cancellation for older tokens only.
    """
    every = slice(None)
    columns = v.shape[0]
    column = None if columns == value_size else jnp.arange(columns) < value_size
    value = load(v, every, column).astype(jnp.float32)
    # Accumulate per row of a tile: one reduction over rows at the end instead of one per tile.
    numerator = jnp.zeros((rows, columns), jnp.float32)
    denominator = jnp.zeros((rows,), jnp.float32)
    for begin in range(0, count, rows):
        tile = pl.ds(begin, rows)
        row = None if begin + rows <= count else jnp.arange(rows) < count - begin
        inside = both(None if row is None else row[:, None], column)
        a, b, w = first[tile], second[tile], weight[tile]
        phi_q, phi_k = (_at(x, a, width) * _at(x, b, width) * w for x in (q, k))
        s = load(kv, (tile, every), inside).astype(jnp.float32)
        n = load(z, tile, row).astype(jnp.float32)
        barrier()  # warps share a tile's numbers: none may store before all have loaded
        store(new_kv, (tile, every), s + phi_k[:, None] * value[None, :], inside)
        store(new_z, tile, n + phi_k, row)
        numerator += phi_q[:, None] * s
        denominator += phi_q * n
    channel = jnp.arange(q.shape[0])
    query, key = (load(x, channel, channel < width).astype(jnp.float32) for x in (q, k))
    similarity = jnp.sum(query * key) * width**-0.5
    own = 1 + similarity * (1 + 0.5 * similarity)
    total = jnp.sum(numerator, axis=0) + own * value
    store(y, every, total / (jnp.sum(denominator) + own + eps), column)


def _at(ref: Any, index: jax.Array, width: int) -> jax.Array:
    """Return channels of q or k in float32; index `width` is the constant 1."""
    return load(ref, index, index < width, other=1).astype(jnp.float32)
