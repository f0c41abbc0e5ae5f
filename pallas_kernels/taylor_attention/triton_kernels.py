"""The kernels in Triton's own language; imported only if the `triton` package is installed.

They correspond line by line to `sums`, `scan`, `outputs`, `dq` and `dkv`, with two differences: this compiler
fuses products and sums, XLA's does not; and it can transpose the tables, which are passed once. `starts`,
`counts` and the states are meaningless pointers if the call has none.
"""

# To pyright, tuples that `static_range` fills are empty.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false

import triton
import triton.language as tl

from pallas_kernels.taylor_attention import triton_blocks as blocks


@triton.jit
def taylor_key_sums(
    k, v, starts, counts, one, two, one_offset, two_offset, linear, half_linear,
    kv, moments,
    plan: tl.constexpr,
):  # fmt: skip
    """Compute the sums over the keys of one block."""
    program = blocks.running(starts, counts, plan)
    tables = blocks.load_tables((one, two), plan)
    vectors = blocks.load_vectors(one_offset, two_offset, linear, half_linear, plan)
    state = blocks.empty_state(plan)
    for c in range(plan.block // plan.chunk):
        chunk = blocks.chunk_at(program.block * plan.block + c * plan.chunk, program, plan)
        ones, twos = blocks.at_round(tables, one_offset, c, plan)
        keys, values = blocks.load_keys(k, program, chunk, plan), blocks.load_values(v, program, chunk, plan)
        state = blocks.enter(state, keys, values, program, chunk, (ones, twos, vectors), plan)
    number = (program.row * plan.heads + program.head) * (plan.blocks - 1) + program.block
    blocks.store_state(state, kv, moments, number, program.tile, plan)


@triton.jit
def taylor_query_sums(
    q, do, rden, dd, starts, counts, one, weighted, one_offset, two_offset, linear, half_linear,
    kv, moments,
    plan: tl.constexpr, first: tl.constexpr,
):  # fmt: skip
    """Compute the sums over the queries of one block, counted from block `first`."""
    STEPS: tl.constexpr = plan.block // plan.chunk
    program = blocks.running(starts, counts, plan)
    tables = blocks.load_tables((one, weighted), plan)
    vectors = blocks.load_vectors(one_offset, two_offset, linear, half_linear, plan)
    state = blocks.empty_state(plan)
    for c in range(STEPS):
        start = (program.block + first) * plan.block + (STEPS - 1 - c) * plan.chunk
        chunk = blocks.chunk_at(start, program, plan)
        ones, weights = blocks.at_round(tables, one_offset, c, plan)
        dn = blocks.load_gradients(do, rden, program, chunk, plan)
        x = blocks.load_queries(q, program, chunk, plan)
        dden = blocks.load_numbers(dd, program, chunk, plan)
        state = blocks.leave(state, x, dn, dden, program, chunk, (ones, weights, vectors), plan)
    number = (program.row * plan.heads + program.head) * (plan.blocks - first) + program.block
    blocks.store_state(state, kv, moments, number, program.tile, plan)


@triton.jit
def taylor_outputs(
    q, k, v, starts, counts, prefix_kv, prefix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    y, rden, final_kv, final_moments,
    plan: tl.constexpr, has_states: tl.constexpr, eps: tl.constexpr, return_state: tl.constexpr,
):  # fmt: skip
    """Compute outputs and reciprocal normalisers of one block, from the state before it."""
    PURE: tl.constexpr = plan.layout.pure
    SCALE: tl.constexpr = plan.scales[1]
    program = blocks.running(starts, counts, plan)
    tables = blocks.load_tables((one, two, weighted), plan)
    vectors = blocks.load_vectors(one_offset, two_offset, linear, half_linear, plan)
    number = program.row * plan.heads + program.head
    state = blocks.state_before(prefix_kv, prefix_moments, program, has_states, plan)
    for c in range(plan.block // plan.chunk):
        chunk = blocks.chunk_at(program.block * plan.block + c * plan.chunk, program, plan)
        ones, twos, weights = blocks.at_round(tables, one_offset, c, plan)
        x = blocks.load_queries(q, program, chunk, plan)
        numerator = None
        for i in tl.static_range(PURE + 1):
            phi = blocks.features(x, (ones, weights, vectors), i, SCALE, plan)
            numerator = blocks.read_tile(state, i, phi, numerator, plan)
        read = blocks.dot(x, state[1] * vectors[3][None, :], None, plan) * SCALE
        normaliser = tl.sum(read * phi, 1) + state[2]
        visible = chunk.index[:, None] >= chunk.index[None, :]
        if plan.packed:
            began = tl.load(program.starts + chunk.index, chunk.stored, 0)
            numerator = tl.where((began < chunk.start)[:, None], numerator, 0.0)
            normaliser = tl.where(began < chunk.start, normaliser, 0.0)
            visible = visible & (chunk.index[None, :] >= began[:, None])
        # Load as late as possible: this kernel is short of registers.
        keys, values = blocks.load_keys(k, program, chunk, plan), blocks.load_values(v, program, chunk, plan)
        scores = blocks.scaled_scores(x, keys, plan)
        p = tl.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
        normaliser += tl.sum(p, 1) + eps
        numerator = blocks.dot(p, values, numerator, plan)
        reciprocal = 1 / normaliser
        if plan.packed:
            reciprocal = tl.where(chunk.real, reciprocal, 0.0)
        at, inside = blocks.value_addresses(y, program, chunk, chunk.stored, plan)
        tl.store(at, numerator * reciprocal[:, None], inside)
        tl.store(rden + number * plan.length + chunk.index, reciprocal, chunk.stored & (program.tile == 0))
        state = blocks.enter(state, keys, values, program, chunk, (ones, twos, vectors), plan)
    if return_state:  # noqa: SIM102  (one condition for the compiler, one for the program)
        if program.block == plan.blocks - 1:
            blocks.store_state(state, final_kv, final_moments, number, program.tile, plan)


@triton.jit
def taylor_dq(
    q, k, v, do, rden, dd, starts, counts, prefix_kv, prefix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dq,
    plan: tl.constexpr, has_states: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries of one block, from the state before it."""
    program = blocks.running(starts, counts, plan)
    tables = blocks.load_tables((one, two, weighted), plan)
    vectors = blocks.load_vectors(one_offset, two_offset, linear, half_linear, plan)
    share = _share_of_normaliser(program.tile, plan)
    state = blocks.state_before(prefix_kv, prefix_moments, program, has_states, plan)
    for c in range(plan.block // plan.chunk):
        chunk = blocks.chunk_at(program.block * plan.block + c * plan.chunk, program, plan)
        ones, twos, weights = blocks.at_round(tables, one_offset, c, plan)
        x = blocks.load_queries(q, program, chunk, plan)
        dn = blocks.load_gradients(do, rden, program, chunk, plan)
        dden = (blocks.load_numbers(dd, program, chunk, plan) * share)[:, None]
        dx = blocks.gradient_through_state(state, x, dn, dden, (ones, weights, vectors), plan.scales[1], plan)
        visible = chunk.index[:, None] >= chunk.index[None, :]
        if plan.packed:
            began = tl.load(program.starts + chunk.index, chunk.stored, 0)
            dx = tl.where((began < chunk.start)[:, None], dx, 0.0)
            visible = visible & (chunk.index[None, :] >= began[:, None])
        # Load as late as possible: this kernel is short of registers.
        keys, values = blocks.load_keys(k, program, chunk, plan), blocks.load_values(v, program, chunk, plan)
        scores = blocks.scaled_scores(x, keys, plan)
        dscores = blocks.dot(dn, tl.trans(values), None, plan) + dden
        dscores = tl.where(visible, dscores * blocks.slope(scores, plan), 0.0)
        dx = blocks.dot(dscores, keys, dx, plan)
        at, inside = blocks.share_addresses(dq, program, chunk, plan)
        tl.store(at, dx * plan.scales[0], inside)
        state = blocks.enter(state, keys, values, program, chunk, (ones, twos, vectors), plan)


@triton.jit
def taylor_dk(
    q, k, v, do, rden, dd, starts, counts, suffix_kv, suffix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dk,
    plan: tl.constexpr, has_states: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys of one block, from the sums over the queries after it."""
    tables, vectors = (one, two, weighted), (one_offset, two_offset, linear, half_linear)
    packing, suffix = (starts, counts), (suffix_kv, suffix_moments)
    _walk_back((q, k, v, do, rden, dd), packing, suffix, tables, vectors, dk, False, has_states, plan)


@triton.jit
def taylor_dv(
    q, k, v, do, rden, dd, starts, counts, suffix_kv, suffix_moments,
    one, two, weighted, one_offset, two_offset, linear, half_linear,
    dv,
    plan: tl.constexpr, has_states: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the values of one block, from the sums over the queries after it."""
    tables, vectors = (one, two, weighted), (one_offset, two_offset, linear, half_linear)
    packing, suffix = (starts, counts), (suffix_kv, suffix_moments)
    _walk_back((q, k, v, do, rden, dd), packing, suffix, tables, vectors, dv, True, has_states, plan)


@triton.jit
def _walk_back(
    inputs, packing, suffix, tables, vectors, out,
    of_values: tl.constexpr, has_states: tl.constexpr, plan: tl.constexpr,
):  # fmt: skip
    """Store the gradients of keys or of values, chunk by chunk from the end."""
    q, k, v, do, rden, dd = inputs
    PURE: tl.constexpr = plan.layout.pure
    STEPS: tl.constexpr = plan.block // plan.chunk
    program = blocks.running(packing[0], packing[1], plan)
    tables, one_offset = blocks.load_tables(tables, plan), vectors[0]
    vectors = blocks.load_vectors(one_offset, vectors[1], vectors[2], vectors[3], plan)
    share = _share_of_normaliser(program.tile, plan)
    state = blocks.state_before(suffix[0], suffix[1], program, has_states, plan)
    for c in range(STEPS):
        chunk = blocks.chunk_at(program.block * plan.block + (STEPS - 1 - c) * plan.chunk, program, plan)
        ones, twos, weights = blocks.at_round(tables, one_offset, c, plan)
        for_keys = (ones, twos, vectors)
        keys = blocks.load_keys(k, program, chunk, plan)
        if of_values:
            gradient = None
            for i in tl.static_range(PURE, -1, -1):
                phi = blocks.features(keys, for_keys, i, 1.0, plan)
                gradient = blocks.read_tile(state, i, phi, gradient, plan)
        else:
            values = blocks.load_values(v, program, chunk, plan)
            gradient = blocks.gradient_through_state(state, keys, values, share, for_keys, 1.0, plan)
        # Load late, and twice: this kernel is short of registers.
        dn = blocks.load_gradients(do, rden, program, chunk, plan)
        x = blocks.load_queries(q, program, chunk, plan)
        if not of_values:
            dden = blocks.load_numbers(dd, program, chunk, plan)
        visible = chunk.index[:, None] <= chunk.index[None, :]
        if plan.packed:
            is_visible_later = chunk.index >= blocks.start_after(program, chunk, plan)
            gradient = tl.where(is_visible_later[:, None], gradient, 0.0)
            began = tl.load(program.starts + chunk.index, chunk.stored, 0)
            visible = visible & (chunk.index[:, None] >= began[None, :])
        scores = blocks.scaled_scores(keys, x, plan)
        if of_values:
            p = tl.where(visible, 1 + scores * (1 + scores * 0.5), 0.0)
            gradient = blocks.dot(p, dn, gradient, plan)
            at, inside = blocks.value_addresses(out, program, chunk, chunk.stored, plan)
        else:
            dscores = blocks.dot(values, tl.trans(dn), None, plan) + (dden * share)[None, :]
            dscores = tl.where(visible, dscores * blocks.slope(scores, plan), 0.0)
            gradient = blocks.dot(dscores, x, gradient, plan)
            at, inside = blocks.share_addresses(out, program, chunk, plan)
        tl.store(at, gradient, inside)
        x = blocks.load_queries(q, program, chunk, plan)
        dn = blocks.load_gradients(do, rden, program, chunk, plan)
        dden = blocks.load_numbers(dd, program, chunk, plan)
        state = blocks.leave(state, x, dn, dden, program, chunk, (ones, weights, vectors), plan)


@triton.jit
def _share_of_normaliser(tile, plan: tl.constexpr):
    """Return 1 for the first value tile, else 0: all tiles share the normaliser, which counts once."""
    if plan.value_tiles == 1:
        return 1.0
    else:
        return (tile == 0).to(tl.float32)


@triton.jit
def taylor_scan(
    sums, initial, keep, out,
    SIZE: tl.constexpr, STEPS: tl.constexpr, HEADS: tl.constexpr, ELEMENTS: tl.constexpr,
    has_initial: tl.constexpr, has_keep: tl.constexpr, reverse: tl.constexpr,
):  # fmt: skip
    """Compute out[0] = initial, out[b + 1] = keep[b] out[b] + sums[b] for ELEMENTS of a head's states;
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
