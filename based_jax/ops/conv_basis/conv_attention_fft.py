"""Conv-basis attention of whole texts by FFT, and its surrogate gradient, that of softmax attention.

    A = sum_r conv(exp(c_r - top)) P_r,     D = diag(A 1),     y = D^-1 A v

Gu et al., "Conv-Basis", algorithm 1 and section 5. c_r is the kernel of segment r, its scores by lag, and P_r
keeps the columns of segment r. (The paper decomposes exp of the scores into a conv basis, lemma A.13, with
differences of exponentials, which cancel. Grouped by segments, nothing is subtracted.) A convolution cannot
subtract the maximum of each row, so `top` is one number per head.

A transform has the same rounding error in every row. A row whose sum D_i is not well above that error is
"drowned": its scores are far below `top`, or it is an early row of a long text, with few scores. Drowned rows
are found by their sums and recomputed from the kernels entry by entry, in blocks. If all rows are drowned,
this is as slow as softmax attention; but no row is divided by noise. An inf or NaN affects all rows of its
head.

Arrays in this file have tokens last: (B, H, channels, N).
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import checkpoint, cond, finfo, map_rows, with_gradient
from based_jax.ops.long_conv import fft_size
from based_jax.typing import Array, Bool, Float, Int

BLOCK = 128
"""Rows computed entry by entry at a time: memory O(BLOCK N)."""

PRECISION = {"float32": 1e-5, "float64": 1e-12}
"""Largest error of a row by FFT, relative to the largest value; worse rows go entry by entry."""

PRODUCTS = 256
"""Channels that the gradient transforms at a time: memory O(PRODUCTS N)."""

FFT_COST = 4.0
"""Time of an operation in a transform, relative to one in a matrix product. Measured on a CPU at break-even
with exact attention (papers/conv_basis/README.md): 6.9 for 512 tokens, 3.4 for 1,024, 2.1 for 2,048."""


class Segments(NamedTuple):
    """The replacement for queries and keys: a kernel per segment, and the segment of every column."""

    kernels: Float[Array, "B H A N"]
    """scores by lag; the lowest finite number at lags without a visible token"""
    of_column: Int[Array, "rows heads N"]
    """rows is 1 or B, heads is 1 or H"""


def attend_by_fft(
    q: Float[Array, "B H K N"],
    k: Float[Array, "B H K N"],
    v: Float[Array, "B H V N"],
    starts: Int[Array, "rows heads A"],
    real: Bool[Array, "texts N"],
    gradient: str,
) -> Float[Array, "B H V N"]:
    """Attend in whole texts, one document each; arguments as for `conv_attention`, with q scaled."""
    starts = lax.optimization_barrier(starts)  # else compilers spend minutes folding constants
    if gradient == "surrogate":
        return _with_gradient_of_attention(q, k, v, starts, real)
    return _attend(_segments(q, k, starts, real), v, real)[0]


def segment_at(starts: Int[Array, "*lead A"], position: Int[Array, "*rest N"]) -> Int[Array, "*all N"]:
    """Return the number of the segment that a position is in; leading axes broadcast."""
    return jnp.sum(starts[..., None, :] <= position[..., None], axis=-1, dtype=jnp.int32) - 1


def scores_at(
    kernels: Float[Array, "B H A L"], of_column: Int[Array, "rows heads M"], lag: Int[Array, "some R M"]
) -> Float[Array, "B H R M"]:
    """Return the kernel of each column's segment at these lags; arbitrary but finite outside its lags."""
    batch, heads, _, lags = kernels.shape
    entry = of_column[:, :, None] * lags + jnp.clip(lag, 0, lags - 1)[:, None]
    entry = entry.reshape(*entry.shape[:2], -1)
    flat = jnp.take_along_axis(kernels.reshape(batch, heads, -1), entry, axis=-1)
    return flat.reshape(batch, heads, *lag.shape[1:])


def softmax_where(visible: Bool[Array, "..."], scores: Float[Array, "B H R M"]) -> Float[Array, "B H R M"]:
    """Return the softmax weights of visible keys; all 0 in a row without visible keys."""
    weights = jax.nn.softmax(jnp.where(visible, scores, finfo(scores.dtype).min), axis=-1)
    return jnp.where(visible, weights, 0)


def _segments(q: Array, k: Array, starts: Array, real: Array) -> Segments:
    """Return the kernels c_r[l] = q_{s_r + l} . k_{s_r}: k columns of scores, O(A N K) multiplications."""
    length = q.shape[-1]
    index = jnp.arange(length)
    of_column = segment_at(starts, index)
    anchors = jnp.take_along_axis(k, jnp.minimum(starts, length - 1)[..., None, :], axis=-1)
    row = starts[..., None] + index
    exists, row = row < length, jnp.minimum(row, length - 1)
    exists &= jnp.take_along_axis(real[:, None, None], row, axis=-1)
    kernels = jnp.take_along_axis(jnp.einsum("bhka,bhkn->bhan", anchors, q), row, axis=-1)
    return Segments(jnp.where(exists, kernels, finfo(q.dtype).min), of_column)


