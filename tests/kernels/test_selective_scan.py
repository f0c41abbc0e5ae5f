"""The fused selective scan and its gradients, in the interpreter, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import interpreted, selective_scan
from pallas_kernels.selective_scan import Variant
from tests.arrays import array
from tests.marks import slow_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

TOLERANCES = {"float32": (FLOAT32, FLOAT32_GRADIENT), "bfloat16": (BFLOAT16, 2 * BFLOAT16)}

# dtype of x, B and C; N, S; whether some tokens forget the state. Chunks have 8 tokens, rounds 2.
CASES = [("float32", 19, 4, True), ("bfloat16", 16, 2, False), ("float32", 1, 1, True)]
CHUNK, VARIANT = 8, Variant(tokens=2)
BATCH, CHANNELS = 2, 64


def drawn(dtype, length, states):
    """x, dt, A, B, C, D and the state, with the gradients of both results; and keep."""
    rng = np.random.default_rng(length)
    tokens, maps, state = (BATCH, length, CHANNELS), (BATCH, length, states), (BATCH, CHANNELS, states)
    open_by = rng.choice([0.0, 0.1, 1.0, 30.0], size=tokens)
    x, B, C, of_y = (array(rng.normal(size=size), dtype) for size in (tokens, maps, maps, tokens))
    dt, A = open_by * rng.random(tokens), -rng.exponential(size=(CHANNELS, states))
    wide = [array(z, "float32") for z in (dt, A, rng.normal(size=CHANNELS), *rng.normal(size=(2, *state)))]
    dt, A, D, h, of_h = wide
    return (x, dt, A, B, C, D, h), (of_y, of_h), array(rng.random((BATCH, length)) > 0.2, "float32")


def loop(x, dt, A, B, C, D, h, keep=None):
    """The equations token by token, in the arrays' own dtype."""
    outputs = []
    for t in range(x.shape[1]):
        h = h if keep is None else keep[:, t, None, None] * h
        h = jnp.exp(dt[:, t, :, None] * A) * h + (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        outputs.append(jnp.einsum("bes,bs->be", h, C[:, t]) + D * x[:, t])
    return jnp.stack(outputs, axis=1), h


def kernels(*arrays):
    return selective_scan(*arrays, chunk=CHUNK, variant=VARIANT)


def with_gradients(function, arrays, gradients, *keep):
    outputs, back = jax.vjp(lambda *arrays: function(*arrays, *keep), *arrays)
    return outputs, back(gradients)


@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES), ids=str)
def test_outputs_and_gradients(case):
    dtype, length, states, forgets = case
    *given, keep = drawn(dtype, length, states)
    given = (*given, keep) if forgets else tuple(given)
    with interpreted():
        (y, h), gradients = jax.jit(lambda *given: with_gradients(kernels, *given))(*given)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype("float64"), given)
        expected, of_arrays = jax.jit(lambda *given: with_gradients(loop, *given))(*wide)
    assert (y.dtype, h.dtype) == (dtype, "float32")
    assert [x.dtype for x in gradients] == [x.dtype for x in given[0]]
    value, gradient = TOLERANCES[dtype]
    assert_close((y, h), expected, value)
    assert_close(list(gradients), list(of_arrays), gradient)


def test_a_rate_of_minus_infinity_leaves_no_nan():
    """Steps of 0, such as those of the tokens after the last one in its chunk, keep the state."""
    (x, dt, A, *rest), of_results, _ = drawn("float32", CHUNK - 3, 2)
    A, dt = A.at[0, 0].set(-jnp.inf).at[1, 1].set(-3e38), jnp.ones_like(dt)
    given = lambda function: lambda x: function(x, dt, A, *rest)  # noqa: E731
    with interpreted():
        found = jax.jit(lambda x: with_gradients(given(kernels), [x], of_results))(x)
    assert_close(found, jax.jit(lambda x: with_gradients(given(loop), [x], of_results))(x), FLOAT32_GRADIENT)


@pytest.mark.slow
def test_vmap_and_second_derivatives_are_those_of_the_formula():
    arrays, gradients, keep = drawn("float32", 5, 2)

    def rest(function):
        """The gradients of x mapped over rows, which share A and D, and those of a sum of their squares."""

        def of_x(x):
            rows = lambda x, dt, B, C, h, keep: function(  # noqa: E731
                *(z[None] for z in (x, dt)), A, *(z[None] for z in (B, C)), D, h[None], keep[None]
            )
            y, back = jax.vjp(lambda x: jax.vmap(rows)(x, dt, B, C, h, keep)[0][:, 0], x)
            return back(gradients[0] * y)[0]

        x, dt, A, B, C, D, h = arrays
        return jax.jit(lambda x: (of_x(x), jax.grad(lambda x: (of_x(x) ** 2).sum())(x)))(x)

    with interpreted():
        fused = rest(kernels)
    assert_close(fused, rest(loop), FLOAT32_GRADIENT)
