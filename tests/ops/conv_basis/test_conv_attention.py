"""Conv-basis attention: definition, exactness, bounds, rounding, the laws of a state, and both gradients."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from based_jax.ops.conv_basis import conv_attention_fft
from tests.arrays import array, blank
from tests.marks import release_but, slow_but
from tests.ops import draw
from tests.ops.conv_basis import conv_basis_cases as cases
from tests.ops.conv_basis.conv_basis_cases import STATIC, attend, in_one_head, softmax
from tests.tolerances import BFLOAT16, FINITE_DIFFERENCE, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close

conv_attention = sys.modules[
    "based_jax.ops.conv_basis.conv_attention"
]  # the package has a function of that name
IN_ARRAYS = functools.partial(jax.jit, static_argnames=tuple(name for name in STATIC if name != "starts"))
_attend_at = IN_ARRAYS(ops.conv_attention)


def attend_at(*arrays, **how):
    return jax.tree.map(np.asarray, _attend_at(*arrays, **how))


LENGTH = 21
STARTS = (0, 1, 5, 12, 40)
"""one after the text"""


def numbers(seed, length=LENGTH, rows=2, dtype=np.float64):
    """q, k, v with 2 heads; scores of a few units."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rows, length, 2, size)).astype(dtype) for size in (4, 4, 3)]


