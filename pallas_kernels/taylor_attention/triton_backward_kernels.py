"""The backward kernels once more in Triton's own language; imported only where the `triton` package is.

Line by line `sums.query_sums`, `dq.query_gradients` and `dkv.key_or_value_gradient`, with the differences
that `triton_kernels` lists.
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
    gradient_through_state,
    leave,
    load_gradients,
    load_keys,
    load_numbers,
    load_queries,
    load_state,
    load_tables,
    load_values,
    load_vectors,
    place,
    program,
    scaled_scores,
    slope,
    store_state,
)


@triton.jit
def taylor_query_sums(
    q, do, rden, dd, starts, counts, one, weighted, one_offset, two_offset, linear, half_linear,
    kv, moments,
    plan: tl.constexpr, first: tl.constexpr,
):  # fmt: skip
    """Sums over the queries of one block, counted from block `first`."""
    dtype: tl.constexpr = one.dtype.element_ty
    STEPS: tl.constexpr = plan.block // plan.chunk
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_weights = load_tables(one, plan), load_tables(weighted, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)

    state = empty_state(plan)
    for c in range(STEPS):
        start = (block + first) * plan.block + (STEPS - 1 - c) * plan.chunk
        index = start + tl.arange(0, plan.chunk)
        stored = existing(index, plan)
        real = index < limit if plan.packed else stored
        ones, weights = at_round(all_ones, one_offset, c, plan), at_round(all_weights, one_offset, c, plan)
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        x = load_queries(q, start, real, row, head, dtype, plan)
        dden = load_numbers(dd, index, real, row, head, plan)
        state = leave(state, x, dn, dden, start, index, stored, starts, ones, weights, vectors, plan)
    number = (row * plan.heads + head) * (plan.blocks - first) + block
    store_state(state, kv, moments, number, tile, plan)


@triton.jit
def taylor_dq(
    q, k, v, do, rden, dd, starts, counts, prefix_kv, prefix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dq,
    plan: tl.constexpr, has_prefix: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries of one block, from the state before it."""
    SCALE: tl.constexpr = plan.scales[1]
    dtype: tl.constexpr = one.dtype.element_ty
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_twos = load_tables(one, plan), load_tables(two, plan)
    all_weights = load_tables(weighted, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)
    share = _share_of_normaliser(tile, plan)

    if has_prefix:
        number = (row * plan.heads + head) * plan.blocks + block
        state = load_state(prefix_kv, prefix_moments, number, tile, plan)
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
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        dden = load_numbers(dd, index, real, row, head, plan) * share
        dx = gradient_through_state(state, x, dn, dden[:, None], ones, weights, vectors, dtype, SCALE, plan)
        visible = index[:, None] >= index[None, :]
        if plan.packed:
            began = tl.load(starts + index, stored, 0)
            dx = tl.where((began < start)[:, None], dx, 0.0)
            visible = visible & (index[None, :] >= began[:, None])
        # Loaded only now: registers are what this kernel has too few of.
        keys = load_keys(k, start, real, row, head, plan).to(dtype)
        values = load_values(v, start, real, row, head, tile, plan).to(dtype)
        scores = scaled_scores(x, keys, plan)
        dscores = dot(dn, tl.trans(values), None, plan) + dden[:, None]
        dscores = tl.where(visible, dscores * slope(scores, plan), 0.0)
        dx = dot(dscores.to(dtype), keys, dx, plan)
        at, inside = _share_place(dq, start, stored, row, head, tile, plan)
        tl.store(at, dx * plan.scales[0], inside)
        state = enter(state, keys, values, start, index, starts, limit, ones, twos, vectors, plan)


