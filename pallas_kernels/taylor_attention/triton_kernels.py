"""The forward kernels once more in Triton's own language; imported only where the `triton` package is.

Line by line `sums.key_sums`, `scan.scan_states` and `outputs.outputs`. Two differences: this compiler fuses
products and sums, XLA's does not; and it can transpose the tables, which come once. `starts`, `counts` and
the `prefix` point nowhere meaningful where the plan has none.
"""

# To pyright, tuples that `static_range` fills are empty.
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from pallas_kernels.taylor_attention.triton_blocks import (
    at_round,
    dot,
    empty_state,
    enter,
    existing,
    features,
    load_keys,
    load_queries,
    load_state,
    load_tables,
    load_values,
    load_vectors,
    place,
    program,
    scaled_scores,
    store_state,
)


@triton.jit
def taylor_key_sums(
    k, v, starts, counts, one, two, one_offset, two_offset, linear, half_linear,
    kv, moments,
    plan: tl.constexpr,
):  # fmt: skip
    """Sums over the keys of one block."""
    dtype: tl.constexpr = one.dtype.element_ty
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_twos = load_tables(one, plan), load_tables(two, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)

    state = empty_state(plan)
    for c in range(plan.block // plan.chunk):
        start = block * plan.block + c * plan.chunk
        index = start + tl.arange(0, plan.chunk)
        real = index < limit if plan.packed else existing(index, plan)
        ones, twos = at_round(all_ones, one_offset, c, plan), at_round(all_twos, one_offset, c, plan)
        keys = load_keys(k, start, real, row, head, plan).to(dtype)
        values = load_values(v, start, real, row, head, tile, plan).to(dtype)
        state = enter(state, keys, values, start, index, starts, limit, ones, twos, vectors, plan)
    number = (row * plan.heads + head) * (plan.blocks - 1) + block
    store_state(state, kv, moments, number, tile, plan)


@triton.jit
def taylor_outputs(
    q, k, v, starts, counts, prefix_kv, prefix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    y, rden, final_kv, final_moments,
    plan: tl.constexpr, eps: tl.constexpr, has_prefix: tl.constexpr, return_state: tl.constexpr,
):  # fmt: skip
    """Outputs and reciprocal normalisers of one block, from the state before it."""
    PURE: tl.constexpr = plan.layout.pure
    SCALE: tl.constexpr = plan.scales[1]
    dtype: tl.constexpr = one.dtype.element_ty
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_twos = load_tables(one, plan), load_tables(two, plan)
    all_weights = load_tables(weighted, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)

    number = row * plan.heads + head
    if has_prefix:
        state = load_state(prefix_kv, prefix_moments, number * plan.blocks + block, tile, plan)
    else:
        state = empty_state(plan)
    for c in range(plan.block // plan.chunk):
        start = block * plan.block + c * plan.chunk
        index = start + tl.arange(0, plan.chunk)
        stored = existing(index, plan)
        real = index < limit if plan.packed else stored
        ones, twos = at_round(all_ones, one_offset, c, plan), at_round(all_twos, one_offset, c, plan)
        weights = at_round(all_weights, one_offset, c, plan)
        x = load_queries(q, start, real, row, head, dtype, plan)
        numerator = None
        for i in tl.static_range(PURE):
            phi = features(x, ones, weights, vectors, i, SCALE, plan).to(dtype)
            part = tl.trans(state[0][i]) if plan.layout.tile < 64 else state[0][i]
            numerator = dot(phi, part.to(dtype), numerator, plan)
        phi = features(x, ones, weights, vectors, PURE, SCALE, plan)
        numerator = dot(phi.to(dtype), tl.trans(state[0][PURE]).to(dtype), numerator, plan)
        read = dot(x, (state[1] * vectors[3][None, :]).to(dtype), None, plan)
        if SCALE != 1:
            read *= SCALE
        normaliser = tl.sum(read * phi, 1) + state[2]
        visible = index[:, None] >= index[None, :]
        if plan.packed:
            began = tl.load(starts + index, stored, 0)
            numerator = tl.where((began < start)[:, None], numerator, 0.0)
            normaliser = tl.where(began < start, normaliser, 0.0)
            visible = visible & (index[None, :] >= began[:, None])
        # Loaded only now: registers are what this kernel has too few of.
        keys = load_keys(k, start, real, row, head, plan).to(dtype)
        values = load_values(v, start, real, row, head, tile, plan).to(dtype)
        scores = scaled_scores(x, keys, plan)
        p = tl.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
        normaliser += tl.sum(p, 1) + eps
        numerator = dot(p.to(dtype), values, numerator, plan)
        reciprocal = 1 / normaliser
        if plan.packed:
            reciprocal = tl.where(real, reciprocal, 0.0)
        at, inside = place(y, start, stored, row, head, tile, plan.value_size, plan.value_tile, plan)
        tl.store(at, numerator * reciprocal[:, None], inside)
        tl.store(rden + number * plan.length + index, reciprocal, stored & (tile == 0))
        state = enter(state, keys, values, start, index, starts, limit, ones, twos, vectors, plan)
    if return_state:  # noqa: SIM102  (one condition for the compiler, one for the program)
        if block == plan.blocks - 1:
            store_state(state, final_kv, final_moments, number, tile, plan)


@triton.jit
def taylor_scan(
    sums, initial, keep, out,
    SIZE: tl.constexpr, STEPS: tl.constexpr, HEADS: tl.constexpr, ELEMENTS: tl.constexpr,
    has_initial: tl.constexpr, has_keep: tl.constexpr, reverse: tl.constexpr,
):  # fmt: skip
    """out[0] = initial, out[b + 1] = keep[b] out[b] + sums[b] for ELEMENTS of one row's and head's states;
    reversed, the same from the other end."""
    parts: tl.constexpr = (SIZE + ELEMENTS - 1) // ELEMENTS
    number = (tl.program_id(0) // parts).to(tl.int64)
    row = number // HEADS
    index = tl.program_id(0) % parts * ELEMENTS + tl.arange(0, ELEMENTS)
    valid = index < SIZE
    sums += number * (STEPS * SIZE) + index
    out += number * ((STEPS + 1) * SIZE) + index
    keep += row * STEPS
    if has_initial:
        total = tl.load(initial + number * SIZE + index, valid, 0.0)
    else:
        total = tl.full((ELEMENTS,), 0.0, tl.float32)
    for i in range(STEPS):
        block = STEPS - 1 - i if reverse else i
        tl.store(out + (block + reverse) * SIZE, total, valid)
        if has_keep:
            total *= tl.load(keep + block)
        total += tl.load(sums + block * SIZE, valid, 0.0)
    tl.store(out + (0 if reverse else STEPS) * SIZE, total, valid)
