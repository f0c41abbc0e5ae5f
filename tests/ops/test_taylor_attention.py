"""Taylor attention beyond the laws of `test_linear_attention`: steps, extreme values, precision, memory."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.core.implementations import KERNELS
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, assert_close

IMPLEMENTATIONS = [name for name in ops.implementations("taylor_attention") if name not in KERNELS]


def polynomial_attention(q, k, v) -> np.ndarray:
    """The quadratic formula with 1 + s + s^2 / 2 itself, no features."""
    length = q.shape[1]
    s = np.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(q.shape[-1])
    weights = np.where(np.tri(length, dtype=bool), 1 + s + s**2 / 2, 0)
    return np.einsum("bhij,bjhv->bihv", weights / weights.sum(-1, keepdims=True), v)


def test_the_state_is_symmetric_and_converts_to_the_full_layout():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 6, 2, 4))
    _, full = oracles.linear_attention(oracles.taylor_features(q), oracles.taylor_features(k), v)
    with jax.enable_x64(True):
        _, state = jax.jit(functools.partial(ops.taylor_attention, return_state=True))(
            array(q), array(k), array(v)
        )
        assert state.k.shape == (2, 2, ops.symmetric_taylor_size(4))
        convert = jax.jit(ops.symmetric_to_full, static_argnums=1)
        k, kv = convert(state.k, 4), convert(np.asarray(state.kv).swapaxes(2, 3), 4)
        assert_close((k, np.asarray(kv).swapaxes(2, 3)), (full.k, full.kv), FLOAT64)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_steps_under_scan_equal_the_recurrence_and_one_call(implementation):
    """Prefill, then `taylor_step` as the body of a scan: the state's tree and dtypes do not change."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 12, 2, 3)).astype(np.float32)

    @jax.jit
    def decode(q, k, v):
        y, state = ops.taylor_attention(
            q[:, :5], k[:, :5], v[:, :5], return_state=True, implementation=implementation
        )

        def step(state, token):
            y, state = ops.taylor_step(*token, state, implementation=implementation)
            return state, y

        state, steps = jax.lax.scan(step, state, [x[:, 5:].swapaxes(0, 1) for x in (q, k, v)])
        return jnp.concatenate([y, steps.swapaxes(0, 1)], axis=1), state

    y, state = decode(q, k, v)
    phi = oracles.symmetric_taylor_features
    expected, sums = oracles.linear_attention(
        phi(q.astype(np.float64)), phi(k.astype(np.float64)), v.astype(np.float64)
    )
    assert_close(y, expected, FLOAT32)
    assert_close((state.kv, state.k), (sums.kv, sums.k), FLOAT32)
    assert state.stream.length.tolist() == [12, 12]


def extremes(rng: np.random.Generator, kind: str):
    q, k, v = rng.normal(size=(3, 2, 11, 2, 4))
    if kind == "keys of norm 1e3":
        k *= 1e3 / np.linalg.norm(k, axis=-1, keepdims=True)
    if kind == "queries and keys of norm 1e3":
        q, k = (1e3 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    if kind == "equal keys":
        k[:] = k[:1, :1]
    if kind == "zeros":
        q, k = 0 * q, 0 * k
    if kind == "opposite":  # s = -1 minimises the polynomial: the smallest normaliser, 1/2
        k = -2 * q / (q**2).sum(-1, keepdims=True)
    return q, k, v


@functools.partial(jax.jit, static_argnames="implementation")
def value_and_gradient(q, k, v, *, implementation: str):
    def loss(q, k, v):
        y = ops.taylor_attention(q, k, v, chunk_size=4, implementation=implementation)
        return y.astype(jnp.float32).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    return y, gradients


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        ("xla", jnp.bfloat16),
        ("reference", jnp.float16),
        pytest.param("xla", jnp.float32, marks=pytest.mark.slow),
    ],
)
def test_extreme_values(implementation, dtype):
    """Finite forward and backward, and right, in every dtype: sums are kept in float32."""
    kinds = ["keys of norm 1e3", "queries and keys of norm 1e3", "equal keys", "zeros", "opposite", "plain"]
    tolerance = {jnp.float32: FLOAT32, jnp.bfloat16: BFLOAT16, jnp.float16: FLOAT16}[dtype]

    @given(st.sampled_from(kinds), draw.seeds)
    def law(kind, seed):
        q, k, v = (array(x, dtype) for x in extremes(np.random.default_rng(seed), kind))
        y, gradients = value_and_gradient(q, k, v, implementation=implementation)
        assert y.dtype == dtype
        expected = polynomial_attention(*(np.asarray(x, np.float64) for x in (q, k, v)))
        assert_close(y, expected, tolerance, kind)
        for gradient in gradients:
            assert gradient.dtype == dtype
            if dtype != jnp.float16 or "1e3" not in kind:  # there a gradient may be beyond float16
                assert np.isfinite(np.asarray(gradient, np.float32)).all(), kind

    law()


@settings(max_examples=5)
@given(draw.seeds)
def test_long_sums_do_not_lose_tokens(seed):
    """3,000 bfloat16 tokens: a sum kept in bfloat16 stops growing at 256 equal terms."""
    rng = np.random.default_rng(seed)
    v = np.asarray(1 + rng.random((1, 3000, 1, 1)), jnp.bfloat16)
    zeros = np.zeros((1, 3000, 1, 1), jnp.bfloat16)
    y, state = jax.jit(functools.partial(ops.taylor_attention, return_state=True))(zeros, zeros, v)
    y, state = jax.tree.map(np.asarray, (y, state))
    mean = np.cumsum(np.asarray(v, np.float64)) / np.arange(1, 3001)
    assert_close(y[0, :, 0, 0], mean, BFLOAT16)
    assert_close(state.k[0, 0, 0], np.float64(3000), FLOAT32)
