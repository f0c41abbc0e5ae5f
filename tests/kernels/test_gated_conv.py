"""The fused gate of a short convolution or an MLP and its gradients, in the interpreter, against float64."""

import jax
import numpy as np
import pytest

from pallas_kernels import gated_conv, interpreted
from pallas_kernels.gated_conv import Variant, formula
from pallas_kernels.gated_conv.kernel import Call
from tests.arrays import array
from tests.marks import slow_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

TOLERANCES = {"float32": (FLOAT32, FLOAT32_GRADIENT), "bfloat16": (BFLOAT16, 2 * BFLOAT16)}

# dtype, T, bias, activated half; the last chunk of tokens and the last block of channels are not full.
CASES = [
    ("float32", 3, True, 0),
    ("float32", 0, False, 1),
    ("bfloat16", 3, True, 0),
    ("float32", 4, False, 0),
    ("float32", 1, True, 1),
    ("float32", 0, True, 1),
]
VARIANT = Variant(channels=16, tokens=2, rounds=4)
LENGTH, CHANNELS = 19, 24


def drawn(dtype, taps, bias):
    rng = np.random.default_rng(taps)
    sizes = [(2, LENGTH, 2, CHANNELS), *[(taps, CHANNELS)] * (taps > 0), *[(2, CHANNELS)] * bias]
    inner, *parameters = (rng.normal(size=size) for size in sizes)
    return (
        array(inner, dtype),
        [array(x, "float32") for x in parameters],
        array(rng.normal(size=(2, LENGTH, CHANNELS)), dtype),
    )


def run(inner, parameters, taps, activated):
    given = list(parameters)
    kernel, bias = given.pop(0) if taps else None, given.pop() if given else None
    return gated_conv(inner, kernel, bias, activated=activated, variant=VARIANT)


@pytest.mark.parametrize("case", slow_but(CASES[:2], CASES), ids=str)
def test_outputs_and_gradients(case):
    dtype, taps, bias, activated = case
    inner, parameters, dy = drawn(dtype, taps, bias)

    def results(dtype, function):
        wide = [x.astype(dtype) if dtype else x for x in (inner, *parameters, dy)]
        outputs, back = jax.vjp(function, *wide[:-1])
        return outputs, back(wide[-1])

    with interpreted():
        y, gradients = jax.jit(lambda: results(None, lambda x, *rest: run(x, rest, taps, activated)))()
    call = Call("silu", activated, taps, bias, VARIANT)
    with jax.enable_x64(True):
        expected = jax.jit(lambda: results("float64", lambda *x: formula(*x, call=call)[0]))()
    assert y.dtype == dtype
    value, gradient = TOLERANCES[dtype]
    assert_close(y, expected[0], value)
    assert_close(list(gradients), list(expected[1]), gradient)


@pytest.mark.slow
def test_vmap_and_second_derivatives_are_those_of_the_formula():
    inner, parameters, _ = drawn("float32", 3, True)
    inner = inner[:1, :5]

    def squared(function):
        return jax.grad(lambda x: (jax.grad(lambda x: (function(x) ** 2).sum())(x) ** 2).sum())

    call = Call("silu", 0, 3, True, VARIANT)
    plain = lambda x: formula(x, *parameters, call=call)[0]  # noqa: E731
    fused = lambda x: run(x, parameters, 3, 0)  # noqa: E731
    with interpreted():
        mapped, found = jax.jit(lambda x: (jax.vmap(fused)(x[None])[0], squared(fused)(x)))(inner)
    value, expected = jax.jit(lambda x: (plain(x), squared(plain)(x)))(inner)
    assert_close(mapped, value, FLOAT32)
    assert_close(found, expected, FLOAT32_GRADIENT)