class _Rows(NamedTuple):
    factor: Float[Array, "B H N"]
    """1 / D_i for rows by FFT, 0 for the others"""
    drowned: Bool[Array, "B H N"]
    """rows that are computed entry by entry"""


def _attend(segments: Segments, v: Array, real: Array) -> tuple[Array, _Rows]:
    channels, length = v.shape[-2:]
    count = segments.kernels.shape[2]
    operations = (count * (channels + 2) + channels + 1) * _transform(length)
    if operations * FFT_COST > 2 * length**2 * channels:
        drowned = jnp.broadcast_to(real[:, None], (*v.shape[:2], length))
        return _entry_by_entry(segments, v, drowned), _Rows(jnp.zeros_like(drowned, v.dtype), drowned)
    taps = _taps(segments.kernels)
    ones = jnp.ones((*v.shape[:2], 1, length), v.dtype)
    sums = _convolve(taps, segments.of_column, jnp.concatenate([ones, v], axis=2))
    mass, sums = sums[:, :, 0], sums[:, :, 1:]
    good = real[:, None] & (mass * PRECISION[v.dtype.name] > _noise(taps, segments.of_column)[..., None])
    rows = _Rows(jnp.where(good, 1 / jnp.where(good, mass, 1), 0), real[:, None] & ~good)
    y = sums * rows.factor[:, :, None]
    return y + _entry_by_entry(segments, v, rows.drowned), rows


def _transform(length: int) -> float:
    """Return the operations of one real transform of twice the length, and of its products."""
    size = 2 * length
    return 2.5 * size * max(size.bit_length() - 1, 1) + 4 * size


def _taps(kernels: Array) -> Array:
    """Return exp(c_r - top), 0 where there is no score; `top` cancels, and has no gradient."""
    top = lax.stop_gradient(jnp.max(kernels, axis=(2, 3), keepdims=True))
    return jnp.exp(kernels - top)


def _noise(taps: Array, of_column: Array) -> Float[Array, "B H"]:
    """Estimate the rounding of sums by FFT: epsilon times both norms (measured: up to 1.2 times that)."""
    own = of_column[:, :, None] == jnp.arange(taps.shape[2])[:, None]
    norms = jnp.sqrt(jnp.sum(taps**2, axis=-1) * jnp.sum(own, axis=-1))
    return finfo(taps.dtype).eps * lax.stop_gradient(jnp.sum(norms, axis=-1))


def _convolve(taps: Array, of_column: Array, x: Array) -> Array:
    """Return sum_r conv(taps_r) P_r x, x: (B, H, C, N); summed as spectra, with memory O(C N)."""
    length = x.shape[-1]
    size = fft_size(2 * length - 1)  # without wrap-around

    @checkpoint
    def term(taps: Array, r: Array) -> Array:
        own = jnp.where((of_column == r)[:, :, None], x, 0)
        return jnp.fft.rfft(taps, size)[:, :, None] * jnp.fft.rfft(own, size)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + term(*part), None

    shape = (*x.shape[:-1], size // 2 + 1)
    none = jnp.zeros(shape, jnp.promote_types(x.dtype, jnp.complex64))
    total, _ = lax.scan(add, none, (jnp.moveaxis(taps, 2, 0), jnp.arange(taps.shape[2])))
    return jnp.fft.irfft(total, size)[..., :length]


def _convolve_back(taps: Array, of_column: Array, u: Array) -> Array:
    """Return the transpose, sum_r P_r conv(taps_r)^T u."""
    convolve = functools.partial(_convolve, taps, of_column)
    return cast(Any, jax.linear_transpose(convolve, u))(u)[0]


def _entry_by_entry(
    segments: Segments, v: Array, wanted: Array, q: Array | None = None, k: Array | None = None
) -> Array:
    """Return the wanted rows of y and zeros in the others; blocks without a wanted row are skipped.

    With q and k the scores have the gradient of q . k.
    """
    index = jnp.arange(v.shape[-1])

    @checkpoint
    def block(part: Any) -> Array:
        first, wanted, q = part

        def compute() -> Array:
            lag = (first + jnp.arange(wanted.shape[-1]))[:, None] - index
            scores = scores_at(segments.kernels, segments.of_column, lag[None])
            scores = scores if q is None else with_gradient_of(jnp.einsum("bhkr,bhkn->bhrn", q, k), scores)
            return jnp.einsum("bhrn,bhvn->bhvr", softmax_where((lag >= 0) & wanted[..., None], scores), v)

        shape = jax.eval_shape(compute).shape
        return cond(jnp.any(wanted), compute, lambda: jnp.zeros(shape, v.dtype))

    parts = (*blocks(wanted), None if q is None else blocks(q)[1])
    return joined(map_rows(block, parts), v.shape[-1])


def with_gradient_of(true: Array, scores: Array) -> Array:
    """Return scores with the gradient of the true ones."""
    return true + lax.stop_gradient(scores - true)


def blocks(x: Array) -> tuple[Array, Array]:
    """Return the first row of each block, and (B, H, ..., N) cut into (blocks, B, H, ..., R)."""
    length = x.shape[-1]
    size = min(BLOCK, length)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -length % size)])
    x = x.reshape(*x.shape[:-1], -1, size)
    return jnp.arange(0, length, size), jnp.moveaxis(x, -2, 0)


