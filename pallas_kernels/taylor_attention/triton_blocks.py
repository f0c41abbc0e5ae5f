"""The functions of `blocks` as `triton.jit` functions; imported only if `triton` is installed.

`plan` is the `blocks.Plan` of a call, a compile-time constant. For letters, names and reasons see `blocks`. A
state is the tuple (tiles, moments, count). `tables` of features are R, T and the vectors of `load_vectors`.
"""

# ruff: noqa: RUF005  (the compiler knows sums of tuples, not unpacking into them)

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Program(NamedTuple):
    """Indices of a running program, and the packing of its row."""

    row: Any
    head: Any
    tile: Any
    block: Any
    starts: Any
    limit: Any


class Chunk(NamedTuple):
    """C tokens from `start` on; masks of tokens inside the arrays (stored) and also not padding (real)."""

    start: Any
    index: Any
    stored: Any
    real: Any


@triton.jit
def running(starts, counts, plan: tl.constexpr):
    """Return the running `Program`."""
    x = tl.program_id(0)
    tile, head = x % plan.value_tiles, x // plan.value_tiles % plan.heads
    row = (x // (plan.value_tiles * plan.heads)).to(tl.int64)
    block = tl.program_id(1)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    return Program(row, head, tile, block, starts, limit)


@triton.jit
def chunk_at(start, program, plan: tl.constexpr):
    """Return the `Chunk` from token `start` on."""
    index = start + tl.arange(0, plan.chunk)
    stored = index < plan.length if plan.ragged else tl.full((plan.chunk,), True, tl.int1)
    real = index < program.limit if plan.packed else stored
    return Chunk(start, index, stored, real)


@triton.jit
def operand(x, plan: tl.constexpr):
    """Cast `x` to the dtype of matmul operands."""
    return x.to(tl.bfloat16 if plan.operand.itemsize == 2 else tl.float32)


@triton.jit
def dot(a, b, into, plan: tl.constexpr):
    """Return a b, accumulated in float32 onto `into`, if any."""
    # For float32 operands. "ieee" would not use tensor cores, in code that spills all registers.
    precision: tl.constexpr = "tf32x3" if plan.precision == "highest" else "tf32"
    return tl.dot(operand(a, plan), operand(b, plan), into, input_precision=precision)


@triton.jit
def addresses(
    pointer, row, program, tile, chunk, valid, SIZE: tl.constexpr, PADDED: tl.constexpr, plan: tl.constexpr
):
    """Return (C, PADDED) addresses of a chunk in (rows, N, H, SIZE), and which are valid and inside."""
    # Only offsets within a chunk are guaranteed to fit into 32 bits.
    pointer += ((row * plan.length + chunk.start) * plan.heads + program.head) * SIZE
    column = tile * PADDED + tl.arange(0, PADDED)[None, :]
    inside = valid[:, None]
    if SIZE % PADDED != 0:
        inside = inside & (column < SIZE)
    return pointer + tl.arange(0, plan.chunk)[:, None] * (plan.heads * SIZE) + column, inside


@triton.jit
def key_addresses(pointer, row, program, chunk, valid, plan: tl.constexpr):
    """Return `addresses` in (rows, N, H, K)."""
    K: tl.constexpr = plan.layout.key_size
    return addresses(pointer, row, program, 0, chunk, valid, K, plan.layout.padded_key_size, plan)


@triton.jit
def share_addresses(pointer, program, chunk, plan: tl.constexpr):
    """Return `addresses` in (tiles, B, N, H, K): the program's value tile's share of a gradient."""
    return key_addresses(pointer, program.tile * plan.batch + program.row, program, chunk, chunk.stored, plan)


@triton.jit
def value_addresses(pointer, program, chunk, valid, plan: tl.constexpr):
    """Return `addresses` in the program's tile of (B, N, H, V)."""
    V: tl.constexpr = plan.value_size
    return addresses(pointer, program.row, program, program.tile, chunk, valid, V, plan.value_tile, plan)


@triton.jit
def load_keys(pointer, program, chunk, plan: tl.constexpr):
    """Return (C, K) operands, zeros in padding and beyond the real channels."""
    at, inside = key_addresses(pointer, program.row, program, chunk, chunk.real, plan)
    return operand(tl.load(at, inside, 0.0), plan)


@triton.jit
def load_values(pointer, program, chunk, plan: tl.constexpr):
    """Return (C, V) of the program's value tile, as `load_keys`."""
    at, inside = value_addresses(pointer, program, chunk, chunk.real, plan)
    return operand(tl.load(at, inside, 0.0), plan)


@triton.jit
def load_queries(pointer, program, chunk, plan: tl.constexpr):
    """Return (C, K) as `load_keys`, times the first of the plan's `scales`."""
    keys = load_keys(pointer, program, chunk, plan)
    if plan.scales[0] == 1:
        return keys
    else:
        return operand(keys.to(tl.float32) * plan.scales[0], plan)


@triton.jit
def load_gradients(do, rden, program, chunk, plan: tl.constexpr):
    """Return (C, V) dn = do / (normaliser + eps): the gradient of the numerators, as operands."""
    gradients = load_values(do, program, chunk, plan).to(tl.float32)
    return operand(gradients * load_numbers(rden, program, chunk, plan)[:, None], plan)


@triton.jit
def load_numbers(pointer, program, chunk, plan: tl.constexpr):
    """Return (C,) of (B, H, N), 0 in padding."""
    pointer += (program.row * plan.heads + program.head) * plan.length
    return tl.load(pointer + chunk.index, chunk.real, 0.0)


@triton.jit
def load_tables(pointers, plan: tl.constexpr):
    """Load (K, F) per tile of each (K, size) table; return the pointers unless tables are hoisted (`Plan`).

    Call it before the loop: inside, each use costs a copy and a barrier.
    """
    if plan.hoist:
        TILES: tl.constexpr = plan.layout.pure + 1
        COUNT: tl.constexpr = len(pointers)
        tables = ()
        for number in tl.static_range(COUNT):
            parts = ()
            for i in tl.static_range(TILES):
                parts = parts + (_load_table(pointers[number], i, plan),)
            tables = tables + (parts,)
        return tables
    else:
        return pointers


@triton.jit
def _load_table(pointer, i: tl.constexpr, plan: tl.constexpr):
    feature = plan.layout.tiles[i][0] + tl.arange(0, plan.layout.tiles[i][1])
    channel = tl.arange(0, plan.layout.padded_key_size)
    return tl.load(pointer + channel[:, None] * plan.layout.size + feature[None, :])


@triton.jit
def at_round(tables, offset, c, plan: tl.constexpr):
    """Return the tables for iteration c of a loop: see `blocks.Features.at`; `offset` points to a zero."""
    if plan.hoist:
        return tables
    else:
        return tl.tuple([pointer + tl.load(offset).to(tl.int32) * c for pointer in tables])


@triton.jit
def table(tables, i: tl.constexpr, plan: tl.constexpr):
    """Return (K, F) of tile i."""
    if plan.hoist:
        return tables[i]
    else:
        return _load_table(tables, i, plan)


@triton.jit
def load_vectors(one_offset, two_offset, linear, half_linear, plan: tl.constexpr):
    """Return (last,) each: r, t and which features of the last tile are linear, see `layout.Tables`."""
    last = tl.arange(0, plan.layout.last)
    offsets = tl.load(one_offset + last), tl.load(two_offset + last)
    return offsets + (tl.load(linear + last), tl.load(half_linear + last))


@triton.jit
def scaled(phi, vectors, i: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr):
    """Return (C, F) features or their gradients times SCALE to the order of each."""
    if SCALE == 1:
        return phi
    elif i < plan.layout.pure:
        return phi * (SCALE * SCALE)
    else:
        first_order = tl.where(vectors[3] == 0.5, SCALE, 1.0)
        return phi * tl.where(vectors[2] == 0, SCALE * SCALE, first_order)[None, :]


@triton.jit
def factors(x, tables, i: tl.constexpr, plan: tl.constexpr):
    """Return (C, F) x R + r and x T + t of tile i, float32."""
    one, two = dot(x, table(tables[0], i, plan), None, plan), dot(x, table(tables[1], i, plan), None, plan)
    if i == plan.layout.pure:
        one += tables[2][0][None, :]
        two += tables[2][1][None, :]
    return one, two


@triton.jit
def features(x, tables, i: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr):
    """Return (C, F) phi(x) of tile i, float32."""
    one, two = factors(x, tables, i, plan)
    return scaled(one * two, tables[2], i, SCALE, plan)


@triton.jit
def read_tile(state, i: tl.constexpr, phi, into, plan: tl.constexpr):
    """Return (C, V) phi(x) S of tile i, added onto `into`."""
    if i == plan.layout.pure or plan.layout.tile < 64:
        return dot(phi, tl.trans(state[0][i]), into, plan)
    else:
        return dot(phi, state[0][i], into, plan)


@triton.jit
def tile_gradient(state, i: tl.constexpr, u, plan: tl.constexpr):
    """Return (C, F) u S^T of tile i."""
    if i == plan.layout.pure or plan.layout.tile < 64:
        return dot(u, state[0][i], None, plan)
    else:
        return dot(u, tl.trans(state[0][i]), None, plan)


@triton.jit
def gradient_through_state(state, x, u, weight, tables, SCALE: tl.constexpr, plan: tl.constexpr):
    """Return (C, K) gradient of x through the products u . (phi(x) S) and `weight` times the normaliser's."""
    PURE: tl.constexpr = plan.layout.pure
    one, two = factors(x, tables, PURE, plan)
    phi = operand(scaled(one * two, tables[2], PURE, SCALE, plan), plan)
    dx = dot(phi, tl.trans(operand(state[1] * tables[2][2][None, :], plan)), None, plan)
    dx *= SCALE
    dx *= weight
    for i in tl.static_range(PURE, -1, -1):
        if i != PURE:
            one, two = factors(x, tables, i, plan)
        dphi = scaled(tile_gradient(state, i, u, plan), tables[2], i, SCALE, plan)
        dx = dot(operand(dphi * two, plan), tl.trans(table(tables[0], i, plan)), dx, plan)
        dx = dot(operand(dphi * one, plan), tl.trans(table(tables[1], i, plan)), dx, plan)
    return dx


@triton.jit
def scaled_scores(a, b, plan: tl.constexpr):
    """Return (C, C) products of queries and keys, or of keys and queries, over sqrt(K)."""
    return dot(a, tl.trans(b), None, plan) * plan.scales[1]


@triton.jit
def slope(scores, plan: tl.constexpr):
    """Return (C, C) derivative of 1 + s + s^2 / 2 by the products that `scaled_scores` scales."""
    return (1 + scores) * plan.scales[1]


@triton.jit
def empty_state(plan: tl.constexpr):
    """Return an empty state. Tiles of less than 64 features, and the last one, are transposed, (V, F)."""
    PURE: tl.constexpr = plan.layout.pure
    F: tl.constexpr = plan.layout.tile
    tiles = ()
    for _ in tl.static_range(PURE):
        if F < 64:
            tiles = tiles + (tl.full((plan.value_tile, F), 0.0, tl.float32),)
        else:
            tiles = tiles + (tl.full((F, plan.value_tile), 0.0, tl.float32),)
    tiles = tiles + (tl.full((plan.value_tile, plan.layout.last), 0.0, tl.float32),)
    moments = tl.full((plan.layout.padded_key_size, plan.layout.last), 0.0, tl.float32)
    return tiles, moments, tl.full((), 0.0, tl.float32)


@triton.jit
def state_addresses(kv, number, tile, i: tl.constexpr, plan: tl.constexpr):
    """Return addresses of tile i of state `number`, in the order of the state's axes, and which are valid."""
    FIRST: tl.constexpr = plan.layout.tiles[i][0]
    F: tl.constexpr = plan.layout.tiles[i][1]
    feature, column = FIRST + tl.arange(0, F), tile * plan.value_tile + tl.arange(0, plan.value_tile)
    kv += number * (plan.layout.size * plan.value_size)
    if i == plan.layout.pure or F < 64:
        return kv + column[:, None] + feature[None, :] * plan.value_size, (column < plan.value_size)[:, None]
    else:
        return kv + feature[:, None] * plan.value_size + column[None, :], (column < plan.value_size)[None, :]


@triton.jit
def moments_addresses(moments, number, plan: tl.constexpr):
    """Return addresses of the (K, last) moments, and of the row with the count after them."""
    K: tl.constexpr = plan.layout.padded_key_size
    LAST: tl.constexpr = plan.layout.last
    moments += number * ((K + 1) * LAST)
    column = tl.arange(0, LAST)
    return moments + tl.arange(0, K)[:, None] * LAST + column[None, :], moments + K * LAST + column


@triton.jit
def state_before(kv, moments, program, given: tl.constexpr, plan: tl.constexpr):
    """Return the state of the program's block if states are `given`, else an empty one."""
    if given:
        number = (program.row * plan.heads + program.head) * plan.blocks + program.block
        TILES: tl.constexpr = plan.layout.pure + 1
        tiles = ()
        for i in tl.static_range(TILES):
            at, inside = state_addresses(kv, number, program.tile, i, plan)
            tiles = tiles + (tl.load(at, inside, 0.0),)
        at, counts = moments_addresses(moments, number, plan)
        return tiles, tl.load(at), tl.max(tl.load(counts), 0)
    else:
        return empty_state(plan)


@triton.jit
def store_state(state, kv, moments, number, tile, plan: tl.constexpr):
    """Store into state `number` of (..., size, V) and (..., K + 1, last)."""
    TILES: tl.constexpr = plan.layout.pure + 1
    for i in tl.static_range(TILES):
        at, inside = state_addresses(kv, number, tile, i, plan)
        tl.store(at, state[0][i], inside)
    at, counts = moments_addresses(moments, number, plan)
    tl.store(at, state[1])
    tl.store(counts, tl.full((plan.layout.last,), 0.0, tl.float32) + state[2])


@triton.jit
def add_tokens(state, stays, x, u, weight, count, tables, SCALE: tl.constexpr, plan: tl.constexpr):
    """Add phi(x) u^T and the moments of x, weighted by `weight` (C,) or unweighted (None), to the state.

    If the call is packed and `stays` is False, add to an empty state instead.
    """
    tiles, moments, total = state
    if plan.packed:
        moments, total = tl.where(stays, moments, 0.0), tl.where(stays, total, 0.0)
    PURE: tl.constexpr = plan.layout.pure
    added = ()
    for i in tl.static_range(PURE):
        into = tl.where(stays, tiles[i], 0.0) if plan.packed else tiles[i]
        if plan.layout.tile < 64:
            phi = operand(features(x, tables, i, SCALE, plan), plan)
            added = added + (dot(tl.trans(u), phi, into, plan),)
        else:
            phi = dot(tl.trans(table(tables[0], i, plan)), tl.trans(x), None, plan)
            phi *= dot(tl.trans(table(tables[1], i, plan)), tl.trans(x), None, plan)
            phi = scaled(phi, tables[2], i, SCALE, plan)
            added = added + (dot(phi, u, into, plan),)
    phi = operand(features(x, tables, PURE, SCALE, plan), plan)
    into = tl.where(stays, tiles[PURE], 0.0) if plan.packed else tiles[PURE]
    added = added + (dot(tl.trans(u), phi, into, plan),)
    if weight is not None:
        weight *= SCALE
        x = operand(x.to(tl.float32) * weight[:, None], plan)
    return added, dot(tl.trans(x), phi, moments, plan), total + count


@triton.jit
def enter(state, x, u, program, chunk, tables, plan: tl.constexpr):
    """Return the state after a chunk of keys x (C, K) and values u (C, V): see `blocks.Chunk.entering`."""
    start, end = chunk.start, chunk.start + plan.chunk
    first, stays = start, True
    if plan.packed:
        first = tl.load(program.starts + tl.minimum(end, plan.length) - 1)
        stays = first < start
        x = tl.where((chunk.index >= first)[:, None], x, 0.0).to(x.dtype)
        u = tl.where((chunk.index >= first)[:, None], u, 0.0).to(u.dtype)
        first = tl.maximum(first, start)
    count = tl.maximum(tl.minimum(program.limit, end) - first, 0).to(tl.float32)
    return add_tokens(state, stays, x, u, None, count, tables, 1.0, plan)


@triton.jit
def leave(state, x, dn, dd, program, chunk, tables, plan: tl.constexpr):
    """Return the sums over the queries from a chunk on, its x (C, K) with dn (C, V) and dd (C,) included."""
    # See `blocks.Chunk.leaving`.
    stays = True
    if plan.packed:
        sees = tl.load(program.starts + chunk.index, chunk.stored, 0) < chunk.start
        dn, dd = tl.where(sees[:, None], dn, 0.0).to(dn.dtype), tl.where(sees, dd, 0.0)
        stays = start_after(program, chunk, plan) < chunk.start
    return add_tokens(state, stays, x, dn, dd, tl.sum(dd, 0), tables, plan.scales[1], plan)


@triton.jit
def start_after(program, chunk, plan: tl.constexpr):
    """Return the start of the segment of the first token after a chunk (at the end: of the last token)."""
    return tl.load(program.starts + tl.minimum(chunk.start + plan.chunk, plan.length - 1))
