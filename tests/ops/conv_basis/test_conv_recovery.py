"""Segments found in queries and keys: exactly where the paper promises it, and what happens elsewhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax.ops import conv_basis
from based_jax.ops.conv_basis.conv_recovery import COLUMNS, SEARCHES
from tests.arrays import array
from tests.ops import draw
from tests.ops.conv_basis.conv_basis_cases import full_rank
from tests.tolerances import BFLOAT16, FLOAT64, assert_close

ROWS, LENGTH, TERMS, WIDTH = 8, 40, 4, 4
"""One program for all laws: texts in as many rows, with as many channels as tokens"""


@functools.partial(jax.jit, static_argnames="search")
def recover(q, k, thresholds, counts, *, search="binary"):
    """Starts and anchors of the first tokens of texts (R, N, K), each with its own threshold."""

    def one(q, k, threshold, count):
        q, k, options = q[None, :, None], k[None, :, None], {"terms": TERMS, "width": WIDTH}
        mask = (jnp.arange(LENGTH) < count)[None]
        starts = conv_basis.conv_recover(q, k, threshold=threshold, search=search, mask=mask, **options)
        return starts, conv_basis.conv_anchors(q, k, starts, mask)

    starts, anchors = jax.vmap(one)(q, k, thresholds, counts)
    return starts[:, 0, 0], anchors[:, 0, 0]


def defined(scores, terms, width, threshold, search):
    """The starts by the definition of each search, column by column of the scores (N, N)."""
    length = len(scores)
    last = length - width
    window = [scores[j : j + width, j] for j in range(last + 1)]

    def differs(j, s):
        return np.abs(window[j] - window[s]).sum() >= threshold

    starts = [0]
    if search == "largest":
        differences = {j: scores[j:, j] - scores[j - 1 : -1, j - 1] for j in range(1, length)}
        changes = {j: np.abs(column[:width]).sum() for j, column in differences.items()}
        order = sorted(changes, key=lambda j: -changes[j])
        starts += sorted(j for j in order[: terms - 1] if changes[j] >= threshold)
    elif search == "binary":
        while len(starts) < terms:
            low, high = starts[-1] + 1, last
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if differs(middle, starts[-1]) else (middle + 1, high)
            starts.append(min(low, length))
    else:
        for j in range(last + 1):
            if j > starts[-1] and differs(j, starts[-1]):
                starts.append(j)
    return [0, *(s for s in starts[1:terms] if s < length)]


@pytest.mark.parametrize("search", SEARCHES)
def test_the_definition(search):
    """On any scores, whether they have a basis or not, of texts that end anywhere."""

    @given(draw.seeds, draw.counts(ROWS, LENGTH))
    @settings(max_examples=5)
    def law(seed, counts):
        rng = np.random.default_rng(seed)
        q, k = rng.normal(size=(2, ROWS, LENGTH, LENGTH))
        # Of windows whose differences are 22 +- 8: few starts, some, and many.
        k[:, 1:] = np.where(rng.random((ROWS, LENGTH - 1, 1)) < 0.5, k[:, 1:], k[:, :-1])
        thresholds = rng.uniform(0, 60, ROWS)
        with jax.enable_x64(True):
            starts, anchors = recover(q, k, thresholds, counts, search=search)
        for row, count in enumerate(counts):
            scores = q[row, :count] @ k[row, :count].T
            expected = defined(scores, TERMS, WIDTH, thresholds[row], search)
            assert starts[row].tolist() == expected + [LENGTH] * (TERMS - len(expected))
            columns = np.zeros((TERMS, LENGTH))
            for r, s in enumerate(expected if count else []):
                columns[r, : count - s] = scores[s:, s]
            assert_close(anchors[row], columns, FLOAT64)

    law()


def test_rows_and_heads_are_apart():
    """A batch of different texts, each as it is alone; scores of bfloat16 inputs are in float32."""
    cases = [full_rank(12, [0, first, 6 + first], seed=first) for first in range(1, 5)]
    q, k = (np.stack([getattr(case, name) for case in cases]) for name in "qk")
    q, k = (array(x.reshape(2, 2, 12, 12).swapaxes(1, 2), jnp.bfloat16) for x in (q, k))
    threshold = min(case.separation(2) for case in cases) / 2
    starts = conv_basis.conv_recover(q, k, terms=3, width=2, threshold=threshold)
    anchors = conv_basis.conv_anchors(q, k, starts)
    assert anchors.dtype == jnp.float32
    for row, head in np.ndindex(2, 2):
        case = cases[2 * row + head]
        assert starts[row, head].tolist() == case.starts.tolist()
        assert_close(anchors[row, head], case.anchors, BFLOAT16)


@pytest.mark.parametrize("length", [7, COLUMNS + 21])
def test_score_error(length):
    """Against the dense matrices, for fewer and more columns than a block has; of texts that end earlier."""
    rng = np.random.default_rng(length)
    q, k = rng.normal(size=(2, 2, length, 2, 3))
    starts = np.sort(rng.choice(length, (2, 2, 3)), axis=-1).astype(np.int32)
    starts[..., 0] = 0
    counts = np.array([length, length // 2])
    with jax.enable_x64(True):
        error = conv_basis.conv_score_error(q, k, starts, np.arange(length) < counts[:, None])
    for row, head in np.ndindex(2, 2):
        scores = np.tril(q[row, :, head] @ k[row, :, head].T)
        own = np.unique(starts[row, head])
        anchors = np.stack([np.append(scores[s:, s], np.zeros(s)) for s in own])
        off = np.abs(scores - conv_basis.conv_matrix(anchors, own))
        assert error[row, head] == pytest.approx(off[: counts[row]].max(), abs=1e-12)
