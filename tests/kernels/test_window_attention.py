"""The fused window attention: interpreted against float64, values and gradients."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from pallas_kernels import devices, interpreted, offline, supports_window_attention, tuning, window_attention
from pallas_kernels.window_attention import Variant
from tests.arrays import array
from tests.marks import slow_but
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close


class Shape(NamedTuple):
    """One compiled program."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    width: int
    value_size: int
    left: int
    queries: int = 16
    keys: int = 16

    @property
    def variants(self) -> dict[str, Variant]:
        """One for all kernels, small, so that short texts have several blocks."""
        return dict.fromkeys(("outputs", "dq", "dkv"), Variant(self.queries, self.keys, 4))


# One token; a window of one key; odd lengths and widths, blocks of two sizes, wider than the window and not.
SHAPES = [
    Shape(1, 1, 1, 1, 1, 1, 5),
    Shape(2, 37, 4, 2, 5, 3, 19, queries=32),
    Shape(1, 33, 2, 2, 16, 32, 0, keys=32),
    Shape(2, 61, 3, 1, 5, 3, 7),
    Shape(1, 150, 1, 1, 64, 64, 127, queries=64, keys=32),
]
BLOCKS_OF_16 = SHAPES[3]


class Drawn(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    weights: np.ndarray
    ids: np.ndarray
    counts: np.ndarray

    def __repr__(self) -> str:  # what hypothesis reports
        return f"Drawn(ids={self.ids.tolist()}, counts={self.counts.tolist()})"

    @property
    def starts(self) -> np.ndarray:
        return np.stack([oracles.segment_starts(row) for row in self.ids]).astype(np.int32)

    @property
    def real(self) -> np.ndarray:
        return (np.arange(self.ids.shape[1]) < self.counts[:, None])[..., None, None]


def plain(shape: Shape, seed: int = 0) -> Drawn:
    rng = np.random.default_rng(seed)
    tokens = shape.batch, shape.length
    sizes = [(shape.heads, shape.width), (shape.kv_heads, shape.width), (shape.kv_heads, shape.value_size)]
    sizes.append((shape.heads, shape.value_size))
    q, k, v, weights = (rng.normal(size=(*tokens, *size)) for size in sizes)
    return Drawn(q, k, v, weights, np.zeros(tokens, int), np.full(shape.batch, shape.length, np.int32))


@st.composite
def texts(draw_, shape: Shape) -> Drawn:
    drawn, tokens = plain(shape, draw_(draw.seeds)), (shape.batch, shape.length)
    ids, counts = draw_(draw.segment_ids(*tokens)), draw_(draw.counts(*tokens))
    return drawn._replace(ids=ids, counts=counts.astype(np.int32))


@functools.partial(jax.jit, static_argnames="shape")
def kernels(q, k, v, dy, starts, counts, *, shape: Shape):
    def attend(q, k, v):
        how: dict[str, Any] = {"left": shape.left, "variants": shape.variants}
        return window_attention(q, k, v, starts=starts, counts=counts, **how)

    with interpreted():
        y, pull_back = jax.vjp(attend, q, k, v)
        return y, pull_back(dy)


@functools.partial(jax.jit, static_argnames="left")
def reference(q, k, v, dy, ids, mask, *, left: int):
    def attend(q, k, v):
        how: dict[str, Any] = {"segment_ids": ids, "mask": mask, "implementation": "reference"}
        return ops.softmax_attention(q, k, v, left=left, **how)

    y, pull_back = jax.vjp(attend, q, k, v)
    return y, pull_back(dy)


def expected(drawn: Drawn, left: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """y and gradients in float64, 0 at padding."""
    with jax.enable_x64(True):
        arrays = [array(x * drawn.real, np.float64) for x in drawn[:4]]
        y, gradients = reference(*arrays, array(drawn.ids), array(drawn.real[..., 0, 0]), left=left)
        return np.asarray(y) * drawn.real, tuple(np.asarray(x) for x in gradients)


@pytest.mark.parametrize("shape", slow_but([SHAPES[0], BLOCKS_OF_16], SHAPES), ids=str)
def test_values_and_gradients(shape):
    """Segments and padding, which holds NaN: nobody sees it, and it gets zeros."""

    @settings(max_examples=6)
    @given(texts(shape))
    def law(drawn):
        noisy = [array(np.where(drawn.real, x, np.nan), jnp.float32) for x in drawn[:4]]
        y, gradients = kernels(*noisy, array(drawn.starts), array(drawn.counts), shape=shape)
        want, want_gradients = expected(drawn, shape.left)
        assert_close(y, want, FLOAT32, repr(drawn))
        assert_close(gradients, want_gradients, FLOAT32_GRADIENT, repr(drawn), magnitude=0.1)

    law()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("bfloat16", BFLOAT16), ("float16", FLOAT16)],
)
def test_half_precision(dtype, tolerance):
    """Values and gradients with the block sizes of the table, without segments and padding."""
    drawn = plain(Shape(2, 70, 2, 1, 24, 24, 40))
    q, k, v, dy = (array(x, dtype) for x in drawn[:4])

    @jax.jit
    def run(q, k, v, dy):
        y, pull_back = jax.vjp(functools.partial(window_attention, left=40), q, k, v)
        return y, pull_back(dy)

    with interpreted():
        y, gradients = run(q, k, v, dy)
    assert {x.dtype for x in (y, *gradients)} == {jnp.dtype(dtype)}
    rounded = drawn._replace(
        **{n: np.asarray(x, np.float64) for n, x in zip(Drawn._fields, (q, k, v, dy), strict=False)}
    )
    assert_close((y, gradients), expected(rounded, 40), tolerance)


