"""One token of sliding-window attention: rotate, write into the ring buffer, attend, in one pass over it.

A program processes one row's keys and values of one head and some of the queries that share them. The softmax
is online over tiles of slots and starts from the new token, which every query sees: its key and value are in
registers, so no program reads what another one or itself has written.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import triton_launch
from pallas_kernels.launch import blocks, both, launch, load, store, whole


@dataclass(frozen=True)
class Variant:
    """Block sizes of one program."""

    slots: int = 64
    """slots per tile, a power of two"""
    queries: int = 4
    """maximum queries per program: those of one key head are distributed evenly"""
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of the first channels: pair i rotates by position * base^(-2 i / dim)."""

    dim: int
    """channels to rotate; an odd number rotates dim + 1 channels with the frequencies of dim"""
    base: float = 10000.0
    interleaved: bool = False
    """pair channels (0, 1), (2, 3), ... instead of (0, r), (1, r + 1), ..."""


def rotation_tables(width: int, rotary: Rotary | None) -> tuple[np.ndarray, np.ndarray]:
    """Return each of `width` channels' partner and signed frequency f: x cos(p f) + x[partner] sin(p f).

    The first of a pair has -f, for the minus sign of its sine; f = 0 leaves a channel unchanged.
    """
    partner, frequency = np.arange(width), np.zeros(width)
    if rotary is not None:
        pairs = np.arange((rotary.dim + 1) // 2)
        one, two = (2 * pairs, 2 * pairs + 1) if rotary.interleaved else (pairs, pairs + len(pairs))
        partner[one], partner[two] = two, one
        frequency[two] = rotary.base ** (-2 * pairs / rotary.dim)
        frequency[one] = -frequency[two]
    return partner.astype(np.int32), frequency.astype(np.float32)


def split(slots: int, shared: int, variant: Variant) -> tuple[int, int, int]:
    """Return queries per program, whole tiles of a ring, and a power of two >= the remaining slots."""
    queries = max(n for n in range(1, variant.queries + 1) if shared % n == 0)
    full, rest = divmod(slots, variant.slots)
    return queries, full, pl.next_power_of_2(rest) if rest else 0


def step(*arrays: jax.Array, scale: float, variant: Variant, backend: str) -> tuple[jax.Array, ...]:
    """Run the kernel; shapes as in `pallas_kernels.window_step`, but q (B, G, R, K) and y (B, G, R, V).

    After the rings come length, start and the index at which positions are 0, (B,) each, and the
    `rotation_tables`, padded to a power of two of channels.
    """
    q, k, v, k_ring, v_ring, *integers_and_tables = arrays
    batch, slots, heads, width = k_ring.shape
    shared, value_size = q.shape[2], v.shape[-1]
    queries, full, tail = split(slots, shared, variant)
    parts = shared // queries
    key_columns, value_columns = len(integers_and_tables[-1]), pl.next_power_of_2(value_size)
    options: dict[str, Any] = {"warps": variant.warps, "stages": variant.stages, "aliases": {8: 1, 9: 2}}
    options["grid"] = (batch * heads * parts,)
    y = jax.ShapeDtypeStruct((batch, heads, shared, value_size), v.dtype)
    rings = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k_ring, v_ring)]
    sizes = {"slots": slots, "parts": parts, "queries": queries, "width": width, "value_size": value_size}
    sizes |= {"tile": variant.slots, "full": full, "tail": tail}
    if backend == "triton":
        twin = triton_launch.kernels("window_step.triton_kernel").window_step
        constants: dict[str, Any] = {name.upper(): size for name, size in sizes.items()}
        constants |= {"HEADS": heads, "CHANNELS": key_columns, "COLUMNS": value_columns, "SCALE": scale}
        options |= {"out_shape": [y, *rings], "name": "window_step_triton", **constants}
        return triton_launch.launch(twin, *integers_and_tables, q, k, v, k_ring, v_ring, **options)

    def at(i: Any) -> dict[str, Any]:
        part = i % parts
        return {"b": i // (heads * parts), "h": i // parts % heads, "q": part, "y": part}

    # Blocks may extend beyond the arrays' ends; masks keep every access inside.
    blocked = {"q": queries * width, "y": queries * value_size, "w": full * variant.slots + tail}
    spec = functools.partial(blocks, sizes=blocked | {"k": key_columns, "v": value_columns}, at=at)
    ring_specs = [spec("bwhk"), spec("bwhv")]
    in_specs = [*map(spec, "bbb"), *map(whole, integers_and_tables[3:])]
    in_specs += [*map(spec, ("bhq", "bhk", "bhv")), *ring_specs]
    flat = jax.ShapeDtypeStruct((batch, heads, shared * value_size), v.dtype)
    options |= {"in_specs": in_specs, "out_specs": [spec("bhy"), *ring_specs]}
    operands = *integers_and_tables, q.reshape(batch, heads, -1), k, v, k_ring, v_ring
    body = functools.partial(_body, **sizes, scale=scale)
    y, *rings = launch(body, *operands, out_shape=[flat, *rings], name="window_step", **options)
    return y.reshape(batch, heads, shared, value_size), *rings


def _body(
    length, start, origin, partner, frequency, q, k, v, k_ring, v_ring, y, new_k_ring, new_v_ring,
    *, slots, parts, queries, width, value_size, tile, full, tail, scale,
) -> None:  # fmt: skip
    """Attend with some queries of one row and head to its ring buffer and the new token."""
    every, f32 = slice(None), jnp.float32
    newest, oldest = length[...], jnp.maximum(start[...], 0)
    key_columns, value_columns = k.shape[0], v.shape[0]
    in_key = None if key_columns == width else jnp.arange(key_columns) < width
    in_value = None if value_columns == value_size else jnp.arange(value_columns) < value_size
    channels, partners = jnp.arange(key_columns), partner[...]
    angle = (newest - origin[...]).astype(f32) * frequency[...]
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def rotated(ref: Any, begin: int = 0) -> jax.Array:
        one, two = (load(ref, begin + channel, in_key).astype(f32) for channel in (channels, partners))
        return one * cos + two * sin

    key, value = rotated(k), load(v, every, in_value)
    slot = newest % slots
    is_first = pl.program_id(0) % parts == 0
    store(new_k_ring, (slot, every), key, both(in_key, is_first))
    store(new_v_ring, (slot, every), value, both(in_value, is_first))
    # Round as later steps will read them.
    key = key.astype(k_ring.dtype).astype(f32)
    value = value.astype(v_ring.dtype).astype(f32)
    rotated_queries = [rotated(q, r * width) * scale for r in range(queries)]

    def attend(begin: Any, count: int, sums: tuple) -> tuple:
        """Return the sums (largest score, sum of weights, weighted values) after `count` more slots."""
        at = begin + jnp.arange(count)
        age = jnp.where(at <= slot, slot - at, slot - at + slots)
        # Empty slots would have negative indices; the new token's slot is already included.
        visible = (at < slots) & (at != slot) & (newest - age >= oldest)
        rows = pl.ds(begin, count)
        keys, values = (
            load(ring, (rows, every), both(None if columns is None else columns[None, :], visible[:, None]))
            for ring, columns in ((k_ring, in_key), (v_ring, in_value))
        )
        keys, values = keys.astype(f32), values.astype(f32)
        after = []
        for query, (largest, total, summed) in zip(rotated_queries, sums, strict=True):
            scores = jnp.sum(keys * query[None, :], axis=1)
            larger = jnp.maximum(largest, jnp.max(jnp.where(visible, scores, -jnp.inf)))
            weights = jnp.where(visible, jnp.exp(scores - larger), 0.0)
            shrink = jnp.exp(largest - larger)
            summed = shrink * summed + jnp.sum(weights[:, None] * values, axis=0)
            after.append((larger, shrink * total + jnp.sum(weights), summed))
        return tuple(after)

    sums = tuple((jnp.sum(key * query), f32(1), value) for query in rotated_queries)
    if full:
        sums = lax.fori_loop(0, full, lambda i, sums: attend(i * tile, tile, sums), sums)
    if tail:
        sums = attend(full * tile, tail, sums)
    for r, (_, total, summed) in enumerate(sums):
        store(y, r * value_size + jnp.arange(value_columns), summed / total, in_value)