def joined(y: Array, length: int) -> Array:
    """Return the inverse of `blocks`."""
    y = jnp.moveaxis(y, 0, -2)
    return y.reshape(*y.shape[:-2], -1)[..., :length]


def _forward(q: Array, k: Array, v: Array, starts: Array, real: Array) -> tuple[Array, Any]:
    y, rows = _attend(_segments(q, k, starts, real), v, real)
    return y, (q, k, v, starts, real, y, rows)


def _backward(kept: Any, dy: Array) -> tuple[Array, Array, Array, None, None]:
    q, k, v, starts, real, y, rows = kept
    segments = _segments(q, k, starts, real)
    length, (channels, width) = q.shape[-1], (v.shape[2] + 1, q.shape[2])
    operations = 2 * (segments.kernels.shape[2] + 1) * channels * width * _transform(length)
    goes_by_fft = operations * FFT_COST <= 2 * length**2 * (2 * channels + 2 * width)
    wanted = rows.drowned if goes_by_fft else jnp.broadcast_to(real[:, None], rows.drowned.shape)

    def by_rows(q: Array, k: Array, v: Array) -> Array:
        return _entry_by_entry(segments, v, wanted, q, k)

    gradients = cast(Any, jax.vjp(by_rows, q, k, v)[1])(dy)
    if goes_by_fft:
        mean = jnp.sum(dy * y, axis=2, keepdims=True)
        across = jnp.concatenate([dy, -mean], axis=2) * rows.factor[:, :, None]
        ones = jnp.broadcast_to(real[:, None, None], mean.shape).astype(v.dtype)
        more = _gradients_by_fft(segments, q, k, across, jnp.concatenate([v, ones], axis=2))
        gradients = jax.tree.map(jnp.add, gradients, more)
    return *gradients, None, None


@with_gradient(_forward, _backward)
def _with_gradient_of_attention(q: Array, k: Array, v: Array, starts: Array, real: Array) -> Array:
    return _attend(_segments(q, k, starts, real), v, real)[0]


def _gradients_by_fft(
    segments: Segments, q: Array, k: Array, across: Array, down: Array
) -> tuple[Array, Array, Array]:
    """Differentiate rows by FFT: dS = F * (dy v^T - mean), F the weights; the other factor has rank V + 1.

    F * (a b^T) = diag(a) F diag(b): each pair of channels of (v, 1) and of k is transformed. `across` has dy
    and -mean of each row, over D, and `down` v and 1 of each column: (B, H, V + 1, N).
    """
    taps = _taps(segments.kernels)
    dv = _convolve_back(taps, segments.of_column, across[:, :, :-1])
    size = max(PRODUCTS // q.shape[2], 1)

    def split(x: Array) -> Array:
        """(B, H, V + 1, N) -> (chunks, B, H, size, N)"""
        x = jnp.pad(x, [(0, 0), (0, 0), (0, -x.shape[2] % size), (0, 0)])
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, size, x.shape[-1]), 2, 0)

    def through(convolve: Any, x: Array, a: Array, b: Array) -> Array:
        """Return sum_t diag(b_t) F diag(a_t) x^T, transposed; with F^T if `convolve` is `_convolve_back`."""
        pairs = a[:, :, :, None] * x[:, :, None]
        mixed = convolve(taps, segments.of_column, pairs.reshape(*x.shape[:2], -1, x.shape[-1]))
        return jnp.einsum("bhtn,bhtkn->bhkn", b, mixed.reshape(pairs.shape))

    def add(total: tuple[Array, Array], part: tuple[Array, Array]) -> tuple[Any, None]:
        a, b = part
        dq, dk = total
        return (dq + through(_convolve, k, b, a), dk + through(_convolve_back, q, a, b)), None

    (dq, dk), _ = lax.scan(add, (jnp.zeros_like(q), jnp.zeros_like(k)), (split(across), split(down)))
    return dq, dk, dv
