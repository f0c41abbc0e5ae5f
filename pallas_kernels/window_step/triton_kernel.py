"""`kernel._body` in Triton's own language; imported only if the `triton` package is installed."""

# ruff: noqa: RUF005  (the compiler knows sums of tuples, not unpacking into them)
# To pyright, tuples that `static_range` fills are empty.
# pyright: reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def window_step(
    length, start, origin, partner, frequency, q, k, v, k_ring, v_ring, y, new_k_ring, new_v_ring,
    HEADS: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr, SLOTS: tl.constexpr,
    TILE: tl.constexpr, FULL: tl.constexpr, TAIL: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, VALUE_SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """Attend with some queries of one row and head to its ring buffer and the new token.

    WIDTH is K and CHANNELS the next power of two, VALUE_SIZE is V and COLUMNS the next one. A key head has
    PARTS programs of QUERIES queries; its ring is FULL tiles of TILE slots and one of TAIL, which may be 0.
    """
    if new_k_ring is None:  # k_ring and v_ring are written in place
        new_k_ring, new_v_ring = k_ring, v_ring
    program = tl.program_id(0)
    part = program % PARTS
    head = program // PARTS % HEADS
    row = (program // (PARTS * HEADS)).to(tl.int64)
    number = row * HEADS + head
    q += (number * PARTS + part) * (QUERIES * WIDTH)
    y += (number * PARTS + part) * (QUERIES * VALUE_SIZE)
    k += number * WIDTH
    v += number * VALUE_SIZE
    first = row * SLOTS * HEADS + head  # of the row's slots; the next one is HEADS further on
    k_ring += first * WIDTH
    v_ring += first * VALUE_SIZE

    channel, column = tl.arange(0, CHANNELS), tl.arange(0, COLUMNS)
    in_key, in_value = channel < WIDTH, column < VALUE_SIZE
    newest, oldest = tl.load(length + row), tl.maximum(tl.load(start + row), 0)
    pair = tl.load(partner + channel)
    angle = (newest - tl.load(origin + row)).to(tl.float32) * tl.load(frequency + channel)
    cos, sin = tl.cos(angle), tl.sin(angle)

    key = _rotated(k, channel, pair, in_key, cos, sin).to(k_ring.dtype.element_ty)
    value = tl.load(v + column, in_value, 0.0).to(v_ring.dtype.element_ty)
    slot = newest % SLOTS
    at = first + slot * HEADS
    tl.store(new_k_ring + at * WIDTH + channel, key, in_key & (part == 0))
    tl.store(new_v_ring + at * VALUE_SIZE + column, value, in_value & (part == 0))
    # Round as later steps will read them.
    key, value = key.to(tl.float32), value.to(tl.float32)

    queries, largest, total, summed = (), (), (), ()
    for r in tl.static_range(QUERIES):
        query = _rotated(q + r * WIDTH, channel, pair, in_key, cos, sin) * SCALE
        queries = queries + (query,)
        largest = largest + (tl.sum(key * query, 0),)
        total = total + (tl.full((), 1.0, tl.float32),)
        summed = summed + (value,)
    sums, now = (largest, total, summed), (slot, newest, oldest)
    rings = (k_ring, v_ring, channel, column, in_key, in_value)
    for i in range(FULL):
        slots = i * TILE + tl.arange(0, TILE)
        sums = _attend(sums, queries, slots, now, rings, HEADS, QUERIES, SLOTS, WIDTH, VALUE_SIZE)
    if TAIL > 0:
        slots = FULL * TILE + tl.arange(0, TAIL)
        sums = _attend(sums, queries, slots, now, rings, HEADS, QUERIES, SLOTS, WIDTH, VALUE_SIZE)
    for r in tl.static_range(QUERIES):
        tl.store(y + r * VALUE_SIZE + column, sums[2][r] / sums[1][r], in_value)


@triton.jit
def _rotated(pointer, channel, pair, inside, cos, sin):
    """Return a key or query in float32, rotated by its position; `pair` is each channel's partner."""
    one = tl.load(pointer + channel, inside, 0.0).to(tl.float32)
    two = tl.load(pointer + pair, inside, 0.0).to(tl.float32)
    return one * cos + two * sin


@triton.jit
def _attend(
    sums, queries, slots, now, rings,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_SIZE: tl.constexpr,
):  # fmt: skip
    """Return the sums (largest score, sum of weights, weighted values), per query, after some more slots."""
    slot, newest, oldest = now
    k_ring, v_ring, channel, column, in_key, in_value = rings
    age = tl.where(slots <= slot, slot - slots, slot - slots + SLOTS)
    # Empty slots would have negative indices; the new token's slot is already included.
    visible = (slots < SLOTS) & (slots != slot) & (newest - age >= oldest)
    at = slots[:, None] * HEADS
    keys = tl.load(k_ring + at * WIDTH + channel[None, :], visible[:, None] & in_key[None, :], 0.0)
    values = tl.load(v_ring + at * VALUE_SIZE + column[None, :], visible[:, None] & in_value[None, :], 0.0)
    keys, values = keys.to(tl.float32), values.to(tl.float32)
    largest, total, summed = (), (), ()
    for r in tl.static_range(QUERIES):
        scores = tl.sum(keys * queries[r][None, :], 1)
        larger = tl.maximum(sums[0][r], tl.max(tl.where(visible, scores, float("-inf")), 0))
        weights = tl.where(visible, tl.exp(scores - larger), 0.0)
        shrink = tl.exp(sums[0][r] - larger)
        largest = largest + (larger,)
        total = total + (shrink * sums[1][r] + tl.sum(weights, 0),)
        summed = summed + (shrink * sums[2][r] + tl.sum(weights[:, None] * values, 0),)
    return largest, total, summed
