"""Products with weights: the form for one row on a GPU is the same product."""

import importlib.util

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import ops
from based_jax.ops.core import platforms
from based_jax.ops.core.products import gated_product, in_loop_over_tokens, plus_bias, product, row_products
from based_jax.ops.norm import add_rms_norm
from based_jax.ops.short_conv import projected_conv_step
from benchmarks.gpu.static import cost, hlo
from benchmarks.gpu.static.topology import PLUGINS, compile_for, use_cpu
from tests.tolerances import BFLOAT16, assert_close


def _drawn(*shape, dtype):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), dtype)


@pytest.mark.parametrize(
    ("lead", "dtype"),
    [
        *(((1,) * axes, "bfloat16") for axes in range(3)),
        ((3, 1), "bfloat16"),
        ((1,), "float16"),
        ((1,), "float32"),
    ],
    ids=str,
)
def test_a_row_on_a_gpu_is_multiplied_as_two(monkeypatch, lead, dtype):
    x, weights = _drawn(*lead, 24, dtype=dtype), _drawn(24, 5, dtype=dtype)

    def with_gradients(multiply):
        def loss(x, weights):
            y = multiply(x, weights)
            return jnp.sum(y.astype("float32")), y

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, weights)

    plain = with_gradients(jnp.matmul)
    monkeypatch.setattr(platforms, "platform_of", lambda arrays: "gpu")
    chex.assert_trees_all_equal(with_gradients(product), plain)
    assert ("2,24]" in str(jax.make_jaxpr(product)(x, weights))) == (dtype != "float32" and lead != (3, 1))


def test_a_row_of_16_bits_takes_the_kernels_where_they_run():
    x, first, second = (
        _drawn(1, 1, 64, dtype="bfloat16"),
        _drawn(64, 8, dtype="bfloat16"),
        _drawn(64, 32, dtype="bfloat16"),
    )
    plain = gated_product(x, second, "silu")
    with in_loop_over_tokens():
        assert row_products(x, first) is None, "on a CPU"
    with pallas_kernels.interpreted():
        assert row_products(x, first) is None, "not in a loop"
    with pallas_kernels.interpreted(), in_loop_over_tokens():
        (y,) = jax.jit(row_products)(x, first)
        gated = jax.jit(gated_product, static_argnums=2)(x, second, "silu")
        rows, wide = jnp.concatenate([x, x], axis=1), x.astype("float32")
        for others in ((rows, first), (wide, first.astype("float32")), (x[..., :48], first[:48])):
            assert row_products(*others) is None
        program = str(jax.make_jaxpr(gated_product, static_argnums=2)(x, second, "gelu"))
        assert "name=row_products" in program, "the product alone"
    assert_close(y, x @ first, BFLOAT16)
    assert (y.shape, gated.shape) == ((1, 1, 8), (1, 1, 16))
    assert_close(gated, plain, BFLOAT16)


def test_a_row_and_its_convolution_take_one_kernel_where_both_run():
    x, weights, taps = (_drawn(*size, dtype="bfloat16") for size in ((1, 1, 64), (64, 16), (3, 8)))

    def run(x):
        state = ops.init_short_conv_state(len(x), 8, 3, x.dtype)
        return projected_conv_step(x, weights.astype(x.dtype), weights[0], kernel=taps, state=state)

    with pallas_kernels.interpreted():
        plain = run(x)
        with in_loop_over_tokens():
            programs = [str(jax.make_jaxpr(run)(each)) for each in (x, x.astype("float32"), x.repeat(2, 0))]
            assert_close(run(x), plain, 2 * BFLOAT16)
    assert ["name=conv_row_product" in each for each in programs] == [True, False, False]


def test_rows_of_a_cpu_are_multiplied_in_one_axis():
    x, weights = _drawn(2, 3, 24, dtype="float32"), _drawn(24, 5, dtype="float32")
    assert "[6,24]" in str(jax.make_jaxpr(product)(x, weights)).replace("f32", "")
    np.testing.assert_allclose(product(x, weights), np.einsum("abk,kv->abv", x, weights), rtol=1e-5)


@pytest.mark.skipif(not any(map(importlib.util.find_spec, PLUGINS)), reason="needs jax's CUDA plugin")
def test_compiled_for_a_gpu_it_reads_the_weights_once():
    use_cpu()
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1, 2048), (2048, 1024))]
    works = cost.work(hlo.read(compile_for("NVIDIA H200", product, *shapes).as_text() or ""))
    assert sum(each.bytes for each in works) < 1.05 * 2 * 2048 * 1024


def test_a_pending_norm_of_another_dtype_is_computed():
    stream, scale = jnp.arange(64.0).reshape(1, 1, 64), jnp.ones(64)
    branch = stream.astype(jnp.bfloat16)
    with pallas_kernels.interpreted():
        plain = add_rms_norm(stream, branch, scale, dtype=branch.dtype, pending=True)
        with in_loop_over_tokens():
            *_, pending, _ = add_rms_norm(stream, branch, scale, dtype=branch.dtype, pending=True)
        assert pending.astype("bfloat16") is pending
        y = pending.astype(jnp.float32)
    for found, expected in zip((pending.stream, y, pending.are_numbers), plain, strict=True):
        np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_the_gradient_of_a_narrow_bias_is_summed_in_float32():
    def total(bias):
        return plus_bias(jnp.ones((4, 64, 8), "bfloat16"), bias).astype("float32").sum()

    made = jax.make_jaxpr(jax.grad(total))(jnp.ones(8))
    sums = [equation.outvars[0].aval for equation in made.eqns if equation.primitive.name == "reduce_sum"]
    assert {(8,), ()} <= {found.shape for found in sums}  # the gradient, the total
    assert {found.dtype.name for found in sums} == {"float32"}
