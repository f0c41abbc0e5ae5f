"""Ops called alone: what is under the mask, NaN too, changes neither outputs of real tokens nor the state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import array
from tests.marks import slow_but
from tests.tolerances import assert_close

REAL = np.arange(7) < np.array([[7], [4]])
MASK = array(REAL)
GENERATOR = np.random.default_rng(0)
Q, K = (GENERATOR.normal(size=(2, 7, 2, 3)).astype(np.float32) for _ in range(2))
V = GENERATOR.normal(size=(2, 7, 2, 4)).astype(np.float32)
GATES = -np.abs(Q[..., 0])
X = V[:, :, 0]
WEIGHTS = array(GENERATOR.normal(size=(2, 3)), np.float32)
TAPS = array(GENERATOR.normal(size=(7, 4)), np.float32)
MODES = array(-np.abs(GENERATOR.normal(size=(2, 2, 2))), np.float32)
CONTEXT = {"mask": MASK, "return_state": True}


def some(q, k, v, mask):
    return ops.selection.attention_of_some(q, k, v, jnp.arange(7) % 2 == jnp.ones((2, 1)), 5, mask=mask)


CALLS = {
    "attention_of_some": (lambda q, k, v: some(q, k, v, CONTEXT["mask"]), Q, K, V),
    "conv_attention": (lambda q, k, v: ops.conv_attention(q, k, v, starts=(0, 1, 4), mask=MASK), Q, K, V),
    "delta_rule": (lambda q, k, v, g: ops.delta_rule(q, k, v, -g, g, **CONTEXT), Q, K, V, GATES),
    "diagonal_ssm": (lambda v: ops.diagonal_ssm(v, MODES, MODES, mask=MASK), V),
    "hyper_attention": (lambda q, k, v: ops.hyper_attention(q, (k, k), (v, v), mask=MASK), Q, K, V),
    "hyper_feature_attention": (
        lambda q, k, v: ops.hyper_feature_attention((q, k), (k, q), v, mask=MASK),
        Q,
        K,
        V,
    ),
    "landmark_attention": (
        lambda q, k, v: ops.landmark_attention(q, k, v, tokens_per_landmark=2, mask=MASK),
        Q,
        K,
        V,
    ),
    "linear_attention": (
        lambda q, k, v, g: ops.linear_attention(q, k, v, log_decay=g, **CONTEXT),
        Q,
        K,
        V,
        GATES,
    ),
    "linear_hyper_attention": (
        lambda q, k, v: ops.linear_hyper_attention(q, (k, k), (v, v), **CONTEXT),
        Q,
        K,
        V,
    ),
    "linear_recurrence": (lambda q, k, v, g: ops.linear_recurrence(q, k, v, g, **CONTEXT), Q, K, V, GATES),
    "long_conv": (lambda x: ops.long_conv(x, TAPS, mask=MASK), X),
    "scatterbrain_attention": (
        lambda q, k, v: ops.scatterbrain_attention(q, k, v, WEIGHTS, left=2, mask=MASK),
        Q,
        K,
        V,
    ),
    "selective_scan": (lambda x, b: ops.selective_scan(x, abs(x), -abs(TAPS[:4]), b, b, **CONTEXT), X, X),
    "short_conv": (lambda x: ops.short_conv(x, TAPS[:3], **CONTEXT), X),
    "softmax_attention": (lambda q, k, v: ops.softmax_attention(q, k, v, mask=MASK), Q, K, V),
    "softmax_attention, not causal": (
        lambda q, k, v: ops.softmax_attention(q, k, v, causal=False, mask=MASK),
        Q,
        K,
        V,
    ),
    "taylor_attention": (lambda q, k, v: ops.taylor_attention(q, k, v, **CONTEXT), Q, K, V),
    "token_shift": (lambda x: ops.token_shift(x, mask=MASK), X),
    "wkv": (lambda k, v: ops.wkv(k, v, -jnp.ones(4), jnp.ones(4), **CONTEXT), X, X),
}

QUICK = ["conv_attention", "hyper_attention", "linear_attention", "linear_recurrence", "short_conv", "wkv"]


def under_mask(x, value):
    """x with another value at masked tokens, if it has tokens."""
    if x.shape[:2] != (2, 7):
        return x
    xp = np if isinstance(x, np.ndarray) else jnp  # NumPy compiles nothing
    return xp.where(REAL.reshape(2, 7, *[1] * (x.ndim - 2)), x, xp.asarray(value, x.dtype))


@pytest.mark.parametrize("name", slow_but(QUICK, CALLS, core=["conv_attention", "short_conv"]))
def test_padding_is_never_read(name):
    function, *inputs = CALLS[name]

    def loss(arrays):
        results = jax.tree.leaves(function(*arrays))
        outputs = [under_mask(x, 0) for x in results if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(x**2) for x in outputs), outputs

    run = jax.jit(jax.grad(loss, has_aux=True))

    def result(value):
        gradients, outputs = run([under_mask(x, value) for x in inputs])
        return [under_mask(np.asarray(g), 0) for g in gradients], outputs

    expected = result(0)
    for value in (np.nan, np.inf, 1e30):
        assert_close(result(value), expected, 0.0)
