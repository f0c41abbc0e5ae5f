"""Masks with a structure are the dense masks that they were made from."""

import functools

import chex
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from based_jax import ops
from tests.arrays import array
from tests.ops import draw

LENGTHS = st.sampled_from([1, 2, 5])


def squares(length):
    return npst.arrays(bool, (length, length), fill=draw.NO_FILL)


@functools.partial(jax.jit, static_argnums=1)
def said(mask, length):
    return mask.dense(length), mask.counts(length)


def assert_is(mask, dense):
    """The mask, and what it says of its rows."""
    mask.check(len(dense))
    got, counts = said(mask, len(dense))
    assert np.array_equal(got, dense)
    assert np.array_equal(counts, dense.sum(axis=1))


@given(LENGTHS.flatmap(squares), st.booleans())
def test_changes(dense, restart):
    """Of any mask; `steps` is more than any has, so that one program serves all."""
    length = len(dense)
    assert_is(ops.row_change_mask(dense, restart=restart, steps=length**2 + 1), dense)
    shortest = ops.row_change_mask(dense, restart=restart)
    least = np.maximum(ops.row_changes(dense), 1)
    if restart:
        least = np.minimum(least, np.maximum(dense.sum(axis=1), 1))
    assert len(shortest.column) == least.sum()
    assert np.array_equal(shortest.step, np.cumsum(least) - 1)


@given(LENGTHS.flatmap(squares))
def test_parts(dense):
    """Of any mask: every column is of the kind that it is said to be, and so is every row."""
    columns, rows = ops.distinct_columns_mask(dense), ops.distinct_rows_mask(dense.astype(int))
    assert np.array_equal(columns.visible[:, columns.part], dense)
    assert np.array_equal(rows.visible[rows.part], dense)


@given(LENGTHS, st.data())
def test_intervals(length, data):
    """Also those that end outside, and those that are empty; their changes need no dense mask."""
    ends = npst.arrays(np.int32, (2, length), elements=st.integers(-2, length + 1), fill=draw.NO_FILL)
    mask = ops.IntervalMask(*data.draw(ends))
    columns = np.arange(length)
    dense = (mask.first[:, None] <= columns) & (columns <= mask.last[:, None])
    assert_is(mask, dense)
    again = ops.interval_mask(dense)
    again_dense = (again.first[:, None] <= columns) & (columns <= again.last[:, None])
    assert np.array_equal(again_dense, dense)
    for restart in (False, True):
        by_ends, by_columns = (ops.row_change_mask(x, restart=restart) for x in (mask, dense))
        chex.assert_trees_all_equal(by_ends, by_columns)
    assert np.array_equal(ops.row_changes(mask), ops.row_changes(dense))


def test_distinct_parts():
    rng = np.random.default_rng(0)
    part, kinds = rng.integers(3, size=20), np.array([[0] * 20, [1] * 20, [1, 0] * 10])
    rows, columns = ops.distinct_rows_mask(kinds[part]), ops.distinct_columns_mask(kinds[part].T)
    assert rows.visible.shape == columns.visible.T.shape == (3, 20)
    assert_is(rows, kinds[part])
    assert_is(columns, kinds[part].T)


def test_longlora_masks():
    row, column = np.indices((13, 13))
    causal = column <= row
    assert_is(ops.CausalMask(), causal)
    assert_is(ops.band_mask(13, 4), causal & (row - column < 4))
    assert_is(ops.block_mask(13, 4), causal & (row // 4 == column // 4))
    assert_is(ops.block_mask(13, 4, shift=2), causal & ((row + 2) // 4 == (column + 2) // 4))


ROWS = np.arange(3, dtype=np.int32)


def test_errors_name_the_argument(unchecked):
    for call, error, message in [
        (lambda: ops.interval_mask(np.ones((2, 3))), ValueError, r"mask has shape \(2, 3\)"),
        (lambda: ops.interval_mask([[1]]), TypeError, "expected an array"),
        (lambda: ops.interval_mask(np.array([[1, 0, 1]] * 3)), ValueError, r"mask\[0\] = \[0, 2\]"),
        (lambda: ops.row_changes(np.full((2, 2), 3)), ValueError, r"mask = \[3, 3, 3\]: expected zeros and"),
        (lambda: ops.row_change_mask(np.tri(3), steps=2), ValueError, "steps = 2: expected at least 3"),
        (lambda: ops.row_changes(ops.IntervalMask(ROWS, ROWS[:2])), ValueError, r"mask\.last has shape"),
        (lambda: ops.IntervalMask(ROWS, ROWS / 2).check(3), TypeError, r"mask\.last has dtype"),
        (lambda: ops.IntervalMask(ROWS, ROWS).check(4), ValueError, r"mask\.first has shape \(3,\)"),
        (
            lambda: ops.DistinctColumnsMask(ROWS, np.ones((3, 2), bool)).check(3),
            ValueError,
            r"mask\.part = \(0, 2\): expected from 0 to 1",
        ),
        (lambda: ops.DistinctRowsMask(ROWS, np.ones((3, 3))).check(3), TypeError, r"mask\.visible has dtype"),
        (lambda: ops.RowChangeMask(ROWS, ROWS, ROWS[:1], ROWS).check(3), ValueError, r"mask\.run has shape"),
        (
            lambda: ops.RowChangeMask(ROWS, ROWS, ROWS, ROWS + 1).check(3),
            ValueError,
            r"mask\.step = \(1, 3\)",
        ),
        (lambda: ops.band_mask(0, 1), ValueError, "length = 0"),
        (lambda: ops.band_mask(4, 0), ValueError, "width = 0"),
        (lambda: ops.block_mask(0, 2), ValueError, "length = 0"),
        (lambda: ops.block_mask(4, 0), ValueError, "size = 0"),
        (lambda: ops.block_mask(4, 2, shift=2), ValueError, "shift = 2: expected 0 to size - 1 = 1"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_indices_on_the_device_are_checked_too(unchecked):
    with pytest.raises(ValueError, match=r"mask\.column = \(0, 7\)"):
        ops.RowChangeMask(array([0, 7, 1]), ROWS, ROWS, ROWS).check(3)
