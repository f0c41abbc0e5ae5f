"""The fused linear recurrences and their gradients, in the interpreter, token by token in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import interpreted, linear_recurrence
from pallas_kernels.linear_recurrence import Variant, program
from tests.arrays import array
from tests.marks import slow_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

# N, G, H, K, V, dtype of v, whether tokens erase, whether there are segments. Spans have 32 tokens, or
# 64 without erasure, chunks and parts of channels 16.
CASES = [
    (37, 1, 2, 21, 35, "float32", True, True),  # two parts of the keys and tiles of the values, all padded
    (69, 1, 2, 21, 35, "float32", False, True),
    (32, 2, 4, 16, 16, "bfloat16", True, False),
    (1, 1, 1, 3, 2, "float32", False, False),
]
VARIANT = Variant(keys=16, values=32)
BATCH, SCALE = 2, 0.5


def drawn(length, groups, heads, keys, values, dtype):
    """All arrays of a call, and the gradients of both results. Keys come back; gates may be shut."""
    rng, tokens = np.random.default_rng(length), (BATCH, length, heads)
    k = rng.normal(size=(3, keys))
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True))[rng.integers(3, size=(BATCH, length, groups))]
    q, v, of_y = rng.normal(size=k.shape), *rng.normal(size=(2, *tokens, values))
    beta = rng.choice([0.0, 0.5, 1.0, 2.0], size=tokens)
    gates = [0.0, -1e-3, -0.1, -5.0, -1e4, -np.inf]  # most chunks let some of the state pass
    log_decay = rng.choice(gates, size=tokens, p=[0.4, 0.4, 0.17, 0.01, 0.01, 0.01])
    state, of_state = rng.normal(size=(2, BATCH, heads, keys, values))
    wide = [array(x, "float32") for x in (q, k, log_decay, state, beta, of_state)]
    q, k, log_decay, state, beta, of_state = wide
    return (q, k, array(v, dtype), log_decay, state, beta), (array(of_y, dtype), of_state)


def starts_of(length):
    """Row 0 goes on from the state and changes segments, row 1 begins with one."""
    first = np.arange(length) // 7 * 7
    return jnp.asarray([np.where(first < 20, -3, first), np.zeros(length, int)], jnp.int32)


def loop(q, k, v, log_decay, state, beta=None, starts=None):
    """The equations token by token, in the arrays' own dtype."""
    q, k = (jnp.repeat(x, v.shape[2] // x.shape[2], axis=2) for x in (q, k))
    index = jnp.arange(v.shape[1])
    begins = jnp.zeros(v.shape[:2], bool) if starts is None else starts == index

    def token(state, inputs):
        q, k, v, log_decay, beta, begins = inputs
        state = jnp.where(begins[:, None, None, None], 0, state)
        state = jnp.exp(log_decay)[..., None, None] * state
        if beta is not None:
            v = beta[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
        state = state + k[..., None] * v[..., None, :]
        return state, SCALE * jnp.einsum("bhk,bhkv->bhv", q, state)

    tokens = jax.tree.map(lambda x: x.swapaxes(0, 1), (q, k, v, log_decay, beta, begins))
    state, y = jax.lax.scan(token, state, tokens)
    return y.swapaxes(0, 1), state


def fused(*arrays, **options):
    return linear_recurrence(*arrays[:5], beta=(*arrays, None)[5], **options, scale=SCALE, variant=VARIANT)


def with_gradients(function, arrays, gradients, starts):
    outputs, back = jax.vjp(lambda *arrays: function(*arrays, starts=starts), *arrays)
    return outputs, back(gradients)


@pytest.mark.parametrize("case", slow_but(CASES[:2], CASES), ids=str)
def test_outputs_and_gradients(case):
    *sizes, dtype, erases, packed = case
    arrays, of_results = drawn(*sizes, dtype)
    given = arrays if erases else arrays[:5], of_results, starts_of(sizes[0]) if packed else None
    with interpreted():
        (y, state), gradients = jax.jit(lambda *given: with_gradients(fused, *given))(*given)
    with jax.enable_x64(True):
        wide = [jax.tree.map(lambda x: x.astype("float64"), x) for x in given[:2]]
        expected, of_arrays = jax.jit(lambda *given: with_gradients(loop, *given))(*wide, given[2])
    assert (y.dtype, state.dtype) == (dtype, "float32")
    assert [x.dtype for x in gradients] == [x.dtype for x in given[0]]
    value, gradient = (FLOAT32, FLOAT32_GRADIENT) if dtype == "float32" else (BFLOAT16, 2 * BFLOAT16)
    assert_close((y, state), expected, value)
    assert_close(list(gradients), list(of_arrays), gradient)


def test_rounded_products_leave_no_errors_in_the_state(monkeypatch):
    """A transition that reflects forgets nothing: errors in products that the state goes through add up."""

    def truncated(x):
        """As tensor cores read float32 numbers: 10 bits."""
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFE000)
        return jax.lax.bitcast_convert_type(bits, jnp.float32)

    def dot(a, b, contract, into=None, precision=None):
        if precision != "highest":
            a, b = truncated(a), truncated(b)
        return exact(a, b, contract, into, precision)

    exact, length = program.dot, 1024
    monkeypatch.setattr(program, "dot", dot)
    (q, k, v, log_decay, state, beta), _ = drawn(length, 1, 1, 16, 16, "float32")
    arrays = q, k, v, jnp.zeros_like(log_decay), state, jnp.full_like(beta, 2)
    with interpreted():
        y, last = jax.jit(fused)(*arrays)
    with jax.enable_x64(True):
        outputs, expected = jax.jit(loop)(*(x.astype("float64") for x in arrays))
    assert_close(last, expected, 1e-2)
    assert_close(y, outputs, 1e-2)