def defined(q, k, v, starts, ids=None, counts=None):
    """The definition, entry by entry; starts: one sequence, or (B, H, A). Masked outputs are 0."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    y = np.zeros_like(v)
    for b, i, h in np.ndindex(v.shape[:3]):
        if counts is not None and i >= counts[b]:
            continue
        document = i
        while document and (ids is None or ids[b, document] == ids[b, document - 1]):
            document -= 1
        own = np.asarray(starts if isinstance(starts, tuple) else starts[b, h])
        columns = range(document, i + 1)
        anchors = [document + own[own <= j - document].max() for j in columns]
        scores = np.array([q[b, a + i - j, h] @ k[b, a, h] for a, j in zip(anchors, columns, strict=True)])
        weights = np.exp((scores - scores.max()) / 2)
        y[b, i, h] = weights @ v[b, columns, h] / weights.sum()
    return y


@pytest.mark.parametrize("own", slow_but([False], [False, True], core=[]))
def test_both_implementations_are_the_definition(by_fft, own):
    """Segments of a tuple, or of each row and head; padding; float64 and float32."""
    run = attend_at if own else attend

    @given(draw.seeds, draw.counts(2, LENGTH))
    @settings(max_examples=5)
    def law(seed, counts):
        q, k, v = numbers(seed)
        starts = STARTS
        if own:
            later = np.random.default_rng(seed).integers(1, LENGTH + 2, (2, 2, 3))
            starts = np.pad(np.sort(later), [(0, 0), (0, 0), (1, 0)]).astype(np.int32)
        mask = draw.mask(counts, LENGTH)
        real = mask[..., None, None]
        q, k, v = (np.where(real, x, 30.0) for x in (q, k, v))
        expected = defined(q, k, v, starts, counts=counts)
        how = {"starts": starts, "mask": mask}
        with jax.enable_x64(True):
            for name in ("reference", "xla"):
                y = np.asarray(run(q, k, v, implementation=name, **how))
                assert_close(np.where(real, y, 0), expected, FLOAT64)
        y = run(*(x.astype(np.float32) for x in (q, k, v)), **how)
        assert_close(np.where(real, y, 0), expected, FLOAT32)

    law()


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "largest"), [(2.2, 24), (4.4, 48)])
def test_drowned_rows_are_computed_again(monkeypatch, scale, largest):
    """float32, scores up to 24 and 48. Such scores themselves are rounded by 6e-8 times as much."""
    monkeypatch.setattr(conv_attention_fft, "FFT_COST", 0.0)
    case = cases.piecewise_rope(600, 16, [0, 101, 300], scale=scale)
    assert largest * 0.8 < np.abs(case.scores).max() < largest * 1.25
    v = np.random.default_rng(1).normal(size=(600, 2))
    expected = softmax(case.scores, v)

    def errors():
        run = jax.jit(functools.partial(ops.conv_attention, starts=(0, 101, 300), scale=1.0))
        y = np.asarray(run(*(x.astype(np.float32) for x in in_one_head(case.q, case.k, v))))
        return np.abs(y[0, :, 0] - expected).max() / np.abs(v).max()

    assert errors() < (FLOAT32 if largest < 40 else 2 * FLOAT32)
    monkeypatch.setitem(conv_attention_fft.PRECISION, "float32", np.inf)
    assert not errors() < 3e-4


@pytest.mark.release
def test_causality(by_fft):
    """Fixed starts: to rounding by FFT, to the last bit otherwise. Starts that are found see the future."""
    q, k, v = numbers(3, dtype=np.float32)
    other = [np.concatenate([x[:, :13], -2 * x[:, 13:]], axis=1) for x in (q, k, v)]
    for name, tolerance in (("xla", FLOAT32), ("reference", 0.0)):
        before, after = (attend(*x, starts=STARTS, implementation=name) for x in ((q, k, v), other))
        assert_close(before[:, :13], after[:, :13], tolerance)
        assert np.abs(before[:, 13:] - after[:, 13:]).max() > 0.1
    before, after = (attend(*x, num_bases=5) for x in ((q, k, v), other))
    assert np.abs(before[:, :13] - after[:, :13]).max() > 0.1


def state_for(starts, dtype=jnp.float64):
    return blank(ops.init_conv_attention_state, 2, LENGTH, len(starts), 2, 4, 3, dtype)


@pytest.mark.release
@pytest.mark.parametrize("case", release_but([(128, True)], [(128, True), (3, False)]))
def test_decoding_is_exact(monkeypatch, case):
    """Token by token and in chunks, by blocks of rows, packed or not, in float64 against the definition."""
    block, packed = case
    monkeypatch.setattr(conv_attention, "BLOCK", block)
    monkeypatch.setattr(conv_attention_fft, "BLOCK", block)
    compiled = jax.jit(lambda *arrays, **how: ops.conv_attention(*arrays, **how), static_argnames=STATIC)

    def step(*arrays, **how):
        return jax.tree.map(np.asarray, compiled(*arrays, **how))

    @given(draw.seeds, draw.segment_ids(2, LENGTH))
    @settings(max_examples=3)
    def law(seed, ids):
        q, k, v = numbers(seed)
        segments = ids if packed else None
        expected = defined(q, k, v, STARTS, segments)
        with jax.enable_x64(True):
            if packed:
                whole = attend(q, k, v, starts=STARTS, segment_ids=ids)
                assert_close(whole, expected, 1e-12)
            state, outputs, begin = state_for(STARTS), [], 0
            for size in (1, 8, 1, 1, 8, 1, 1):
                chunk = slice(begin, begin + size)
                part = ids[:, chunk] if packed else None
                how = {"starts": STARTS, "initial_state": state, "segment_ids": part}
                y, state = step(*(x[:, chunk] for x in (q, k, v)), return_state=True, **how)
                outputs.append(y)
                begin += size
        assert begin == LENGTH
        assert_close(np.concatenate(outputs, axis=1), expected, 1e-12)

    law()


@pytest.mark.slow
def test_the_surrogate_does_not_pass_through_a_state():
    q, k, v = numbers(0, dtype=np.float32)

    def loss(q, gradient):
        how = {"initial_state": state_for(STARTS, jnp.float32), "gradient": gradient}
        return ops.conv_attention(q, *map(array, (k, v)), starts=STARTS, **how).sum()

    assert np.any(jax.jit(jax.grad(loss), static_argnums=1)(q, "anchors"))
    with pytest.raises(ValueError, match="gradient = 'surrogate': expected 'anchors'"):
        jax.jit(jax.grad(loss), static_argnums=1)(q, "surrogate")


def test_low_precision(by_fft):
    """Scores and sums are float32."""
    q, k, v = (array(x, jnp.bfloat16) for x in numbers(4))
    expected = defined(q, k, v, STARTS)
    y = attend(q, k, v, starts=STARTS)
    assert y.dtype == jnp.bfloat16
    assert_close(y, expected, BFLOAT16)


@pytest.mark.parametrize("implementation", release_but(["xla"], ["xla", "reference"]))
def test_one_token(by_fft, implementation):
    q, k, v = numbers(5, length=1, dtype=np.float32)
    for how in ({"starts": STARTS}, {"num_bases": 1}):
        assert_close(attend(q, k, v, implementation=implementation, **how), v, FLOAT32)


def test_more_pairs_than_int32_counts():
    x = jax.ShapeDtypeStruct((1, 46_341, 1, 4), jnp.float32)
    with pytest.raises(ValueError, match="N = 46341: expected at most 46340 tokens"):
        jax.eval_shape(lambda x: ops.conv_attention(x, x, x, starts=(0,), implementation="reference"), x)


@pytest.mark.release
def test_a_text_longer_than_its_state():
    q, k, v = (x[:, :3] for x in numbers(0, dtype=np.float32))
    state = blank(ops.init_conv_attention_state, 2, 4, 2, 2, 4, 3)
    how = {"starts": (0, 2), "return_state": True}
    mask = np.arange(3) < np.array([[3], [1]])
    _, state = attend(q, k, v, initial_state=state, mask=mask, **how)
    with pytest.raises(ValueError, match="length = 6: expected at most max_length = 4 tokens"):
        ops.conv_attention(*map(array, (q, k, v)), initial_state=state, **how)
    y, _ = attend(q, k, v, initial_state=state, **how)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


@dataclasses.dataclass
class Differentiated:
    """Scores with a conv basis, and the gradients of softmax attention, float64."""

    case: cases.ConvCase
    arrays: list[np.ndarray]
    weights: np.ndarray
    mask: jax.Array
    exact: tuple[np.ndarray, ...]

    def gradients(self, dtype=np.float64, **how):
        """Of q, k and v for a weighted sum of real outputs."""

        def loss(q, k, v):
            return (ops.conv_attention(q, k, v, mask=self.mask, **how) * self.weights).sum()

        arrays = [x.astype(dtype) for x in self.arrays]
        return jax.tree.map(np.asarray, jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays))

    def of_softmax(self):
        """In NumPy."""
        q, k, v = (x[0, :, 0] for x in self.arrays)
        weights, scores = (
            self.weights[0, :, 0],
            np.where(np.tri(len(q)), q @ k.T / np.sqrt(q.shape[1]), -np.inf),
        )
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        of_p = weights @ v.T
        of_scores = p * (of_p - (p * of_p).sum(-1, keepdims=True)) / np.sqrt(q.shape[1])
        return tuple(x[None, :, None] for x in (of_scores @ k, of_scores.T @ q, p.T @ weights))


@pytest.fixture(scope="module")
def rope():
    case = cases.piecewise_rope(40, 4, [0, 9, 25], scale=0.7)
    v, weights = np.random.default_rng(2).normal(size=(2, 40, 3))
    mask = array(np.arange(40)[None] < 37)
    weights = weights[None, :, None] * np.asarray(mask)[..., None, None]
    rope = Differentiated(case, in_one_head(case.q, case.k, v), weights, mask, ())
    return dataclasses.replace(rope, exact=rope.of_softmax())


@pytest.mark.slow
def test_the_surrogate_is_attentions_gradient(rope, monkeypatch):
    """Section 5 where scores have a conv basis, in chunks that do not divide the channels."""
    run = functools.partial(rope.gradients, starts=(0, 9, 25))
    with jax.enable_x64(True):
        assert_close(run(implementation="reference"), rope.exact, 1e-12)
        assert_close(run(), rope.exact, 1e-12)  # by rows
    monkeypatch.setattr(conv_attention_fft, "FFT_COST", 0.0)
    monkeypatch.setattr(conv_attention_fft, "BLOCK", 16)
    monkeypatch.setattr(conv_attention_fft, "PRODUCTS", 12)
    with jax.enable_x64(True):
        actual = run()
    assert_close(actual, rope.exact, 1e-12)
    assert not np.any([x[:, 37:].any() for x in actual])
    assert_close(run(dtype=np.float32), rope.exact, FLOAT32_GRADIENT)


@pytest.mark.slow
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
    slope = sum((g * d).sum() for g, d in zip(own, direction, strict=True))
    assert_close(((ahead - after) * rope.weights).sum() / (2 * step), slope, FINITE_DIFFERENCE)
    assert np.flatnonzero(np.any(own[1][0, :, 0], axis=-1)).tolist() == [0, 9, 25]
    assert_close(own[2], rope.exact[2], FLOAT64)
    for of_attention, of_anchors in zip(rope.exact[:2], own[:2], strict=True):
        assert np.abs(of_attention - of_anchors).max() > 0.5 * np.abs(of_attention).max()
