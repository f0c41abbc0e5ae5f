"""The fused decoding step of window attention: interpreted against float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import Rotary, interpreted, supports_window_step, window_step
from pallas_kernels.window_step import Variant
from tests.arrays import array
from tests.marks import slow_but
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


@pytest.mark.parametrize(
    "shape", slow_but([*SHAPES[:3], SHAPES[4]], SHAPES, core=[SHAPES[0], SHAPES[2]]), ids=str
)
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


@settings(max_examples=5)
@given(draw.seeds)
def test_positions_and_scale_can_be_given(seed):
    shape = Shape(3, 2, 2, 4, 8, 8, "float32", Rotary(8), None)
    rng = np.random.default_rng(seed)
    drawn = text(rng, "plain", shape, np.zeros(3, np.int32), 0)
    q, k, v = (steps_of(x, drawn, "float32")[0] for x in (drawn.q, drawn.k, drawn.v))
    _, k_ring, v_ring = decode(
        *(x[None] for x in (q, k, v)),
        *rings(drawn, shape),
        drawn.seen,
        drawn.start,
        rotary=shape.rotary,
        variant=None,
    )
    position = np.asarray([0, 5, 40], np.int32)
    q_turned, k_turned = (
        oracles.rotary(np.asarray(x, np.float64)[:, None], position[:, None], 8, 10000.0, False)
        for x in (q, k)
    )
    y, k_ring, _ = at_positions(q, k, v, k_ring, v_ring, np.ones(3, np.int32), position)
    first = np.asarray(drawn.k[:, :1])  # at position 0
    assert_close(k_ring[:, 1], k_turned[:, 0], FLOAT32 + 40 * FLOAT32_ANGLE)
    keys = np.concatenate([first, k_turned], axis=1)
    values = np.stack([np.asarray(v, np.float64)] * 2, axis=1)
    queries = np.concatenate([q_turned] * 2, axis=1)
    assert_close(
        y, oracles.softmax_attention(queries, keys, values, scale=0.25)[:, 1], FLOAT32 + 40 * FLOAT32_ANGLE
    )


@jax.jit
def at_positions(q, k, v, k_ring, v_ring, length, position):
    with interpreted():
        return window_step(q, k, v, k_ring, v_ring, length, position=position, scale=0.25, rotary=Rotary(8))


def one_step(seed: int = 0):
    """Arrays of one step in the middle of a text: rows of 3 and 9 tokens, a window of 5."""
    rng = np.random.default_rng(seed)
    sizes = [(2, 4, 6), (2, 2, 6), (2, 2, 3), (2, 5, 2, 6), (2, 5, 2, 3)]
    arrays = [array(rng.normal(size=size), jnp.float32) for size in sizes]
    return arrays, array([3, 9], jnp.int32), array([1, 0], jnp.int32)


@pytest.mark.parametrize("rotary", [None, Rotary(4)])
def test_gradient(rotary):
    """Through outputs and rings, against central differences of float64 NumPy."""
    arrays, length, start = one_step()
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=x.shape) for x in (jnp.zeros((2, 4, 3)), *arrays[3:])]

    def loss(*arrays):
        results = window_step(*arrays, length, start=start, rotary=rotary)
        return sum((w * x).sum() for w, x in zip(weights, results, strict=True))

    with interpreted():
        got = jax.jit(jax.grad(loss, range(5)))(*arrays)

    def objective(q, k, v, *rings):
        if rotary:
            positions = np.asarray(length - start)[:, None]
            q, k = (oracles.rotary(x[:, None], positions, 4, 10000.0, False)[:, 0] for x in (q, k))
        k_ring, v_ring = (x.copy() for x in rings)
        y = np.zeros((2, 4, 3))
        for row, (n, first) in enumerate(zip(np.asarray(length), np.asarray(start), strict=True)):
            k_ring[row, n % 5], v_ring[row, n % 5] = k[row], v[row]
            slots = [t % 5 for t in range(max(first, n - 4), n + 1)]
            for head in range(4):
                scores = k_ring[row, slots, head // 2] @ q[row, head] / np.sqrt(6)
                p = np.exp(scores - scores.max())
                y[row, head] = p @ v_ring[row, slots, head // 2] / p.sum()
        return sum((w * x).sum() for w, x in zip(weights, (y, k_ring, v_ring), strict=True))

    exact = [np.asarray(x, np.float64) for x in arrays]
    for i, x in enumerate(exact):
        numeric = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            ends = []
            for move in (1e-5, -1e-5):
                moved = [y.copy() for y in exact]
                moved[i][at] += move
                ends.append(objective(*moved))
            numeric[at] = (ends[0] - ends[1]) / 2e-5
        assert_close(got[i], numeric, FLOAT32_GRADIENT, f"argument {i}")


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


@pytest.mark.release
def test_vmap_equals_the_batch():
    arrays, length, start = one_step()

    def step(*x):
        return window_step(*x[:-1], start=x[-1], rotary=Rotary(6))

    with interpreted():
        together = jax.jit(step)(*arrays, length, start)
        apart = jax.jit(jax.vmap(step))(*(x[:, None] for x in (*arrays, length, start)))
    assert_close([x[:, 0] for x in apart], [*together], FLOAT32)


def test_donated_rings_are_overwritten():
    arrays, length, start = one_step()

    def step(*x):
        return window_step(*x[:-1], start=x[-1])

    with interpreted():
        fresh = jax.jit(step)(*arrays, length, start)
        in_place = jax.jit(step, donate_argnums=(3, 4))
        text = in_place.lower(*arrays, length, start).compile().as_text() or ""
        again = in_place(*arrays, length, start)
    assert "may-alias" in text or "must-alias" in text
    assert all(x.is_deleted() for x in arrays[3:])
    assert_close([*again], [*fresh], FLOAT32)


def ones(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return array(np.ones(shape), dtype)


def arguments(**changes) -> dict[str, Any]:
    arrays, length, _ = one_step()
    names = ("q", "k", "v", "k_ring", "v_ring")
    return dict(zip(names, arrays, strict=True)) | {"length": length} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": ones((2, 1, 4, 6))}, "q has 4 axes; the kernel takes 3"),
        ({"q": ones((2, 4, 257))}, "the last axis of q is 257 long"),
        ({"q": ones((2, 5, 6))}, "number of query heads = 5: expected a multiple of 2"),
        ({"k": ones((2, 2, 7))}, r"shape of k = \(2, 2, 7\): expected \(2, 2, 6\)"),
        ({"v": ones((2, 2, 3), int)}, "v has dtype int32"),
        ({"k_ring": ones((2, 2, 6))}, "shape of k_ring"),
        ({"v_ring": ones((2, 4, 2, 3))}, r"shape of v_ring = \(2, 4, 2, 3\): expected \(2, 5, 2, 3\)"),
        ({"length": ones((3,), int)}, r"shape of length = \(3,\): expected \(2,\)"),
        ({"start": ones((2,))}, "dtype of start = 'float32': expected int32 or int64"),
        ({"rotary": Rotary(7)}, r"rotary.dim = 7: expected 1 to the head width 6"),
        ({"variant": Variant(slots=3)}, "slots = 3: expected a power of two"),
        ({"variant": Variant(queries=0)}, "queries = 0: expected at least 1"),
    ],
)
def test_errors_name_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        window_step(**arguments(**changes))


def test_supports():
    accepted = [x for name, x in arguments().items() if name in ("q", "k", "v")]
    assert supports_window_step(*accepted) is None
    wide = [jax.ShapeDtypeStruct(x.shape, "float64") for x in accepted]
    assert "dtype float64" in str(supports_window_step(*wide))