@triton.jit
def taylor_dk(
    q, k, v, do, rden, dd, starts, counts, suffix_kv, suffix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dk,
    plan: tl.constexpr, has_suffix: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys of one block, from the sums over the queries after it."""
    dtype: tl.constexpr = one.dtype.element_ty
    STEPS: tl.constexpr = plan.block // plan.chunk
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_twos = load_tables(one, plan), load_tables(two, plan)
    all_weights = load_tables(weighted, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)
    share = _share_of_normaliser(tile, plan)

    if has_suffix:
        number = (row * plan.heads + head) * plan.blocks + block
        state = load_state(suffix_kv, suffix_moments, number, tile, plan)
    else:
        state = empty_state(plan)
    for c in range(STEPS):
        start = block * plan.block + (STEPS - 1 - c) * plan.chunk
        index = start + tl.arange(0, plan.chunk)
        stored = existing(index, plan)
        real = index < limit if plan.packed else stored
        ones, twos = at_round(all_ones, one_offset, c, plan), at_round(all_twos, one_offset, c, plan)
        weights = at_round(all_weights, one_offset, c, plan)
        keys = load_keys(k, start, real, row, head, plan).to(dtype)
        values = load_values(v, start, real, row, head, tile, plan).to(dtype)
        gradient = gradient_through_state(state, keys, values, share, ones, twos, vectors, dtype, 1.0, plan)
        # Loaded late, and twice: registers are what this kernel has too few of.
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        x = load_queries(q, start, real, row, head, dtype, plan)
        dden = load_numbers(dd, index, real, row, head, plan)
        visible = index[:, None] <= index[None, :]
        if plan.packed:
            gradient = tl.where(_is_seen_later(start, index, starts, plan)[:, None], gradient, 0.0)
            visible = visible & (index[:, None] >= tl.load(starts + index, stored, 0)[None, :])
        scores = scaled_scores(keys, x, plan)
        dscores = dot(values, tl.trans(dn), None, plan) + (dden * share)[None, :]
        dscores = tl.where(visible, dscores * slope(scores, plan), 0.0)
        gradient = dot(dscores.to(dtype), x, gradient, plan)
        at, inside = _share_place(dk, start, stored, row, head, tile, plan)
        tl.store(at, gradient, inside)
        x = load_queries(q, start, real, row, head, dtype, plan)
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        dden = load_numbers(dd, index, real, row, head, plan)
        state = leave(state, x, dn, dden, start, index, stored, starts, ones, weights, vectors, plan)


@triton.jit
def taylor_dv(
    q, k, v, do, rden, dd, starts, counts, suffix_kv, suffix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dv,
    plan: tl.constexpr, has_suffix: tl.constexpr,
):  # fmt: skip
    """Gradients of the values of one block, from the sums over the queries after it."""
    PURE: tl.constexpr = plan.layout.pure
    dtype: tl.constexpr = one.dtype.element_ty
    STEPS: tl.constexpr = plan.block // plan.chunk
    row, head, tile, block = program(plan)
    starts += row * plan.length
    limit = tl.load(counts + row) if plan.packed else plan.length
    all_ones, all_twos = load_tables(one, plan), load_tables(two, plan)
    all_weights = load_tables(weighted, plan)
    vectors = load_vectors(one_offset, two_offset, linear, half_linear, plan)

    if has_suffix:
        number = (row * plan.heads + head) * plan.blocks + block
        state = load_state(suffix_kv, suffix_moments, number, tile, plan)
    else:
        state = empty_state(plan)
    for c in range(STEPS):
        start = block * plan.block + (STEPS - 1 - c) * plan.chunk
        index = start + tl.arange(0, plan.chunk)
        stored = existing(index, plan)
        real = index < limit if plan.packed else stored
        ones, twos = at_round(all_ones, one_offset, c, plan), at_round(all_twos, one_offset, c, plan)
        weights = at_round(all_weights, one_offset, c, plan)
        keys = load_keys(k, start, real, row, head, plan).to(dtype)
        phi = features(keys, ones, twos, vectors, PURE, 1.0, plan).to(dtype)
        gradient = dot(phi, tl.trans(state[0][PURE]).to(dtype), None, plan)
        for i in tl.static_range(PURE - 1, -1, -1):
            phi = features(keys, ones, twos, vectors, i, 1.0, plan).to(dtype)
            part = tl.trans(state[0][i]) if plan.layout.tile < 64 else state[0][i]
            gradient = dot(phi, part.to(dtype), gradient, plan)
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        x = load_queries(q, start, real, row, head, dtype, plan)
        visible = index[:, None] <= index[None, :]
        if plan.packed:
            gradient = tl.where(_is_seen_later(start, index, starts, plan)[:, None], gradient, 0.0)
            visible = visible & (index[:, None] >= tl.load(starts + index, stored, 0)[None, :])
        scores = scaled_scores(keys, x, plan)
        p = tl.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
        gradient = dot(p.to(dtype), dn, gradient, plan)
        at, inside = place(dv, start, stored, row, head, tile, plan.value_size, plan.value_tile, plan)
        tl.store(at, gradient, inside)
        x = load_queries(q, start, real, row, head, dtype, plan)
        dn = load_gradients(do, rden, start, index, real, row, head, tile, dtype, plan)
        dden = load_numbers(dd, index, real, row, head, plan)
        state = leave(state, x, dn, dden, start, index, stored, starts, ones, weights, vectors, plan)


@triton.jit
def _share_of_normaliser(tile, plan: tl.constexpr):
    """1 for the first value tile, 0 for the others: the normaliser is one for all, and counts once."""
    if plan.value_tiles == 1:
        return 1.0
    else:
        return (tile == 0).to(tl.float32)


@triton.jit
def _share_place(pointer, start, stored, row, head, tile, plan: tl.constexpr):
    """Addresses of a chunk in (tiles, B, N, H, K), and which of them are valid and inside."""
    K: tl.constexpr = plan.layout.key_size
    return place(
        pointer, start, stored, tile * plan.batch + row, head, 0, K, plan.layout.padded_key_size, plan
    )


@triton.jit
def _is_seen_later(start, index, starts, plan: tl.constexpr):
    """(C,) which keys of the chunk the queries after it see."""
    return index >= tl.load(starts + tl.minimum(start + plan.chunk, plan.length - 1))
