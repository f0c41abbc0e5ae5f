"""Masked low-rank attention: every mask as the dense formula, gradients too; sums over intervals."""

import functools

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from based_jax import ops
from tests.arrays import array
from tests.marks import release_but
from tests.ops import draw
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

EXACT = 1e-12
"""float64, of the largest output: sums of at most 9 positive terms and a quotient."""


def dense_attention(u1, u2, v, dense, normalize=True):
    """(W o U1 U2^T) V row by row, divided by the row's sum."""
    y = np.zeros(v.shape)
    for row, i, head in np.ndindex(v.shape[:3]):
        visible = np.flatnonzero(dense[i])
        weights = u2[row, visible, head] @ u1[row, i, head]
        if len(visible):
            y[row, i, head] = weights @ v[row, visible, head] / (weights.sum() if normalize else 1)
    return y


@st.composite
def masks(draw_, kind, length):
    """A mask of a kind, of shapes that depend on the length alone, and the matrix that it is."""
    dense = draw_(npst.arrays(bool, (length, length), fill=draw.NO_FILL))
    if kind == "causal":
        return ops.CausalMask(), np.tri(length, dtype=bool)
    if kind == "changes":
        return ops.row_change_mask(dense, restart=draw_(st.booleans()), steps=length**2 + 1), dense
    if kind == "intervals":
        elements = st.integers(-1, length)
        first, last = draw_(npst.arrays(np.int32, (2, length), elements=elements, fill=draw.NO_FILL))
        columns = np.arange(length)
        return ops.IntervalMask(first, last), (first[:, None] <= columns) & (columns <= last[:, None])
    part = draw_(npst.arrays(np.int32, length, elements=st.integers(0, 2), fill=draw.NO_FILL))
    visible = draw_(npst.arrays(bool, (length, 3), fill=draw.NO_FILL))
    if kind == "columns":
        return ops.DistinctColumnsMask(part, visible), visible[:, part]
    return ops.DistinctRowsMask(part, visible.T), visible.T[part]


KINDS = ["causal", "changes", "intervals", "columns", "rows"]


def inputs(seed, length, heads=2):
    """Positive features, so that no normaliser is near 0."""
    rng = np.random.default_rng(seed)
    u1, u2 = rng.uniform(0.1, 1, size=(2, 2, length, heads, 3))
    v, weights = rng.normal(size=(2, 2, length, heads, 2))
    return (u1, u2, v), weights


@functools.partial(jax.jit, static_argnames="implementation")
def run(arrays, mask, weights, implementation=None):
    """y, and the gradient of its weighted sum."""

    def loss(arrays):
        y = ops.masked_low_rank(*arrays, mask, implementation=implementation)
        return (weights * y).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return y, gradients


@pytest.mark.parametrize("kind", release_but(["causal", "changes"], KINDS))
@pytest.mark.parametrize("length", release_but([9], [1, 9]))
def test_as_the_dense_formula(kind, length):
    @settings(max_examples=5)
    @given(draw.seeds, masks(kind, length))
    def law(seed, drawn):
        mask, dense = drawn
        arrays, weights = inputs(seed, length)
        with jax.enable_x64(True):
            y, gradients = run(arrays, mask, weights)
            expected, exact = run(arrays, ops.row_change_mask(dense, steps=length**2), weights, "reference")
        assert_close(y, dense_attention(*arrays, dense), EXACT, "values")
        assert_close(expected, dense_attention(*arrays, dense), EXACT, "reference")
        assert_close(gradients, exact, EXACT, "gradients", magnitude=1.0)
        if length > 1:
            low = jax.tree.map(lambda x: x.astype(np.float32), (arrays, weights))
            y, gradients = run(low[0], mask, low[1])
            assert_close(y, expected, FLOAT32, "float32")
            assert_close(gradients, exact, FLOAT32_GRADIENT, "float32 gradients", magnitude=1.0)

    law()


def test_sums_without_a_normaliser(x64):
    (u1, u2, v), _ = inputs(0, 9)
    mask = ops.block_mask(9, 4, shift=2)
    y = jax.jit(functools.partial(ops.masked_low_rank, normalize=False))(u1, u2, v, mask)
    assert_close(y, dense_attention(u1, u2, v, np.asarray(mask.dense(9)), normalize=False), EXACT)


