"""`_body` of the package in Triton's own language; imported only if the `triton` package is installed."""

import triton
import triton.language as tl


@triton.jit
def taylor_step(
    first, second, weight, q, k, v, kv, z, y, new_kv, new_z,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, COUNT: tl.constexpr, VALUE_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, SCALE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Compute S += phi(k) v^T, z += phi(k), y = phi(q) S / (phi(q) z + eps) for one row and head.

    WIDTH is K and CHANNELS the next power of two; COUNT is F, in tiles of ROWS; COLUMNS is V rounded up.
    """
    if new_kv is None:  # kv and z are written in place
        new_kv, new_z = kv, z
    head = tl.program_id(0).to(tl.int64)
    q += head * WIDTH
    k += head * WIDTH
    v += head * VALUE_SIZE
    y += head * VALUE_SIZE
    kv += head * (COUNT * VALUE_SIZE)
    new_kv += head * (COUNT * VALUE_SIZE)
    z += head * COUNT
    new_z += head * COUNT

    column = tl.arange(0, COLUMNS)
    in_columns = column < VALUE_SIZE
    value = tl.load(v + column, in_columns, 0.0).to(tl.float32)
    # Accumulate per row of a tile: one reduction over rows at the end instead of one per tile.
    numerator = tl.zeros((ROWS, COLUMNS), tl.float32)
    denominator = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, COUNT, ROWS):
        row = begin + tl.arange(0, ROWS)
        in_rows = row < COUNT
        inside = in_rows[:, None] & in_columns[None, :]
        a, b, w = tl.load(first + row), tl.load(second + row), tl.load(weight + row)
        phi_q = _channel(q, a, WIDTH) * _channel(q, b, WIDTH) * w
        phi_k = _channel(k, a, WIDTH) * _channel(k, b, WIDTH) * w
        at = row[:, None] * VALUE_SIZE + column[None, :]
        s = tl.load(kv + at, inside, 0.0).to(tl.float32)
        n = tl.load(z + row, in_rows, 0.0).to(tl.float32)
        tl.debug_barrier()  # warps share a tile's numbers: none may store before all have loaded
        tl.store(new_kv + at, s + phi_k[:, None] * value[None, :], inside)
        tl.store(new_z + row, n + phi_k, in_rows)
        numerator += phi_q[:, None] * s
        denominator += phi_q * n
    channel = tl.arange(0, CHANNELS)
    query = tl.load(q + channel, channel < WIDTH, 0.0).to(tl.float32)
    key = tl.load(k + channel, channel < WIDTH, 0.0).to(tl.float32)
    # Compute the token's own term from q . k: a sum of features would lose it to cancellation.
    similarity = tl.sum(query * key, 0) * SCALE
    own = 1 + similarity * (1 + 0.5 * similarity)
    total = tl.sum(numerator, 0) + own * value
    tl.store(y + column, total / (tl.sum(denominator, 0) + own + EPS), in_columns)


@triton.jit
def _channel(pointer, index, WIDTH: tl.constexpr):
    """Return channels of q or k in float32; index WIDTH is the constant 1."""
    return tl.load(pointer + index, index < WIDTH, 1.0).to(tl.float32)
