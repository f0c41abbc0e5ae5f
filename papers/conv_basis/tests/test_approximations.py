"""Inputs with a known basis, and scores that are replaced by segments: against the definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.conv_basis import approximations as near
from papers.conv_basis import inputs

LENGTH, WIDTH = 48, 8


def drawn(draw, seed=0):
    return draw(np.random.default_rng(seed), LENGTH, WIDTH)


def random_case(seed, length):
    """Scores, and starts of a random number of segments."""
    rng = np.random.default_rng(seed)
    starts = np.union1d(0, rng.integers(0, length, rng.integers(0, length)))
    return np.tril(rng.normal(size=(length, length))), starts


@pytest.mark.parametrize("draw", inputs.STRUCTURED.values(), ids=lambda draw: draw.__name__)
def test_structured_inputs_have_the_segments_that_they_say(draw):
    case = drawn(draw)
    scores = np.tril(case.q @ case.k.T)
    # A column is off by the noise, and so is the anchor.
    tolerance = 2 * case.noise + 1e-12 * np.abs(scores).max()
    _, sizes = ops.conv_decompose(scores, tolerance)
    assert (LENGTH - sizes).tolist() == case.starts.tolist()
    assert np.abs(near.anchored(scores, case.starts) - scores).max() <= tolerance
    assert (np.diff(case.starts, append=LENGTH) >= 8).all()  # so that windows of 8 lags can tell them apart
    if case.noise:
        assert near.minimal_terms(scores, case.noise / 100) > LENGTH // 2


def test_the_paper_s_vectors_have_their_distances():
    """|x_i - x_j|^2 depends on i - j (lemmas A.18 to A.20); circulant scores wrap around (A.21)."""
    for draw in (inputs.complex_exponential, inputs.cos_and_sin, inputs.orthonormal, inputs.orthonormal_odd):
        x = drawn(draw).q
        np.testing.assert_array_equal(x, drawn(draw).k)
        distances = ((x[:, None] - x) ** 2).sum(axis=-1)
        np.testing.assert_allclose(distances[1:, 1:], distances[:-1, :-1], atol=1e-12)
    assert drawn(inputs.orthonormal_odd).q.shape[1] == WIDTH - 1
    case = drawn(inputs.circulant)
    scores = case.q @ case.k.T
    np.testing.assert_allclose(np.roll(scores, (1, 1), (0, 1)), scores, atol=1e-12)
    assert np.linalg.matrix_rank(scores) == WIDTH


@given(st.integers(0, 1000), st.integers(1, 12))
def test_anchors_are_the_first_columns_and_means_are_the_nearest(seed, length):
    scores, starts = random_case(seed, length)
    anchored, averaged = near.anchored(scores, starts), near.averaged(scores, starts)
    lower = range(length)
    segment = [max(s for s in starts if s <= j) for j in lower]
    for j in lower:
        for i in range(j, length):
            s = segment[j]
            assert anchored[i, j] == scores[s + i - j, s]
            same = [scores[m + i - j, m] for m in lower if segment[m] == s and m + i - j < length]
            assert averaged[i, j] == pytest.approx(np.mean(same), abs=1e-12)
    assert not np.triu(anchored, 1).any()
    assert not np.triu(averaged, 1).any()
    everywhere = np.arange(length)
    np.testing.assert_array_equal(near.anchored(scores, everywhere), scores)
    np.testing.assert_allclose(near.averaged(scores, everywhere), scores, atol=1e-12)


def test_curves_of_known_segments():
    """Recovered starts do what they can; all columns are exact; no line is better than the nearest scores."""
    case = drawn(inputs.rotary_segments)
    v = np.random.default_rng(1).normal(size=(LENGTH, WIDTH))
    terms = [1, 4, LENGTH]
    assert near.recovered_starts(case.q, case.k, terms)[4].tolist() == case.starts.tolist()
    head = near.Head(case.q, case.k, v)
    lines = near.curves([head, head], terms)
    assert list(lines) == [*near.LINES, near.UNIFORM]
    one, four, everything = lines["recovered, anchors"]
    assert one[0] == 1
    assert one[1] > 0.05
    assert four[0] == 4
    assert max(four[1:]) < 1e-12
    assert everything[0] == LENGTH - near.WINDOW + 1
    for line in ("equal, anchors", "equal, means"):
        assert [count for count, _, _ in lines[line]] == terms
        assert max(lines[line][-1][1:]) < 1e-12
        assert lines[line][0][1] > 0.05
    averages = np.cumsum(v, axis=0) / np.arange(1, LENGTH + 1)[:, None]
    exact = near.attend(case.q @ case.k.T, v)
    assert lines[near.UNIFORM][0][1] == pytest.approx(near.relative_error(averages, exact))


def test_how_toeplitz_scores_are():
    case = drawn(inputs.toeplitz)
    assert near.toeplitz_share(case.q @ case.k.T) == pytest.approx(1)
    # Of independent scores each of N means takes one of N (N + 1) / 2 degrees of freedom.
    shares = [near.toeplitz_share(np.random.default_rng(i).normal(size=(40, 40))) for i in range(20)]
    assert np.mean(shares) == pytest.approx(2 / 41, rel=0.2)


def test_geometric_starts_are_powers_of_two():
    assert near.geometric_starts(64, 7).tolist() == [0, 1, 2, 4, 8, 16, 32]
