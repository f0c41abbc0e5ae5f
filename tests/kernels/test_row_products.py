"""One row times matrices, in the interpreter: against float64, and what takes the place of the kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SumNorm, conv_row_product, gated_row_product, interpreted, row_products
from pallas_kernels.conv_step import conv_step, formula
from pallas_kernels.row_products import Variant
from tests.arrays import array
from tests.kernels import test_conv_step
from tests.marks import release_but
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

TOLERANCES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}

# A last block that is not full, results of less than one block, tiles in several turns of the loop, one tile.
CASES = [
    ("float32", 576, (16, 40, 7), Variant(width=32, results=16)),
    ("bfloat16", 128, (32, 8), None),
    ("float16", 192, (24,), None),
    ("float32", 64, (1, 64, 33), Variant(width=64, results=32)),
]


def drawn(length, *results, dtype="float32"):
    rng = np.random.default_rng(length)
    shapes = [(length,), *((*np.atleast_1d(n), length) for n in results)]
    return [array(rng.normal(size=shape) / length**0.25, dtype) for shape in shapes]


def exact(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


@pytest.mark.parametrize("case", release_but(CASES[:2], CASES), ids=str)
def test_products_of_matrices_of_any_width(case):
    dtype, length, results, variant = case
    x, *matrices = drawn(length, *results, dtype=dtype)
    biases = [matrix[:, 0] for matrix in matrices]

    def both(*arrays):
        plain = row_products(*arrays, variant=variant)
        return *plain, *row_products(*arrays, biases=biases, variant=variant)

    with interpreted():
        found = jax.jit(both)(x, *matrices)
    row, *wide = exact(x, *matrices)
    assert [(y.shape, y.dtype) for y in found] == 2 * [((n,), dtype) for n in results]
    expected = [matrix @ row for matrix in wide] + [matrix @ row + matrix[:, 0] for matrix in wide]
    for y, each in zip(found, expected, strict=True):
        assert_close(y, each, TOLERANCES[dtype])


@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("dtype", release_but(["bfloat16"], ["float32", "bfloat16"]))
def test_a_gate_is_the_second_half(dtype, gate):
    x, matrix = drawn(128, (2, 40), dtype=dtype)
    with interpreted():
        y = jax.jit(lambda *arrays: gated_row_product(*arrays, gate=gate)[0])(x, matrix)
    row, wide = exact(x, matrix)
    value, factor = wide[0] @ row, wide[1] @ row
    activated = 1 / (1 + np.exp(-factor)) * (factor if gate == "silu" else 1)
    assert_close(y, value * activated, 2 * TOLERANCES[dtype])


@pytest.mark.parametrize("case", release_but(CASES[:1], CASES[:2]), ids=str)
def test_the_row_may_be_the_norm_of_a_sum(case):
    dtype, length, results, variant = case
    x, *matrices, halves = drawn(length, *results, (2, 24), dtype=dtype)
    sent, scale, bias = (array(np.roll(np.asarray(x, np.float32), n), "float32") for n in (1, 2, 3))

    @jax.jit
    def both(x, stream, broken):
        options = {"norm": SumNorm(stream, scale, broken, bias, eps=1e-5), "variant": variant}
        return row_products(x, *matrices, **options), gated_row_product(x, halves, **options)

    for stream, broken in ((None, None), (sent, False), (sent, True)):
        with interpreted():
            several, one = both(x, stream, broken)
        row, factors, addend = exact(x, scale, bias)
        total = row + addend + (0 if stream is None else exact(stream)[0])
        y = 0 * total if broken else total / np.sqrt(np.mean(total**2) + 1e-5) * factors
        value, factor = exact(halves)[0] @ y
        expected = [*(matrix @ y for matrix in exact(*matrices)), value * factor / (1 + np.exp(-factor))]
        for found, each in zip([*several[:-2], one[0]], expected, strict=True):
            assert_close(found, each, 4 * TOLERANCES[dtype])
        for found, is_number in (several[-2:], one[-2:]):
            assert bool(is_number) is (not broken)
            assert np.isnan(found).all() if broken else np.allclose(found, total, atol=FLOAT32)


# dtype, E, T, biases of products and of the convolution, age, whether a first norm is a number, None without.
CONVS = [
    ("bfloat16", 42, 3, 1, 0, 1, True),
    ("float16", 40, 4, 0, 1, 9, False),
    ("bfloat16", 7, 2, 1, 1, 0, None),
]


@pytest.mark.parametrize("case", release_but(CONVS[:2], CONVS), ids=str)
def test_products_and_a_convolution_are_those_of_two_kernels(case):
    dtype, channels, taps, has_added, has_bias, age, is_number = case
    x, halves, more = drawn(128, (2, channels), channels, dtype=dtype)
    # What lies before the segment may be anything.
    history = more[:, 1:taps].T[None].at[:, : max(taps - 1 - age, 0)].set(jnp.nan)
    conv = [jnp.array([age]), more[:, 8 : 8 + taps].T, *[more[:, 0]] * has_bias]
    added = [halves[..., 1]] * has_added
    norm = None if is_number is None else SumNorm(more[0], jnp.ones(128), jnp.array(not is_number))

    def both(x, halves, history, conv):
        one = conv_row_product(x, halves, history, *conv, added=added[0] if added else None, norm=norm)
        flat = [each.reshape(-1) for each in added]
        inner, *sums = row_products(x, halves.reshape(-1, 128), biases=flat, norm=norm)
        y, after = conv_step(inner.reshape(1, 2, channels), history, *conv, gated=True)
        return one, (y[0], after, *sums)

    with interpreted():
        one, two = jax.jit(both)(x, halves, history, conv)
    for found, each in zip(one, two, strict=True):
        np.testing.assert_array_equal(found, each)
    row, wide = exact(x, halves)
    if norm:
        row += exact(norm.stream)[0]
        row *= is_number / np.sqrt(np.mean(row**2) + norm.eps)
    inner = wide @ row + sum(exact(*added))
    y = test_conv_step.expected(inner[None], history, *conv, gated=True)
    assert_close(one[0], y[0], 4 * TOLERANCES[dtype])


def test_a_sum_whose_squares_overflow_is_no_number():
    x, matrix = drawn(64, 8)
    with interpreted():
        y, total, is_number = row_products(x, matrix, norm=SumNorm(jnp.full(64, 1e20), jnp.ones(64)))
    assert np.array_equal(y, np.zeros(8))
    assert np.isnan(total).all()
    assert not is_number


def test_rows_of_vmap_and_gradients_are_those_of_the_formula():
    x, first, second = drawn(128, 16, 8)
    norm = SumNorm(second[0], first[0], jnp.array(False), first[1])
    normed = functools.partial(row_products, norm=norm)

    @jax.jit
    def run(x):
        squares = lambda x: sum(jnp.sum(y**2) for y in row_products(x, first, second))  # noqa: E731
        mapped = jax.vmap(row_products, in_axes=(0, None, None))(x[None], first, second)
        both = jax.vmap(normed, in_axes=(0, None))(x[None], first), normed(x, first)
        return mapped, jax.grad(squares)(x), *both

    with interpreted():
        products, gradients, mapped, alone = run(x)
    for y, each in zip(mapped, alone, strict=True):
        assert_close(y[0], each, FLOAT32)
    row, *matrices = exact(x, first, second)
    for y, matrix in zip(products, matrices, strict=True):
        assert_close(y[0], matrix @ row, FLOAT32)
    assert_close(gradients, sum(2 * matrix.T @ (matrix @ row) for matrix in matrices), FLOAT32_GRADIENT)


def test_a_convolution_under_vmap_and_its_gradients_are_those_of_the_formula():
    x, matrix = drawn(128, (2, 8))
    conv = matrix[:1, :, :2].mT, jnp.array([1]), matrix[1, :, :3].T

    def plain(x):
        return formula((matrix @ x)[None], *conv, gated=True)[0]

    def fused(x):
        return conv_row_product(x, matrix, *conv)[0]

    with interpreted():
        mapped, gradients = jax.jit(lambda x: (jax.vmap(fused)(x[None]), jax.jacrev(fused)(x)))(x)
    value, expected = jax.jit(lambda x: (plain(x), jax.jacrev(plain)(x)))(x)
    assert_close(mapped, value, FLOAT32)
    assert_close(gradients[None], expected, FLOAT32_GRADIENT)