@pytest.mark.parametrize("kind", ["huge", "equal", "zeros"])
def test_extreme_values(kind):
    """Integers, so that scores of 1e5 are exact: no overflow, no NaN, forward and backward."""
    shape = BLOCKS_OF_16
    drawn = plain(shape)
    if kind == "huge":
        rng = np.random.default_rng(1)
        q, k = (rng.integers(-250, 250, size=x.shape).astype(np.float64) for x in drawn[:2])
        drawn = drawn._replace(q=q, k=k)
    elif kind == "equal":
        drawn = drawn._replace(k=0 * drawn.k + drawn.k[:, :1])
    else:
        drawn = drawn._replace(q=0 * drawn.q, k=0 * drawn.k)
    arrays = [array(x, jnp.float32) for x in drawn[:4]]
    results = kernels(*arrays, array(drawn.starts), array(drawn.counts), shape=shape)
    assert_close(results[0], expected(drawn, shape.left)[0], FLOAT32)
    chex.assert_tree_all_finite(results[1])


def test_nan_reaches_no_block_that_does_not_see_it():
    """Token 20 is in the second block of 16; with 7 past keys the third block sees it, the fifth does not."""
    shape, at = BLOCKS_OF_16, 20
    drawn = plain(shape)
    for x in drawn[:4]:
        x[:, at] = np.nan
    arrays = [array(x, jnp.float32) for x in drawn[:4]]
    y, gradients = kernels(*arrays, array(drawn.starts), array(drawn.counts), shape=shape)
    for x in (y, *gradients):
        assert np.isnan(x[:, at]).all()
        assert np.isfinite(x[:, 48:]).all()
    assert np.isfinite(y[:, :16]).all()


def test_supports_says_when_shared_memory_is_too_small(monkeypatch):
    q, k, v = [jax.ShapeDtypeStruct((2, 3, 2, 8), "float32")] * 3
    rows = [row | {"shared": devices.SMALLEST + 1} for row in tuning.table("window_attention")]
    monkeypatch.setattr(tuning, "table", lambda op: rows)
    assert supports_window_attention(q, k, v) is None  # no GPU: nothing to fit into
    with offline.lowering_for("NVIDIA GeForce RTX 4090"):
        assert "shared memory" in str(supports_window_attention(q, k, v))


def test_a_key_that_is_no_number_leaves_no_gradient_a_number(monkeypatch):
    """Triton's maximum of NaN and a number is the number: here that of the interpreter is, too."""
    q, k, v = (jnp.asarray(x, jnp.float32) for x in np.random.default_rng(0).normal(size=(3, 1, 16, 1, 16)))
    largest, maximum = jnp.max, jnp.maximum

    def of_numbers(x, y):
        return jnp.where(jnp.isnan(x), y, jnp.where(jnp.isnan(y), x, maximum(x, y)))

    monkeypatch.setattr(jnp, "maximum", of_numbers)
    monkeypatch.setattr(jnp, "max", lambda x, axis: largest(jnp.where(jnp.isnan(x), -jnp.inf, x), axis))
    with interpreted():
        gradients = jax.grad(lambda *qkv: window_attention(*qkv, left=15).sum(), (0, 1, 2))
        *_, of_v = gradients(q, k.at[0, 3].set(jnp.nan), v)
    assert not np.isfinite(of_v).any()
