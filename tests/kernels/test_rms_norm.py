"""The sum and norm between two branches, with its fused gradient in the interpreter, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import add_rms_norm, interpreted
from pallas_kernels.rms_norm import Variant, formula
from tests.arrays import array
from tests.marks import release_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

# dtype of the branch, N, D; with 6 tokens per program and 32 or 16 channels, some are full and some are not.
CASES = [("float32", 11, 24), ("float32", 1, 32), ("bfloat16", 12, 32)]
VARIANT = Variant(tokens=2, rounds=3)


def drawn(dtype, length, width):
    rng = np.random.default_rng(width)
    stream, branch, dx, dy = (rng.normal(size=(2, length, width)) for _ in range(4))
    scale, bias = (rng.normal(size=width) for _ in range(2))
    scale[:2] = 0, -1e-35  # their gradients must not vanish with y
    arrays = array(stream, "float32"), array(branch, dtype), array(scale, "float32"), array(bias, "float32")
    return arrays, (array(dx, "float32"), array(dy, dtype))


def results(arrays, gradients):
    def run(stream, branch, scale, bias):
        return add_rms_norm(stream, branch, scale, bias=bias, variant=VARIANT)[:2]

    outputs, back = jax.vjp(run, *arrays)
    return outputs, back(gradients)


def with_marks(arrays, gradients, broken):
    """Return the gradients, and the norm and which tokens are numbers."""

    def run(stream, branch, scale, bias):
        x, y, is_number = add_rms_norm(stream, branch, scale, broken, bias, variant=VARIANT)
        return (x, y), is_number

    (_, y), back, is_number = jax.vjp(run, *arrays, has_aux=True)
    return back(gradients), (y, is_number)


@pytest.mark.parametrize("case", release_but(CASES[:2], CASES), ids=str)
def test_outputs_and_gradients(case):
    arrays, gradients = drawn(*case)
    with interpreted():
        found = jax.jit(results)(arrays, gradients)

    @jax.jit
    def plain(arrays, gradients):
        function = lambda x, branch, scale, bias: formula(scale, x, branch, bias, eps=1e-5)[:2]  # noqa: E731
        outputs, back = jax.vjp(function, *arrays)
        return outputs, back(gradients)

    with jax.enable_x64(True):
        expected = plain(*jax.tree.map(lambda x: np.asarray(x, np.float64), (arrays, gradients)))
    assert found[1][1].dtype == case[0]
    narrow = case[0] == "bfloat16"
    assert_close(found[0], expected[0], BFLOAT16 if narrow else FLOAT32)
    assert_close(found[1], expected[1], BFLOAT16 if narrow else FLOAT32_GRADIENT)
    assert np.asarray(found[1][2][:2]).all()


def test_tokens_that_are_no_numbers_have_zeros_and_change_no_other_gradient():
    arrays, gradients = drawn("float32", 11, 24)
    bad = arrays[0].at[0, 4, 3].set(jnp.nan).at[1, 7, 0].set(jnp.inf)
    broken = jnp.zeros((2, 11), bool).at[1, 9].set(True)
    with interpreted():
        found, (y, is_number) = jax.jit(with_marks)((bad, *arrays[1:]), gradients, broken)
        clean = jax.jit(results)(arrays, gradients)[1]
    rows = np.array([[0, 4], [1, 7], [1, 9]])
    assert np.array_equal(np.argwhere(~np.asarray(is_number)), rows)
    assert not np.asarray(y)[~np.asarray(is_number)].any()
    assert np.isfinite(found[2]).all()
    assert np.isfinite(found[3]).all()
    kept = np.asarray(is_number)
    assert np.array_equal(np.asarray(found[0])[kept], np.asarray(clean[0])[kept])
    assert np.array_equal(np.asarray(found[0])[~kept], np.asarray(gradients[0])[~kept])
    assert not np.asarray(found[1])[~kept].any()


def test_without_eps_tokens_that_do_not_exist_have_no_gradient():
    (x, branch, scale, bias), _ = drawn("float32", 11, 24)
    total = lambda bias, eps: add_rms_norm(x, branch, scale, None, bias, eps=eps, variant=VARIANT)[1].sum()  # noqa: E731
    with interpreted():
        assert_close(jax.grad(total)(bias, 0.0), jax.grad(total)(bias, 1e-9), FLOAT32_GRADIENT)


def test_gradients_of_vmapped_rows_are_those_of_the_formula():
    arrays, gradients = drawn("float32", 11, 24)
    more = jax.tree.map(lambda x: np.asarray(x)[None], (arrays[:2], gradients))
    with interpreted():
        run = lambda part, gradients: results((*part, *arrays[2:]), gradients)[1]  # noqa: E731
        mapped = jax.jit(jax.vmap(run))(*more)
        plain = jax.jit(results)(arrays, gradients)[1]
    assert_close(jax.tree.map(lambda x: np.asarray(x)[0], mapped), plain, FLOAT32_GRADIENT)


def test_no_stream_is_a_stream_of_zeros():
    (stream, branch, scale, bias), gradients = drawn("float32", 11, 24)

    def run(stream):
        outputs, back = jax.vjp(
            lambda *x: add_rms_norm(stream, *x, None, bias, variant=VARIANT)[:2], branch, scale
        )
        return outputs, back(gradients)

    with interpreted():
        assert_close(*jax.jit(lambda: (run(None), run(jnp.zeros_like(stream))))(), FLOAT32)
