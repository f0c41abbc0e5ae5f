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
def load_table(pointer, plan: tl.constexpr):
    """(K, F) per tile of a (K, size) table. Before the loop: in it each use costs a copy and a barrier."""
    parts = ()
    TILES: tl.constexpr = plan.layout.pure + 1
    for i in tl.static_range(TILES):
        feature = plan.layout.tiles[i][0] + tl.arange(0, plan.layout.tiles[i][1])
        channel = tl.arange(0, plan.layout.padded_key_size)
        parts = parts + (tl.load(pointer + channel[:, None] * plan.layout.size + feature[None, :]),)
    return parts


@triton.jit
def features(x, ones, twos, offsets, i: tl.constexpr, plan: tl.constexpr):
    """(C, F) phi(x) of tile i, float32."""
    one, two = dot(x, ones[i], None, plan), dot(x, twos[i], None, plan)
    if i == plan.layout.pure:
        one += offsets[0][None, :]
        two += offsets[1][None, :]
    return one * two


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
    """Addresses of the (K, last) moments, and of the row with the count behind them."""
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
def enter(
    state, x, u, start, index, starts, limit, ones, twos, offsets,
    plan: tl.constexpr,
):  # fmt: skip
    """The state behind a chunk of keys x (C, K) and values u (C, V): see `blocks.Chunk.entering`."""
    tiles, moments, count = state
    end = start + plan.chunk
    first = start
    if plan.packed:
        first = tl.load(starts + tl.minimum(end, plan.length) - 1)
        stays = first < start
        x = tl.where((index >= first)[:, None], x, 0.0).to(x.dtype)
        u = tl.where((index >= first)[:, None], u, 0.0).to(u.dtype)
        moments, count = tl.where(stays, moments, 0.0), tl.where(stays, count, 0.0)
        first = tl.maximum(first, start)
    PURE: tl.constexpr = plan.layout.pure
    added = ()
    for i in tl.static_range(PURE):
        into = tl.where(stays, tiles[i], 0.0) if plan.packed else tiles[i]
        if plan.layout.tile < 64:
            phi = features(x, ones, twos, offsets, i, plan).to(x.dtype)
            added = added + (dot(tl.trans(u), phi, into, plan),)
        else:
            phi = dot(tl.trans(ones[i]), tl.trans(x), None, plan)
            phi *= dot(tl.trans(twos[i]), tl.trans(x), None, plan)
            added = added + (dot(phi.to(x.dtype), u, into, plan),)
    phi = features(x, ones, twos, offsets, PURE, plan).to(x.dtype)
    into = tl.where(stays, tiles[PURE], 0.0) if plan.packed else tiles[PURE]
    added = added + (dot(tl.trans(u), phi, into, plan),)
    entered = tl.maximum(tl.minimum(limit, end) - first, 0)
    return added, dot(tl.trans(x), phi, moments, plan), count + entered.to(tl.float32)
