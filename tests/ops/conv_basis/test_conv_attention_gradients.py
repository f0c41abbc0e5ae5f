"""Conv-basis attention: both gradients, and the training loss of the paper."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.conv_basis import conv_attention_fft
from tests.arrays import array
from tests.ops.conv_basis import conv_basis_cases as cases
from tests.ops.conv_basis.conv_basis_cases import attend, in_one_head
from tests.tolerances import FINITE_DIFFERENCE, FLOAT32_GRADIENT, FLOAT64, assert_close


@dataclasses.dataclass
class Differentiated:
    """Scores with a conv basis, and the gradients of softmax attention, float64."""

    case: cases.ConvCase
    arrays: list[np.ndarray]
    weights: np.ndarray
    mask: jax.Array
    exact: tuple[np.ndarray, ...]

    def gradients(self, function=ops.conv_attention, dtype=np.float64, **how):
        """Of q, k and v for a weighted sum of real outputs."""

        def loss(q, k, v):
            return (function(q, k, v, mask=self.mask, **how) * self.weights).sum()

        arrays = [x.astype(dtype) for x in self.arrays]
        return jax.tree.map(np.asarray, jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays))


@pytest.fixture(scope="module")
def rope():
    case = cases.piecewise_rope(40, 4, [0, 9, 25], scale=0.7)
    v, weights = np.random.default_rng(2).normal(size=(2, 40, 3))
    mask = array(np.arange(40)[None] < 37)
    weights = weights[None, :, None] * np.asarray(mask)[..., None, None]
    rope = Differentiated(case, in_one_head(case.q, case.k, v), weights, mask, ())
    with jax.enable_x64(True):
        return dataclasses.replace(rope, exact=rope.gradients(ops.softmax_attention))


def test_the_surrogate_is_attentions_gradient(rope, monkeypatch):
    """Section 5 where scores have a conv basis, in blocks that do not divide the text."""
    run = functools.partial(rope.gradients, starts=(0, 9, 25))
    with jax.enable_x64(True):
        assert_close(run(implementation="reference"), rope.exact, 1e-12)
        assert_close(run(), rope.exact, 1e-12)  # by rows
    monkeypatch.setattr(conv_attention_fft, "FFT_COST", 0.0)
    monkeypatch.setattr(conv_attention_fft, "BLOCK", 16)
    with jax.enable_x64(True):
        actual = run()
    assert_close(actual, rope.exact, 1e-12)
    assert not np.any([x[:, 37:].any() for x in actual])
    assert_close(run(dtype=np.float32), rope.exact, FLOAT32_GRADIENT)


@pytest.mark.release
def test_the_gradient_through_anchors_is_that_of_the_outputs(rope, by_fft):
    """Some rows go by FFT, some do not; it is not attention's, but for v."""
    run = functools.partial(rope.gradients, starts=(0, 9, 25), gradient="anchors")
    with jax.enable_x64(True):
        own = run(implementation="reference")
        assert_close(run(), own, FLOAT64)
        rng, step = np.random.default_rng(5), 1e-5
        direction = [rng.normal(size=x.shape) for x in rope.arrays]
        ahead, after = (
            np.asarray(attend(*moved, starts=(0, 9, 25)))
            for moved in (
                [x + way * d for x, d in zip(rope.arrays, direction, strict=True)] for way in (step, -step)
            )
        )
    assert_close(run(dtype=np.float32), own, FLOAT32_GRADIENT)
    slope = sum((g * d).sum() for g, d in zip(own, direction, strict=True))
    assert_close(((ahead - after) * rope.weights).sum() / (2 * step), slope, FINITE_DIFFERENCE)
    assert np.flatnonzero(np.any(own[1][0, :, 0], axis=-1)).tolist() == [0, 9, 25]
    assert_close(own[2], rope.exact[2], FLOAT64)
    for of_attention, of_anchors in zip(rope.exact[:2], own[:2], strict=True):
        assert np.abs(of_attention - of_anchors).max() > 0.5 * np.abs(of_attention).max()
