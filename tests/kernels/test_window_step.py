"""The fused decoding step of window attention: interpreted against float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from pallas_kernels import Rotary, interpreted, window_step
from pallas_kernels.window_step import Variant
from tests.arrays import array, stream_at
from tests.marks import release_but, slow_but
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT32_ANGLE, FLOAT32_GRADIENT, assert_close

TOLERANCES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
STEPS = 7


class Shape(NamedTuple):
    """One compiled program."""

    batch: int
    heads: int
    kv_heads: int
    window: int
    width: int
    value_size: int
    dtype: str
    rotary: Rotary | None
    variant: Variant | None


# One tile, tiles and a rest, a rest alone; shared keys in one and several programs; odd widths.
SHAPES = [
    Shape(1, 1, 1, 1, 1, 1, "float32", None, Variant(slots=4)),
    Shape(3, 4, 2, 5, 16, 32, "float32", Rotary(16), Variant(slots=4, queries=1)),
    Shape(2, 3, 1, 7, 24, 112, "float32", Rotary(11, base=100.0, interleaved=True), Variant(slots=2)),
    Shape(2, 2, 2, 65, 64, 64, "bfloat16", Rotary(64), None),
    Shape(2, 4, 1, 12, 8, 128, "float16", None, Variant(slots=16, queries=2)),
    Shape(2, 2, 2, 65, 70, 64, "float32", Rotary(35), None),
]


class Text(NamedTuple):
    """Rows of tokens, of which each row has seen the first few."""

    q: np.ndarray  # (B, length, H, K)
    k: np.ndarray
    v: np.ndarray
    seen: np.ndarray
    start: np.ndarray

    def __repr__(self) -> str:  # what hypothesis reports
        return f"Text(seen={self.seen.tolist()}, start={self.start.tolist()})"


def text(rng: np.random.Generator, kind: str, shape: Shape, seen: np.ndarray, fraction: float) -> Text:
    """`fraction` of what a row has seen was another segment."""
    length = int(seen.max()) + STEPS
    sizes = [(shape.heads, shape.width), (shape.kv_heads, shape.width), (shape.kv_heads, shape.value_size)]
    q, k, v = (rng.normal(size=(shape.batch, length, *size)) for size in sizes)
    if kind == "equal keys":
        k[:] = k[:1, :1, :1]
    if kind == "zeros":
        q, k = 0 * q, 0 * k
    if kind == "one key stands out":  # weights of nearly 1 and exactly 0, by the newest or an old key
        k[:, :: max(2, shape.window // 2)] *= 20
    q, k, v = (x.astype(jnp.dtype(shape.dtype)).astype(np.float64) for x in (q, k, v))
    return Text(q, k, v, seen, (fraction * seen).astype(np.int32))


KINDS = ["plain", "equal keys", "zeros", "one key stands out"]


@st.composite
def texts(draw_, shape: Shape) -> Text:
    rng = np.random.default_rng(draw_(draw.seeds))
    seen = draw_(draw.counts(shape.batch, 2 * shape.window + 1))
    kinds = KINDS if shape.dtype == "float32" else KINDS[:3]
    return text(rng, draw_(st.sampled_from(kinds)), shape, seen, draw_(st.sampled_from([0, 0.5, 1])))


def turned(x: np.ndarray, start: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    if rotary is None:
        return x
    positions = np.arange(x.shape[1]) - start[:, None]
    return oracles.rotary(x, positions, rotary.dim, rotary.base, rotary.interleaved)


def rings(given: Text, shape: Shape) -> Any:
    """What each row has seen, in its slots; the others hold NaN, which nobody may see."""
    k = turned(given.k, given.start, shape.rotary)
    into = [np.full((shape.batch, shape.window, *x.shape[2:]), np.nan) for x in (k, given.v)]
    for row, count in enumerate(given.seen):
        for t in range(count):
            into[0][row, t % shape.window], into[1][row, t % shape.window] = k[row, t], given.v[row, t]
    return tuple(x.astype(jnp.dtype(shape.dtype)) for x in into)


def steps_of(x: np.ndarray, given: Text, dtype: str) -> np.ndarray:
    """The tokens behind those that each row has seen, steps first."""
    steps = np.stack([x[row, n : n + STEPS] for row, n in enumerate(given.seen)], axis=1)
    return steps.astype(jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnames=("rotary", "variant"))
def decode(q, k, v, k_ring, v_ring, length, start, *, rotary: Rotary | None, variant: Variant | None):
    def step(state, token):
        *rings, length = state
        y, *rings = window_step(*token, *rings, length, start=start, rotary=rotary, variant=variant)
        return (*rings, length + 1), y

    with interpreted():
        state, y = jax.lax.scan(step, (k_ring, v_ring, length), (q, k, v))
    return y, *state[:2]


def expected(given: Text, shape: Shape) -> np.ndarray:
    """(B, STEPS, H, V): window attention over each row's text."""
    q, k = (turned(x, given.start, shape.rotary) for x in (given.q, given.k))
    ids = (np.arange(q.shape[1]) >= given.start[:, None]).astype(int)
    y = oracles.softmax_attention(q, k, given.v, left=shape.window - 1, segment_ids=ids)
    return np.stack([y[row, n : n + STEPS] for row, n in enumerate(given.seen)])


