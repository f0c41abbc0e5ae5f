"""The fused linear recurrences and their gradients, in the interpreter, token by token in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import interpreted, linear_recurrence
from pallas_kernels.linear_recurrence import Variant, precision, program
from tests.arrays import array
from tests.marks import slow_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

# N, G, H, K, V, dtype of v, form, whether there are segments. Spans have 16 tokens if gates are per channel
# and tokens erase, 64 if neither, else 32; chunks and parts of channels 16.
CASES = [
    # two parts of the keys and tiles of the values, padded
    (37, 1, 2, 21, 35, "float32", "head erases", True),
    (69, 1, 2, 21, 35, "float32", "head", True),
    (19, 1, 2, 21, 35, "float32", "channel erases", True),
    (37, 1, 2, 16, 16, "float32", "channel before", True),
    (32, 2, 4, 16, 16, "bfloat16", "head erases", False),
    (32, 2, 4, 21, 16, "bfloat16", "channel erases", False),
    (33, 1, 1, 16, 16, "float32", "channel", False),
    (1, 1, 1, 3, 2, "float32", "head", False),
    (1, 1, 1, 3, 2, "float32", "channel erases", False),
]
VARIANT = Variant(keys=16, values=32)
BATCH, SCALE = 2, 0.5
GATES = [0.0, -1e-3, -0.1, -5.0, -1e4, -np.inf]


def drawn(length, groups, heads, keys, values, dtype, form):
    """All arrays of a call, and the gradients of both results. Keys come back; gates may be shut."""
    rng, tokens = np.random.default_rng(length), (BATCH, length, heads)
    k = rng.normal(size=(3, keys))
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True))[rng.integers(3, size=(BATCH, length, groups))]
    q, v, of_y = rng.normal(size=k.shape), *rng.normal(size=(2, *tokens, values))
    # Most chunks let some of the state pass.
    shape = (*tokens, keys) if "channel" in form else tokens
    log_decay = rng.choice(GATES, size=shape, p=[0.4, 0.4, 0.17, 0.01, 0.01, 0.01])
    state, of_state = rng.normal(size=(2, BATCH, heads, keys, values))
    erasing = []
    if form == "head erases":
        erasing = [rng.choice([0.0, 0.5, 1.0, 2.0], size=tokens)]
    elif form == "channel erases":
        erasing = [k, -k * rng.choice([0.0, 0.5, 1.0, 2.0], size=(*k.shape[:-1], 1))]
        k = rng.normal(size=k.shape)
    wide = [array(x, "float32") for x in (q, k, log_decay, state, of_state, *erasing)]
    q, k, log_decay, state, of_state, *erasing = wide
    return (q, k, array(v, dtype), log_decay, state, *erasing), (array(of_y, dtype), of_state)


def starts_of(length):
    """Row 0 goes on from the state and changes segments, row 1 begins with one."""
    first = np.arange(length) // 7 * 7
    return jnp.asarray([np.where(first < 20, -3, first), np.zeros(length, int)], jnp.int32)


def loop(form, q, k, v, log_decay, state, *erasing, starts=None):
    """The equations token by token, in the arrays' own dtype."""
    heads = v.shape[2]
    q, k, *erasing = (
        x if x.ndim == 3 else jnp.repeat(x, heads // x.shape[2], axis=2) for x in (q, k, *erasing)
    )
    log_decay = log_decay if log_decay.ndim == 4 else log_decay[..., None]
    index = jnp.arange(v.shape[1])
    begins = jnp.zeros(v.shape[:2], bool) if starts is None else starts == index

    def held(key, state):
        return jnp.einsum("bhk,bhkv->bhv", key, state)

    def token(state, inputs):
        q, k, v, log_decay, begins, *erasing = inputs
        before = jnp.where(begins[:, None, None, None], 0, state)
        state = jnp.exp(log_decay)[..., None] * before
        if form == "head erases":
            v = erasing[0][..., None] * (v - held(k, state))
        elif erasing:
            a, b = erasing
            state = state + b[..., None] * held(a, before)[..., None, :]
        state = state + k[..., None] * v[..., None, :]
        return state, SCALE * held(q, before if form == "channel before" else state)

    tokens = jax.tree.map(lambda x: x.swapaxes(0, 1), (q, k, v, log_decay, begins, *erasing))
    state, y = jax.lax.scan(token, state, tokens)
    return y.swapaxes(0, 1), state


def fused(form, *arrays, **options):
    options |= {"scale": SCALE, "variant": VARIANT, "inclusive": form != "channel before"}
    if "erases" in form:
        options |= {"beta": arrays[5]} if form == "head erases" else {"low_rank": arrays[5:]}
    return linear_recurrence(*arrays[:5], **options)


def with_gradients(function, form, arrays, gradients, starts):
    outputs, back = jax.vjp(lambda *arrays: function(form, *arrays, starts=starts), *arrays)
    return outputs, back(gradients)


@pytest.mark.parametrize("case", slow_but(CASES[:4], CASES, core=CASES[1:3]), ids=str)
def test_outputs_and_gradients(case):
    *sizes, form, packed = case
    given = *drawn(*sizes, form), starts_of(sizes[0]) if packed else None
    with interpreted():
        (y, state), gradients = jax.jit(lambda *given: with_gradients(fused, form, *given))(*given)
    with jax.enable_x64(True):
        wide = [jax.tree.map(lambda x: x.astype("float64"), x) for x in given[:2]]
        expected, of_arrays = jax.jit(lambda *given: with_gradients(loop, form, *given))(*wide, given[2])
    dtype = given[0][2].dtype
    assert (y.dtype, state.dtype) == (dtype, "float32")
    assert [x.dtype for x in gradients] == [x.dtype for x in given[0]]
    value, gradient = (FLOAT32, FLOAT32_GRADIENT) if dtype == "float32" else (BFLOAT16, 2 * BFLOAT16)
    assert_close((y, state), expected, value)
    assert_close(list(gradients), list(of_arrays), gradient)


@pytest.mark.parametrize("form", ["head erases", "channel erases"])
def test_rounded_products_leave_no_errors_in_the_state(form, monkeypatch):
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
    for module in (program, precision):
        monkeypatch.setattr(module, "dot", dot)
    (q, k, v, log_decay, state, *erasing), _ = drawn(length, 1, 1, 16, 16, "float32", form)
    if form == "head erases":
        erasing, log_decay = [jnp.full_like(erasing[0], 2)], jnp.zeros_like(log_decay)
    else:
        erasing, log_decay = [erasing[0], -2 * erasing[0]], jnp.full_like(log_decay, -1e-3)
    arrays = q, k, v, log_decay, state, *erasing
    with interpreted():
        y, last = jax.jit(functools.partial(fused, form))(*arrays)
    with jax.enable_x64(True):
        wide = [x.astype("float64") for x in arrays]
        outputs, expected = jax.jit(functools.partial(loop, form))(*wide)
    assert_close(last, expected, 3e-5)  # 5.8e-5 if exponents have 10 bits, 0.1 if products of the state have
    assert_close(y, outputs, 1e-2)
