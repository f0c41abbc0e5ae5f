"""The fused decoding step of Taylor attention: interpreted against float64."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from pallas_kernels import interpreted, taylor_step
from pallas_kernels.taylor_step import Variant
from tests.marks import release_but, slow_but
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT32_GRADIENT, FLOAT32_STATE, assert_close

TOLERANCES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}

# B, H, K, V, dtype, rows per tile: one tile, tiles that divide F (K = 1: 3, K = 8: 45, K = 24: 325) or do
# not, value widths that are no powers of two.
SHAPES = [
    (1, 1, 1, 1, "float32", 4),
    (2, 3, 16, 64, "float32", 32),
    (1, 2, 8, 112, "bfloat16", 64),
    (2, 1, 24, 32, "float16", 16),
    (1, 1, 32, 128, "bfloat16", 128),
]


def size(width: int) -> int:
    return 1 + width + width * (width + 1) // 2


def features(x: np.ndarray) -> np.ndarray:
    return oracles.symmetric_taylor_features(np.asarray(x, np.float64))


@functools.partial(jax.jit, static_argnames="variant")
def decode(q, k, v, kv, z, *, variant: Variant | None = None):
    """Steps in sequence; tokens are the first axis."""

    def step(state, token):
        y, *state = taylor_step(*token, *state, variant=variant)
        return tuple(state), y

    with interpreted():
        state, y = jax.lax.scan(step, (kv, z), (q, k, v))
    return y, *state


def expected(q, k, v):
    """The recurrence from an empty state, in float64; tokens are the first axis of the outputs."""
    q, k, v = (np.asarray(x, np.float64).swapaxes(0, 1) for x in (q, k, v))
    y, sums = oracles.linear_attention(features(q), features(k), v)
    return y.swapaxes(0, 1), sums.kv, sums.k


def empty(shape, dtype=jnp.float32):
    batch, heads, width, value_size, *_ = shape
    rows = (batch, heads, size(width))
    return np.zeros((*rows, value_size), jnp.dtype(dtype)), np.zeros(rows, jnp.dtype(dtype))


def tokens(rng: np.random.Generator, kind: str, shape, count: int) -> list[Any]:
    batch, heads, width, value_size, dtype, _ = shape
    q, k, v = (rng.normal(size=(count, batch, heads, n)) for n in (width, width, value_size))
    if "norm 1e3" in kind:  # near one direction: across it the features' products cancel in any float32 sum
        direction = rng.choice([-1.0, 1.0], size=width)
        q, k = (0.5 * x + direction for x in (q, k))
        k *= 1e3 / np.linalg.norm(k, axis=-1, keepdims=True)
        if "queries" in kind:
            q *= 1e3 / np.linalg.norm(q, axis=-1, keepdims=True)
    if kind == "equal keys":
        k[:] = k[:1, :1, :1]
    if kind == "zeros":
        q, k = 0 * q, 0 * k
    return [x.astype(jnp.dtype(dtype)) for x in (q, k, v)]


KINDS = ["plain", "keys of norm 1e3", "queries and keys of norm 1e3", "equal keys", "zeros"]


@pytest.mark.parametrize("shape", slow_but(SHAPES[:3], SHAPES, core=SHAPES[:2]), ids=str)
def test_steps_from_an_empty_state_equal_the_recurrence(shape):
    """Outputs and the state, for 9 tokens in sequence: every row and column written, none twice."""

    @settings(max_examples=10)
    @given(st.sampled_from(KINDS), draw.seeds)
    def law(kind, seed):
        q, k, v = tokens(np.random.default_rng(seed), kind, shape, 9)
        y, kv, z = decode(q, k, v, *empty(shape), variant=Variant(rows=shape[-1]))
        assert y.dtype == v.dtype
        assert kv.dtype == z.dtype == jnp.float32
        y_expected, *state = expected(q, k, v)
        assert_close(y, y_expected, TOLERANCES[shape[4]], kind)
        assert_close([kv, z], state, FLOAT32_STATE, kind)

    law()


def test_the_first_token_is_its_own_value():
    """Even for a long key across the query, where the features' sum of 1e6s should be about 1."""
    shape = (4, 2, 16, 64, "float32", 0)
    q, k, v = (x[0] for x in tokens(np.random.default_rng(0), "plain", shape, 1))
    k[..., ::2], k[..., 1::2] = q[..., 1::2], -q[..., ::2]
    q, k = 300 * q, 300 * k
    y, *_ = decode(*(x[None] for x in (q, k, v)), *empty(shape))
    assert_close(y[0], v, FLOAT32)