def test_a_traced_mask_meets_arrays_of_numpy(x64, unchecked):
    (u1, u2, v), _ = inputs(0, 9)
    mask, dense = ops.row_change_mask(ops.block_mask(9, 4)), np.asarray(ops.block_mask(9, 4).dense(9))
    y = jax.jit(lambda mask: ops.masked_low_rank(u1, u2, v, mask))(mask)
    assert_close(y, dense_attention(u1, u2, v, dense), EXACT)


def test_rows_that_see_nothing_are_zero():
    """Exactly, though what is left of their sums by subtraction is not; and no gradient is lost to them."""
    arrays, weights = jax.tree.map(lambda x: x.astype(np.float32), inputs(0, 9))
    dense = np.tri(9, dtype=bool)
    dense[[0, 4, 8]] = False
    y, gradients = run(arrays, ops.row_change_mask(dense, restart=False, steps=82), weights)
    assert not np.any(np.asarray(y)[:, [0, 4, 8]])
    assert_close(y, dense_attention(*arrays, dense), FLOAT32)
    chex.assert_tree_all_finite(gradients)


def test_bfloat16():
    arrays, _ = inputs(1, 9)
    low = [array(x, "bfloat16") for x in arrays]
    y = jax.jit(ops.masked_low_rank)(*low, ops.band_mask(9, 3))
    assert y.dtype == "bfloat16"
    rounded = [np.asarray(x, float) for x in low]
    assert_close(y, dense_attention(*rounded, np.asarray(ops.band_mask(9, 3).dense(9))), BFLOAT16)


@pytest.mark.parametrize("length", release_but([7], [1, 7, 8]))
def test_interval_sums(length):
    compute = jax.jit(ops.interval_sums)
    ends = npst.arrays(np.int32, (2, 4), elements=st.integers(-2, length + 1), fill=draw.NO_FILL)

    @given(draw.seeds, ends)
    def law(seed, ends):
        x = np.random.default_rng(seed).normal(size=(2, length, 3)).astype(np.float32)
        expected = [
            x[:, max(first, 0) : max(last + 1, 0)].sum(axis=1, dtype=float)
            for first, last in zip(*ends, strict=True)
        ]
        assert_close(compute(x, *map(array, ends)), np.stack(expected, axis=1), FLOAT32)

    law()


@pytest.mark.release
def test_a_tree_does_not_cancel():
    """Sums over 8 of 4096 positive numbers, relative to themselves: 3 roundings, or those of thousands."""
    x = np.random.default_rng(0).uniform(size=(1, 4096, 1)).astype(np.float32)
    mask = ops.band_mask(4096, 8)
    windows = np.pad(x[0, :, 0].astype(float), (7, 0))
    expected = np.lib.stride_tricks.sliding_window_view(windows, 8).sum(axis=1)
    tree = jax.jit(ops.interval_sums)(x, *map(array, (mask.first, mask.last)))[0, :, 0]
    assert np.abs(tree / expected - 1).max() < 3e-7
    running = np.pad(np.cumsum(x[0, :, 0]), (1, 0))
    differences = running[mask.last + 1] - running[mask.first]
    assert np.abs(differences / expected - 1).max() > 3e-5


def arguments(**changes):
    one = np.ones((2, 3, 1, 2), np.float32)
    return {"u1": one, "u2": one, "v": one, "mask": ops.CausalMask(), **changes}


def test_errors_name_the_argument(unchecked):
    for changes, error, message in [
        ({"u1": np.ones((3, 1, 2))}, ValueError, "u1 has shape"),
        ({"u1": np.ones((2, 3, 1, 2), int)}, TypeError, "u1 has dtype"),
        ({"u2": np.ones((2, 3, 1, 3))}, ValueError, r"u2 has shape .* expected \(2, 3, 1, 2\)"),
        ({"v": np.ones((2, 4, 1, 2))}, ValueError, "v has shape"),
        ({"mask": np.tri(3)}, TypeError, "expected a mask of"),
        ({"mask": ops.band_mask(4, 2)}, ValueError, r"mask\.first has shape \(4,\): expected \(3,\)"),
        ({"implementation": "pallas"}, ValueError, "implementation = 'pallas'"),
    ]:
        with pytest.raises(error, match=message):
            ops.masked_low_rank(**arguments(**changes))


def test_interval_errors(unchecked):
    ends = np.zeros(2, np.int32)
    with pytest.raises(TypeError, match="first has dtype float32"):
        ops.interval_sums(np.ones((1, 2, 1)), ends.astype(np.float32), ends)
    with pytest.raises(ValueError, match="last has shape"):
        ops.interval_sums(np.ones((1, 2, 1)), ends, ends[:1])
