"""`blocks` once more as `triton.jit` functions; imported only where the `triton` package is.

`plan` is the `blocks.Plan` of a call, a constant to the compiler. Letters, names and reasons are those of
`blocks`. A state is the tuple (tiles, moments, count).
"""

# ruff: noqa: RUF005  (the compiler knows sums of tuples, not unpacking into them)

import triton
import triton.language as tl


@triton.jit
def program(plan: tl.constexpr):
    """Row, head, value tile and block of the running program."""
    x = tl.program_id(0)
    tile, head = x % plan.value_tiles, x // plan.value_tiles % plan.heads
    row = (x // (plan.value_tiles * plan.heads)).to(tl.int64)
    return row, head, tile, tl.program_id(1)


@triton.jit
def dot(a, b, into, plan: tl.constexpr):
    """a b, accumulated in float32 onto `into` (None: nothing)."""
    # Of float32 operands. "ieee" would do without tensor cores, in code that spills all registers.
    precision: tl.constexpr = "tf32x3" if plan.precision == "highest" else "tf32"
    return tl.dot(a, b, into, input_precision=precision)


@triton.jit
def existing(index, plan: tl.constexpr):
    """(C,) which tokens are not beyond the end of the arrays."""
    if plan.ragged:
        return index < plan.length
    else:
        return tl.full((plan.chunk,), True, tl.int1)


@triton.jit
def place(
    pointer, start, valid, row, head, tile,
    SIZE: tl.constexpr, PADDED: tl.constexpr, plan: tl.constexpr,
):  # fmt: skip
    """(C, PADDED) addresses of a chunk in (B, N, H, SIZE), and which of them are valid and inside."""
    # Only the offsets within a chunk are sure to fit 32 bits.
    pointer += ((row * plan.length + start) * plan.heads + head) * SIZE
    column = tile * PADDED + tl.arange(0, PADDED)[None, :]
    inside = valid[:, None]
    if SIZE % PADDED != 0:
        inside = inside & (column < SIZE)
    return pointer + tl.arange(0, plan.chunk)[:, None] * (plan.heads * SIZE) + column, inside


@triton.jit
def load_keys(pointer, start, real, row, head, plan: tl.constexpr):
    """(C, K) in the arrays' dtype, zeros in padding and beyond the real channels."""
    at, inside = place(
        pointer, start, real, row, head, 0, plan.layout.key_size, plan.layout.padded_key_size, plan
    )
    return tl.load(at, inside, 0.0)


@triton.jit
def load_values(pointer, start, real, row, head, tile, plan: tl.constexpr):
    """(C, V) of a value tile, as `load_keys`."""
    at, inside = place(pointer, start, real, row, head, tile, plan.value_size, plan.value_tile, plan)
    return tl.load(at, inside, 0.0)


@triton.jit
def load_queries(pointer, start, real, row, head, dtype: tl.constexpr, plan: tl.constexpr):
    """(C, K) as `load_keys`, as operands, times the first of the plan's `scales`."""
    keys = load_keys(pointer, start, real, row, head, plan)
    if plan.scales[0] == 1:
        return keys.to(dtype)
    else:
        return (keys.to(tl.float32) * plan.scales[0]).to(dtype)


@triton.jit
def load_gradients(do, rden, start, index, real, row, head, tile, dtype: tl.constexpr, plan: tl.constexpr):
    """(C, V) dn = do / (normaliser + eps): the gradient of the numerators, as operands."""
    gradients = load_values(do, start, real, row, head, tile, plan).to(tl.float32)
    return (gradients * load_numbers(rden, index, real, row, head, plan)[:, None]).to(dtype)


@triton.jit
def load_numbers(pointer, index, real, row, head, plan: tl.constexpr):
    """(C,) of (B, H, N), 0 in padding."""
    return tl.load(pointer + (row * plan.heads + head) * plan.length + index, real, 0.0)


@triton.jit
def load_tables(pointer, plan: tl.constexpr):
    """(K, F) per tile of a (K, size) table; the pointer itself where the tables do not stay (`Plan.hoist`).

    Before the loop: in it each use costs a copy and a barrier.
    """
    if plan.hoist:
        parts = ()
        TILES: tl.constexpr = plan.layout.pure + 1
        for i in tl.static_range(TILES):
            parts = parts + (_load_table(pointer, i, plan),)
        return parts
    else:
        return pointer


@triton.jit
def _load_table(pointer, i: tl.constexpr, plan: tl.constexpr):
    feature = plan.layout.tiles[i][0] + tl.arange(0, plan.layout.tiles[i][1])
    channel = tl.arange(0, plan.layout.padded_key_size)
    return tl.load(pointer + channel[:, None] * plan.layout.size + feature[None, :])


@triton.jit
def at_round(tables, offset, c, plan: tl.constexpr):
    """The tables for use in round c of a loop: see `blocks.Features.at`; `offset` points to a zero."""
    if plan.hoist:
        return tables
    else:
        return tables + tl.load(offset).to(tl.int32) * c


@triton.jit
def table(tables, i: tl.constexpr, plan: tl.constexpr):
    """(K, F) of tile i."""
    if plan.hoist:
        return tables[i]
    else:
        return _load_table(tables, i, plan)


@triton.jit
def load_vectors(one_offset, two_offset, linear, half_linear, plan: tl.constexpr):
    """(last,) each: r, t and which features of the last tile are linear, see `layout.Tables`."""
    last = tl.arange(0, plan.layout.last)
    offsets = tl.load(one_offset + last), tl.load(two_offset + last)
    return offsets + (tl.load(linear + last), tl.load(half_linear + last))


@triton.jit
def scaled(phi, vectors, i: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr):
    """(C, F) features or their gradients times SCALE to the order of each."""
    if SCALE == 1:
        return phi
    elif i < plan.layout.pure:
        return phi * (SCALE * SCALE)
    else:
        first_order = tl.where(vectors[3] == 0.5, SCALE, 1.0)
        return phi * tl.where(vectors[2] == 0, SCALE * SCALE, first_order)[None, :]


@triton.jit
def factors(x, ones, twos, vectors, i: tl.constexpr, plan: tl.constexpr):
    """(C, F) x R + r and x T + t of tile i, float32."""
    one, two = dot(x, table(ones, i, plan), None, plan), dot(x, table(twos, i, plan), None, plan)
    if i == plan.layout.pure:
        one += vectors[0][None, :]
        two += vectors[1][None, :]
    return one, two


@triton.jit
def features(x, ones, twos, vectors, i: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr):
    """(C, F) phi(x) of tile i, float32."""
    one, two = factors(x, ones, twos, vectors, i, plan)
    return scaled(one * two, vectors, i, SCALE, plan)


@triton.jit
def features_gradient(
    one, two, ones, twos, vectors, i: tl.constexpr, dphi, into,
    dtype: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr,
):  # fmt: skip
    """(C, K) gradient of x from dphi (C, F) of tile i with these `factors`, added onto `into`."""
    dphi = scaled(dphi, vectors, i, SCALE, plan)
    into = dot((dphi * two).to(dtype), tl.trans(table(ones, i, plan)), into, plan)
    return dot((dphi * one).to(dtype), tl.trans(table(twos, i, plan)), into, plan)


@triton.jit
def gradient_through_state(
    state, x, u, weight, ones, twos, vectors,
    dtype: tl.constexpr, SCALE: tl.constexpr, plan: tl.constexpr,
):  # fmt: skip
    """(C, K) gradient of x through the products u . (phi(x) S) and `weight` times the normaliser's."""
    PURE: tl.constexpr = plan.layout.pure
    one, two = factors(x, ones, twos, vectors, PURE, plan)
    phi = scaled(one * two, vectors, PURE, SCALE, plan).to(dtype)
    dx = dot(phi, tl.trans((state[1] * vectors[2][None, :]).to(dtype)), None, plan)
    if SCALE != 1:
        dx *= SCALE
    dx *= weight
    dphi = dot(u, state[0][PURE].to(dtype), None, plan)
    dx = features_gradient(one, two, ones, twos, vectors, PURE, dphi, dx, dtype, SCALE, plan)
    for i in tl.static_range(PURE - 1, -1, -1):
        one, two = factors(x, ones, twos, vectors, i, plan)
        part = state[0][i] if plan.layout.tile < 64 else tl.trans(state[0][i])
        dphi = dot(u, part.to(dtype), None, plan)
        dx = features_gradient(one, two, ones, twos, vectors, i, dphi, dx, dtype, SCALE, plan)
    return dx


@triton.jit
def scaled_scores(a, b, plan: tl.constexpr):
    """(C, C) products of queries and keys, or of keys and queries, over sqrt(K)."""
    scores = dot(a, tl.trans(b), None, plan)
    if plan.scales[1] == 1:
        return scores
    else:
        return scores * plan.scales[1]


@triton.jit
def slope(scores, plan: tl.constexpr):
    """(C, C) derivative of 1 + s + s^2 / 2 by the products that `scaled_scores` scales."""
    if plan.scales[1] == 1:
        return 1 + scores
    else:
        return (1 + scores) * plan.scales[1]


@triton.jit
def empty_state(plan: tl.constexpr):
    """No tokens yet. Tiles of less than 64 features are kept transposed, (V, F), and the last one always."""
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
def state_place(kv, moments, number, tile, i: tl.constexpr, plan: tl.constexpr):
    """Addresses of tile i, in the order of the state's axes, and which are inside; `number` counts states."""
    FIRST: tl.constexpr = plan.layout.tiles[i][0]
    F: tl.constexpr = plan.layout.tiles[i][1]
    feature, column = FIRST + tl.arange(0, F), tile * plan.value_tile + tl.arange(0, plan.value_tile)
    kv += number * (plan.layout.size * plan.value_size)
    if i == plan.layout.pure or F < 64:
        return kv + column[:, None] + feature[None, :] * plan.value_size, (column < plan.value_size)[:, None]
    else:
        return kv + feature[:, None] * plan.value_size + column[None, :], (column < plan.value_size)[None, :]


@triton.jit
def moments_place(moments, number, plan: tl.constexpr):
    """Addresses of the (K, last) moments, and of the row with the count after them."""
    K: tl.constexpr = plan.layout.padded_key_size
    LAST: tl.constexpr = plan.layout.last
    moments += number * ((K + 1) * LAST)
    column = tl.arange(0, LAST)
    return moments + tl.arange(0, K)[:, None] * LAST + column[None, :], moments + K * LAST + column


@triton.jit
def load_state(kv, moments, number, tile, plan: tl.constexpr):
    """State number `number` of (..., size, V) and (..., K + 1, last)."""
    TILES: tl.constexpr = plan.layout.pure + 1
    tiles = ()
    for i in tl.static_range(TILES):
        at, inside = state_place(kv, moments, number, tile, i, plan)
        tiles = tiles + (tl.load(at, inside, 0.0),)
    at, counts = moments_place(moments, number, plan)
    return tiles, tl.load(at), tl.max(tl.load(counts), 0)


@triton.jit
def store_state(state, kv, moments, number, tile, plan: tl.constexpr):
    """The way back."""
    TILES: tl.constexpr = plan.layout.pure + 1
    for i in tl.static_range(TILES):
        at, inside = state_place(kv, moments, number, tile, i, plan)
        tl.store(at, state[0][i], inside)
    at, counts = moments_place(moments, number, plan)
    tl.store(at, state[1])
    tl.store(counts, tl.full((plan.layout.last,), 0.0, tl.float32) + state[2])


@triton.jit
def add_tokens(
    state, stays, x, u, weight, count, ones, twos, vectors, SCALE: tl.constexpr, plan: tl.constexpr
):  # fmt: skip
    """Add phi(x) u^T and the moments of x, weighted by `weight` (C,) or unweighted (None), to the state.

    If the call is packed and not `stays`, to an empty state instead.
    """
    tiles, moments, total = state
    if plan.packed:
        moments, total = tl.where(stays, moments, 0.0), tl.where(stays, total, 0.0)
    PURE: tl.constexpr = plan.layout.pure
    added = ()
    for i in tl.static_range(PURE):
        into = tl.where(stays, tiles[i], 0.0) if plan.packed else tiles[i]
        if plan.layout.tile < 64:
            phi = features(x, ones, twos, vectors, i, SCALE, plan).to(x.dtype)
            added = added + (dot(tl.trans(u), phi, into, plan),)
        else:
            phi = dot(tl.trans(table(ones, i, plan)), tl.trans(x), None, plan)
            phi *= dot(tl.trans(table(twos, i, plan)), tl.trans(x), None, plan)
            phi = scaled(phi, vectors, i, SCALE, plan)
            added = added + (dot(phi.to(x.dtype), u, into, plan),)
    phi = features(x, ones, twos, vectors, PURE, SCALE, plan).to(x.dtype)
    into = tl.where(stays, tiles[PURE], 0.0) if plan.packed else tiles[PURE]
    added = added + (dot(tl.trans(u), phi, into, plan),)
    if weight is not None:
        if SCALE != 1:
            weight *= SCALE
        x = (x.to(tl.float32) * weight[:, None]).to(x.dtype)
    return added, dot(tl.trans(x), phi, moments, plan), total + count


@triton.jit
def enter(
    state, x, u, start, index, starts, limit, ones, twos, vectors,
    plan: tl.constexpr,
):  # fmt: skip
    """The state after a chunk of keys x (C, K) and values u (C, V): see `blocks.Chunk.entering`."""
    end = start + plan.chunk
    first, stays = start, True
    if plan.packed:
        first = tl.load(starts + tl.minimum(end, plan.length) - 1)
        stays = first < start
        x = tl.where((index >= first)[:, None], x, 0.0).to(x.dtype)
        u = tl.where((index >= first)[:, None], u, 0.0).to(u.dtype)
        first = tl.maximum(first, start)
    count = tl.maximum(tl.minimum(limit, end) - first, 0).to(tl.float32)
    return add_tokens(state, stays, x, u, None, count, ones, twos, vectors, 1.0, plan)


@triton.jit
def leave(
    state, x, dn, dd, start, index, stored, starts, ones, twos, vectors,
    plan: tl.constexpr,
):  # fmt: skip
    """The sums over the queries from a chunk on, its queries x (C, K) with their gradients dn (C, V) and
    dd (C,) included, for the keys before it: see `blocks.Chunk.leaving`."""
    stays = True
    if plan.packed:
        sees = tl.load(starts + index, stored, 0) < start
        dn, dd = tl.where(sees[:, None], dn, 0.0).to(dn.dtype), tl.where(sees, dd, 0.0)
        stays = tl.load(starts + tl.minimum(start + plan.chunk, plan.length - 1)) < start
    count = tl.sum(dd, 0)
    return add_tokens(state, stays, x, dn, dd, count, ones, twos, vectors, plan.scales[1], plan)