@settings(max_examples=5)
@given(draw.seeds)
def test_a_bfloat16_state_keeps_its_dtype(seed):
    """The sums are rounded once per token; outputs come from the sums before that rounding."""
    shape = (1, 2, 16, 64, "float32", 16)
    arrays = tokens(np.random.default_rng(seed), "plain", shape, 1)
    y, kv, z = decode(*arrays, *empty(shape, jnp.bfloat16))
    y_expected, *state = expected(*arrays)
    assert kv.dtype == z.dtype == jnp.bfloat16
    assert_close(y, y_expected, FLOAT32)
    assert_close([kv, z], state, BFLOAT16)


def loss(step, weights, *arrays):
    return sum((w * x.astype(w.dtype)).sum() for w, x in zip(weights, step(*arrays), strict=True))


def by_definition(q, k, v, kv, z):
    state = replace(ops.init_taylor_state(1, 2, 4, 3, jnp.float64), kv=kv, k=z)
    y, state = ops.taylor_step(q, k, v, state, implementation="reference")
    return y, state.kv, state.k


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient(dtype):
    """Through outputs and state, against that of the library's definition in float64."""
    shape = (1, 2, 4, 3, dtype, 8)
    rng = np.random.default_rng(0)
    arrays = [x[0] for x in tokens(rng, "plain", shape, 1)]
    past = features(rng.normal(size=(5, 1, 2, 4)))
    arrays += [
        jnp.float32(np.einsum("tbhf,tbhv->bhfv", past, rng.normal(size=(5, 1, 2, 3)))),
        jnp.float32(past.sum(axis=0)),
    ]
    weights = [rng.normal(size=x.shape) for x in (arrays[2], *arrays[3:])]

    def gradient(step, dtype):
        wanted = [jnp.asarray(w, dtype) for w in weights]
        return jax.jit(jax.grad(functools.partial(loss, step, wanted), range(5)))

    with interpreted():
        got = gradient(taylor_step, jnp.float32)(*arrays)
    assert [x.dtype for x in got] == [x.dtype for x in arrays]
    with jax.enable_x64(True):
        want = gradient(by_definition, jnp.float64)(*(jnp.float64(x) for x in arrays))
    # The cotangent of y has the dtype of y, so its rounding reaches the state, too.
    assert_close(list(got), list(want), FLOAT32_GRADIENT if dtype == "float32" else BFLOAT16)


def test_a_donated_state_is_overwritten():
    shape = (2, 2, 8, 64, "float32", 16)
    arrays = [x[0] for x in tokens(np.random.default_rng(0), "plain", shape, 1)]
    expect = expected(*(x[None] for x in arrays))
    state = jax.device_put(empty(shape))
    with interpreted():
        step = jax.jit(lambda *x: taylor_step(*x), donate_argnums=(3, 4))
        text = str(step.lower(*arrays, *state).compile().as_text())
        y, kv, z = step(*arrays, *state)
    assert all(x.is_deleted() for x in state)
    assert "may-alias" in text or "must-alias" in text
    assert_close([y, kv, z], [expect[0][0], *expect[1:]], FLOAT32)


@pytest.mark.parametrize("implementation", release_but(["pallas"], ["pallas", "xla", "reference"]))
def test_the_op_takes_its_state_from_a_prompt_and_moves_the_stream(implementation):
    shape = (2, 3, 16, 64, "float32", 0)
    q, k, v = tokens(np.random.default_rng(0), "plain", shape, 8)
    whole = expected(q, k, v)

    @jax.jit
    def decode(q, k, v):
        rows = (x[:5].swapaxes(0, 1) for x in (q, k, v))
        _, state = ops.taylor_attention(*rows, return_state=True, implementation="xla")

        def step(state, token):
            y, state = ops.taylor_step(*token, state, implementation=implementation)
            return state, y

        return jax.lax.scan(step, state, (q[5:], k[5:], v[5:]))

    with interpreted():
        state, y = decode(q, k, v)
    assert_close([y, state.kv, state.k], [whole[0][5:], *whole[1:]], FLOAT32)
    assert state.stream.length.tolist() == [8, 8]


def test_a_float64_state_is_refused():
    q, k, v = (x[0] for x in tokens(np.random.default_rng(0), "plain", (2, 3, 16, 64, "float32", 0), 1))
    with interpreted(), jax.enable_x64(True):
        wide = ops.init_taylor_state(2, 3, 16, 64, jnp.float64)
        with pytest.raises(ValueError, match="the kernel takes no float64 state"):
            ops.taylor_step(q, k, v, wide, implementation="pallas")