@pytest.mark.parametrize("shape", slow_but([SHAPES[0], SHAPES[2]], SHAPES), ids=str)
def test_steps_of_rows_at_different_lengths(shape):
    """Empty and unfilled rings, wraps, segments: outputs, and what the rings hold behind the last step."""

    @settings(max_examples=12)
    @given(texts(shape))
    def law(drawn):
        tokens = (steps_of(x, drawn, shape.dtype) for x in (drawn.q, drawn.k, drawn.v))
        before = rings(drawn, shape)
        y, k_ring, v_ring = map(
            np.asarray,
            decode(*tokens, *before, drawn.seen, drawn.start, rotary=shape.rotary, variant=shape.variant),
        )
        assert y.dtype == k_ring.dtype == v_ring.dtype == shape.dtype
        tolerance = TOLERANCES[shape.dtype]
        if shape.rotary and shape.dtype == "float32":
            # An angle's error is one of the scores; they are some units large.
            tolerance += 10 * FLOAT32_ANGLE * (drawn.seen.max() + STEPS)
        assert_close(y.swapaxes(0, 1), expected(drawn, shape), tolerance, repr(drawn))
        later = drawn._replace(seen=drawn.seen + STEPS)
        for got, want, old in zip((k_ring, v_ring), rings(later, shape), before, strict=True):
            written = ~np.isnan(want)
            assert_close(np.where(written, got, 0), np.where(written, want, 0), tolerance, "ring")
            # Slots that no step wrote are bit for bit what they were.
            age = (drawn.seen[:, None] + STEPS - 1 - np.arange(shape.window)) % shape.window
            untouched = (age >= STEPS)[..., None, None] & np.ones(got.shape, bool)
            assert np.array_equal(got[untouched], old[untouched], equal_nan=True)

    law()


def test_huge_scores():
    """Integers, so that scores up to 1e5 are exact and the softmax alone is tested: no overflow, no NaN."""
    shape = Shape(2, 2, 1, 6, 16, 32, "float32", None, Variant(slots=4))
    rng = np.random.default_rng(0)
    drawn = text(rng, "plain", shape, np.asarray([0, 9], np.int32), 0)
    q, k = (rng.integers(-250, 250, size=x.shape).astype(np.float64) for x in (drawn.q, drawn.k))
    drawn = drawn._replace(q=q, k=k)
    tokens = (steps_of(x, drawn, "float32") for x in (drawn.q, drawn.k, drawn.v))
    y, *_ = decode(*tokens, *rings(drawn, shape), drawn.seen, drawn.start, rotary=None, variant=shape.variant)
    assert_close(np.asarray(y).swapaxes(0, 1), expected(drawn, shape), FLOAT32)


def by_definition(*arrays, rotary, position=None, scale=None):
    """One step by the op's own definition: y and the rings."""
    *token, k_ring, v_ring, length, start = arrays
    cache = ops.KVCache(k_ring, v_ring, stream_at(length, start, 0 * length))
    turn = {} if rotary is None else {"rotary_dim": rotary.dim}
    how = {"positions": position, "scale": scale, "implementation": "reference"}
    y, cache = ops.window_step(*token, cache, **turn, **how)
    return y, cache.k, cache.v


def test_positions_and_scale_can_be_given():
    arrays, length, start = one_step()
    how = {"rotary": Rotary(6), "scale": 0.25, "position": array([0, 40], jnp.int32)}
    with interpreted():
        found = jax.jit(lambda *x: window_step(*x[:-1], start=x[-1], **how))(*arrays, length, start)
    with jax.enable_x64(True):
        exact = [jnp.float64(x) for x in arrays]
        expected = jax.jit(functools.partial(by_definition, **how))(*exact, length, start)
        assert_close(list(found), list(expected), FLOAT32 + 40 * FLOAT32_ANGLE)


def one_step(seed: int = 0):
    """Arrays of one step in the middle of a text: rows of 3 and 9 tokens, a window of 5."""
    rng = np.random.default_rng(seed)
    sizes = [(2, 4, 6), (2, 2, 6), (2, 2, 3), (2, 5, 2, 6), (2, 5, 2, 3)]
    arrays = [array(rng.normal(size=size), jnp.float32) for size in sizes]
    return arrays, array([3, 9], jnp.int32), array([1, 0], jnp.int32)


@pytest.mark.parametrize("rotary", release_but([Rotary(4)], [None, Rotary(4)]))
def test_gradient(rotary):
    """Through outputs and rings, against that of the definition in float64."""
    arrays, length, start = one_step()
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=x.shape) for x in (jnp.zeros((2, 4, 3)), *arrays[3:])]

    def gradient(step):
        def loss(*arrays):
            return sum((w * x).sum() for w, x in zip(weights, step(*arrays), strict=True))

        return jax.jit(jax.grad(loss, range(5)))

    with interpreted():
        got = gradient(lambda *x: window_step(*x, length, start=start, rotary=rotary))(*arrays)
    with jax.enable_x64(True):
        want = gradient(lambda *x: by_definition(*x, length, start, rotary=rotary))(*map(jnp.float64, arrays))
        assert_close(list(got), list(want), FLOAT32_GRADIENT)


@pytest.mark.release
def test_rings_of_another_dtype():
    """The new token is attended to as the ring holds it, like all later ones."""
    arrays, length, start = one_step()
    arrays[3:] = [array(x, jnp.bfloat16) for x in arrays[3:]]
    with interpreted():
        y, *rings = jax.jit(lambda *x: window_step(*x[:-1], start=x[-1]))(*arrays, length, start)
    assert [x.dtype for x in rings] == [jnp.bfloat16] * 2
    for row, (n, first) in enumerate(zip([3, 9], [1, 0], strict=True)):
        slots = [t % 5 for t in range(max(first, n - 4), n + 1)]
        keys, values = (np.asarray(x, np.float64)[row, slots][None] for x in rings)
        q = np.repeat(np.asarray(arrays[0], np.float64)[row][None, None], len(slots), axis=1)
        assert_close(y[row], oracles.softmax_attention(q, keys, values)[0, -1], FLOAT32)
