"""Structured attention masks for `masked_low_rank`: visibility without an N x N array.

===================  ==================================================================  ==================
mask                 row i sees                                                          "Conv-Basis"
===================  ==================================================================  ==================
CausalMask           columns up to i                                                     definition 3.2
RowChangeMask        the columns of the row before, with a few added and removed         definition 6.1
IntervalMask         columns first_i .. last_i                                           definition 6.2
DistinctColumnsMask  the columns of some of R parts of the columns                       definition 6.3
DistinctRowsMask     the same columns as all rows of its part, one of R                  definition 6.4
===================  ==================================================================  ==================

(Gu et al., "Conv-Basis", section 6.) Masks are pytrees of index arrays: a jitted function takes them as
arguments, and masks of equal shapes share a program. They are built on the host, from a dense mask by
`row_change_mask`, `interval_mask`, `distinct_columns_mask` and `distinct_rows_mask`, or from lengths by
`band_mask` and `block_mask`. Blocks are the pattern of LongLoRA (Chen et al. 2023, shifted sparse attention:
half of the heads use blocks, the other half blocks shifted by half a block).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Shaped

from based_jax.typing import Array, Bool, Int
from based_jax.validate import expect, expect_array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CausalMask:
    """Row i sees the columns 0..i."""

    def check(self, length: int) -> None:
        """Accept any length."""

    def counts(self, length: int) -> Int[Array, " N"]:
        """Return the number of columns that each row sees."""
        return jnp.arange(1, length + 1)

    def dense(self, length: int) -> Bool[Array, "N N"]:
        """Return the mask as a matrix, rows first."""
        return jnp.tri(length, dtype=bool)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowChangeMask:
    """Rows as changes from the row before (the first row: from no columns). Built by `row_change_mask`.

    There are E steps, in order of rows: a column is added or removed, or nothing happens (sign 0). The
    paper's algorithm 5 has a step for every change, sum_j B_j of them, and one for a row without changes.
    """

    column: Int[Array | np.ndarray, " E"]
    """column that changes"""
    sign: Int[Array | np.ndarray, " E"]
    """1 adds it, -1 removes it, 0 changes nothing"""
    run: Int[Array | np.ndarray, " E"]
    """a number that increases where all columns are dropped at once instead of removed one by one"""
    step: Int[Array | np.ndarray, " N"]
    """last step of each row, increasing"""

    def check(self, length: int) -> None:
        """Raise unless this is a mask for `length` tokens."""
        expect_array("mask.column", self.column, ("E",), "integer")
        for name in ("sign", "run"):
            expect_array(f"mask.{name}", getattr(self, name), self.column.shape, "integer")
        expect_array("mask.step", self.step, (length,), "integer")
        _expect_range("mask.column", self.column, length)
        _expect_range("mask.step", self.step, len(self.column))
        if not isinstance(self.step, Tracer):
            step = np.asarray(self.step)
            expect(bool(np.all(step[1:] > step[:-1])), "mask.step", step.tolist(), "increasing numbers")

    def counts(self, length: int) -> Int[Array, " N"]:
        """Return the number of columns that each row sees."""
        total, run = jnp.cumsum(jnp.asarray(self.sign)), jnp.asarray(self.run)
        before = jnp.where(run[1:] != run[:-1], total[:-1], 0)
        forgotten = jnp.pad(jax.lax.cummax(before), (1, 0))
        return (total - forgotten)[self.step]

    def dense(self, length: int) -> Bool[Array, "N N"]:
        """Return the mask as a matrix, rows first."""
        run, last = jnp.asarray(self.run), jnp.asarray(self.step)[:, None]
        counted = (jnp.arange(len(self.column)) <= last) & (run == run[last])
        signs = jnp.where(counted, self.sign, 0)
        return jnp.zeros((length, length), int).at[:, self.column].add(signs) > 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IntervalMask:
    """Row i sees the columns first_i..last_i, both included; none if last_i < first_i.

    Columns outside 0..N-1 are ignored.
    """

    first: Int[Array | np.ndarray, " N"]
    last: Int[Array | np.ndarray, " N"]

    def check(self, length: int) -> None:
        """Raise unless this is a mask for `length` tokens."""
        expect_array("mask.first", self.first, (length,), "integer")
        expect_array("mask.last", self.last, (length,), "integer")

    def counts(self, length: int) -> Int[Array, " N"]:
        """Return the number of columns that each row sees."""
        return jnp.maximum(jnp.minimum(self.last, length - 1) - jnp.maximum(self.first, 0) + 1, 0)

    def dense(self, length: int) -> Bool[Array, "N N"]:
        """Return the mask as a matrix, rows first."""
        column = jnp.arange(length)
        return (column >= jnp.asarray(self.first)[:, None]) & (column <= jnp.asarray(self.last)[:, None])


class _Parts:
    """A mask that is a union of R disjoint rectangles."""

    def factors(self) -> tuple[Bool[Array, "R N"], Bool[Array, "R N"]]:
        """Return the rows and the columns of each rectangle."""
        raise NotImplementedError

    def counts(self, length: int) -> Int[Array, " N"]:
        """Return the number of columns that each row sees."""
        rows, columns = self.factors()
        return columns.sum(axis=1) @ rows.astype(int)

    def dense(self, length: int) -> Bool[Array, "N N"]:
        """Return the mask as a matrix, rows first."""
        rows, columns = self.factors()
        return (rows[:, :, None] & columns[:, None, :]).any(axis=0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DistinctColumnsMask(_Parts):
    """R parts of the columns; row i sees all columns of part r or none of them."""

    part: Int[Array | np.ndarray, " N"]
    """part of each column, 0..R-1"""
    visible: Bool[Array | np.ndarray, "N R"]
    """whether each row sees each part"""

    def check(self, length: int) -> None:
        """Raise unless this is a mask for `length` tokens."""
        expect_array("mask.part", self.part, (length,), "integer")
        expect_array("mask.visible", self.visible, (length, "R"), "bool")
        _expect_range("mask.part", self.part, self.visible.shape[1])

    def factors(self) -> tuple[Bool[Array, "R N"], Bool[Array, "R N"]]:
        """Return the rows and the columns of each rectangle."""
        return jnp.asarray(self.visible).T, _members(self.part, self.visible.shape[1])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DistinctRowsMask(_Parts):
    """R parts of the rows; all rows of part r see the same columns."""

    part: Int[Array | np.ndarray, " N"]
    """part of each row, 0..R-1"""
    visible: Bool[Array | np.ndarray, "R N"]
    """whether the rows of each part see each column"""

    def check(self, length: int) -> None:
        """Raise unless this is a mask for `length` tokens."""
        expect_array("mask.part", self.part, (length,), "integer")
        expect_array("mask.visible", self.visible, ("R", length), "bool")
        _expect_range("mask.part", self.part, self.visible.shape[0])

    def factors(self) -> tuple[Bool[Array, "R N"], Bool[Array, "R N"]]:
        """Return the rows and the columns of each rectangle."""
        return _members(self.part, self.visible.shape[0]), jnp.asarray(self.visible)


StructuredMask = CausalMask | RowChangeMask | IntervalMask | DistinctColumnsMask | DistinctRowsMask
"""Any of the masks with structure, as `masked_low_rank` takes them."""


def row_changes(mask: Shaped[np.ndarray, "N N"] | IntervalMask) -> Int[np.ndarray, " N"]:
    """Return B_j, the number of columns in which each row differs from the one before (the first: from none).

    Args:
        mask: a dense mask of zeros and ones, or intervals; as for `row_change_mask`.
    """
    return np.array([len(added) + len(removed) for added, removed, _ in _changes(mask)])


def row_change_mask(
    mask: Shaped[np.ndarray, "N N"] | IntervalMask, *, restart: bool = True, steps: int | None = None
) -> RowChangeMask:
    """Convert any mask to the changes from row to row.

    Args:
        mask: a dense mask of zeros and ones, or intervals, which take O(N + sum_j B_j) instead of O(N^2).
        restart: restart a row with fewer columns than changes from no columns. Not in the paper's algorithm,
            but shorter (N steps for causal blocks) and without subtraction.
        steps: pad to this many steps E, so that masks of one length share one compiled program.

    Raises:
        TypeError, ValueError: not such a mask, or more changes than `steps`.
    """
    entries: list[tuple[int, int, int]] = []
    step: list[int] = []
    number = 0
    for added, removed, present in _changes(mask):
        if restart and len(present) < len(added) + len(removed):
            number, added, removed = number + 1, present, ()
        changes = [(j, 1) for j in added] + [(j, -1) for j in removed]
        entries.extend((j, change, number) for j, change in changes or [(0, 0)])
        step.append(len(entries) - 1)
    size = len(entries) if steps is None else steps
    expect(size >= len(entries), "steps", steps, f"at least {len(entries)}, those of the mask")
    column, sign, run = np.array(entries, np.int32).reshape(-1, 3).T
    pad = (0, size - len(entries))
    runs, last = np.pad(run, pad, mode="edge"), np.array(step, np.int32)
    return RowChangeMask(np.pad(column, pad), np.pad(sign, pad), runs, last)


def interval_mask(mask: Shaped[np.ndarray, "N N"]) -> IntervalMask:
    """Convert a dense mask of zeros and ones whose rows are intervals.

    Raises:
        TypeError, ValueError: not such a mask; names the row with a gap.
    """
    dense = _expect_dense(mask)
    length = len(dense)
    count = dense.sum(axis=1)
    first = np.where(count > 0, dense.argmax(axis=1), 0)
    last = np.where(count > 0, length - 1 - dense[:, ::-1].argmax(axis=1), -1)
    gaps = np.flatnonzero(count != last - first + 1)
    if len(gaps):
        row = int(gaps[0])
        expect(False, f"mask[{row}]", np.flatnonzero(dense[row]).tolist(), "neighbouring columns")
    return IntervalMask(first.astype(np.int32), last.astype(np.int32))


def distinct_columns_mask(mask: Shaped[np.ndarray, "N N"]) -> DistinctColumnsMask:
    """Convert a dense mask of zeros and ones to its R = `visible.shape[1]` distinct columns."""
    visible, part = np.unique(_expect_dense(mask), axis=1, return_inverse=True)
    return DistinctColumnsMask(part.reshape(-1).astype(np.int32), visible)


def distinct_rows_mask(mask: Shaped[np.ndarray, "N N"]) -> DistinctRowsMask:
    """Convert a dense mask of zeros and ones to its R = `len(visible)` distinct rows."""
    visible, part = np.unique(_expect_dense(mask), axis=0, return_inverse=True)
    return DistinctRowsMask(part.reshape(-1).astype(np.int32), visible)


def band_mask(length: int, width: int) -> IntervalMask:
    """Return a causal sliding window: row i sees the `width` columns up to i.

    Args:
        length: N tokens.
        width: visible tokens, the row's own included.
    """
    expect(length >= 1, "length", length, "at least 1")
    expect(width >= 1, "width", width, "at least 1")
    last = np.arange(length, dtype=np.int32)
    return IntervalMask(np.maximum(last - width + 1, 0), last)


def block_mask(length: int, size: int, shift: int = 0) -> IntervalMask:
    """Return causal blocks: row i sees the columns of its block up to i.

    Args:
        length: N tokens.
        size: tokens per block.
        shift: length of a shortened first block, which shifts the others; LongLoRA shifts the blocks of half
            of its heads by half a block.
    """
    expect(length >= 1, "length", length, "at least 1")
    expect(size >= 1, "size", size, "at least 1")
    expect(0 <= shift < size, "shift", shift, f"0 to size - 1 = {size - 1}")
    last = np.arange(length, dtype=np.int32)
    return IntervalMask(np.maximum((last - shift) // size * size + shift, 0), last)


def mask_gallery() -> dict[str, StructuredMask]:
    """Return an example of size 16 for each of the three panels of the paper's figure 3, and two more.

    The figure's entries are not printed: these masks have its structures, not its pixels. Its left panel is
    LongLoRA's pattern.
    """
    centre = np.array([0, 2, 1, 4, 5, 3, 7, 9, 8, 6, 11, 10, 13, 12, 15, 14], np.int32)
    reach = np.array([3, 1, 2], np.int32)[np.arange(16) % 3]
    kinds = np.stack([np.arange(16) < 6, np.arange(16) % 2 == 0, np.arange(16) >= 9])
    part = np.array([0, 0, 1, 0, 2, 2, 1, 1, 0, 2, 1, 2, 0, 1, 2, 0], np.int32)
    return {
        "row change": row_change_mask(block_mask(16, 4, shift=2)),
        "continuous rows": IntervalMask(centre - reach, centre + reach),
        "distinct 3 rows": DistinctRowsMask(part, kinds),
        "distinct 3 columns": DistinctColumnsMask(part, kinds.T),
        "causal": CausalMask(),
    }


def _changes(
    mask: Shaped[np.ndarray, "N N"] | IntervalMask,
) -> Iterator[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
    """Yield for each row the columns added, the columns removed, and its columns."""
    if isinstance(mask, IntervalMask):
        expect_array("mask.first", mask.first, ("N",), "integer")
        length = len(mask.first)
        mask.check(length)
        first, last = np.maximum(mask.first, 0).tolist(), np.minimum(mask.last, length - 1).tolist()
        rows = [range(low, max(high + 1, low)) for low, high in zip(first, last, strict=True)]
        before = range(0)
        for row in rows:
            yield _without(row, before), _without(before, row), row
            before = row
        return
    before = np.zeros(len(mask), bool)
    for row in _expect_dense(mask):
        added, removed = np.flatnonzero(row & ~before), np.flatnonzero(before & ~row)
        yield added.tolist(), removed.tolist(), np.flatnonzero(row).tolist()
        before = row


def _without(one: range, other: range) -> list[int]:
    if not one or not other:
        return list(one)
    below, above = range(one.start, min(one.stop, other.start)), range(max(one.start, other.stop), one.stop)
    return list(chain(below, above))


def _members(part: Int[Array | np.ndarray, " N"], parts: int) -> Bool[Array, "R N"]:
    return jnp.arange(parts)[:, None] == jnp.asarray(part)


def _expect_dense(mask: Shaped[np.ndarray, "N N"]) -> Bool[np.ndarray, "N N"]:
    expect_array("mask", mask, ("N", "N"))
    expect_array("mask", mask, (len(mask), len(mask)))
    dense = np.asarray(mask)
    unknown = dense[(dense != 0) & (dense != 1)]
    expect(unknown.size == 0, "mask", unknown[:3].tolist(), "zeros and ones")
    return dense.astype(bool)


def _expect_range(name: str, values: Int[Array | np.ndarray, " _"], size: int) -> None:
    """Check indices unless they are traced."""
    if not isinstance(values, Tracer):
        low, high = int(np.min(values)), int(np.max(values))
        expect(low >= 0 and high < size, name, (low, high), f"from 0 to {size - 1}")
