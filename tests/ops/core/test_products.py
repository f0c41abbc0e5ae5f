"""Products with weights: the form for one row on a GPU is the same product."""

import importlib.util

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax.ops.core import platforms
from based_jax.ops.core.products import (
    gated_product,
    in_loop_over_tokens,
    over_rows,
    product,
    row_products,
    stored,
)
from benchmarks.gpu.static import cost, hlo
from benchmarks.gpu.static.topology import PLUGINS, compile_for, use_cpu
from tests.tolerances import BFLOAT16, FLOAT32_GRADIENT, assert_close


def _drawn(*shape, dtype):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), dtype)


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_row_on_a_gpu_is_multiplied_as_two(monkeypatch, lead, dtype):
    x, weights = _drawn(*lead, 24, dtype=dtype), _drawn(24, 5, dtype=dtype)
    plain = product(x, weights)
    monkeypatch.setattr(platforms, "platform_of", lambda arrays: "gpu")
    np.testing.assert_array_equal(product(x, weights), plain)
    assert ("2,24]" in str(jax.make_jaxpr(product)(x, weights))) == (dtype != "float32" and lead != (3, 1))
    gradients = jax.grad(lambda x, w: jnp.sum(product(x, w).astype("float32")), argnums=(0, 1))(x, weights)
    wanted = jax.grad(lambda x, w: jnp.sum((x @ w).astype("float32")), argnums=(0, 1))(x, weights)
    chex.assert_trees_all_equal(gradients, wanted)


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


@pytest.mark.parametrize("rows", [(), (1,), (2, 7)], ids=str)
@pytest.mark.parametrize("own", [(5,), (3, 4)], ids=str)
def test_parameters_over_rows_are_broadcast(rows, own):
    parameters, x = _drawn(*own, dtype="float32"), _drawn(*rows, *own, dtype="float32")
    weights = np.asarray(x, np.float64)
    y, pull = jax.vjp(lambda p: over_rows(p, x), parameters)
    np.testing.assert_array_equal(y, jnp.broadcast_to(parameters, x.shape))
    wanted = weights.reshape(-1, *own).sum(axis=0)
    assert_close(pull(x)[0], wanted, FLOAT32_GRADIENT)


def test_parameters_over_rows_have_a_forward_derivative_and_map():
    parameters, x = _drawn(3, 5, dtype="float32"), _drawn(12, 5, dtype="float32")
    y, changes = jax.jvp(lambda p: over_rows(p, x), (parameters[0],), (parameters[1],))
    np.testing.assert_array_equal(y, jnp.broadcast_to(parameters[0], x.shape))
    np.testing.assert_array_equal(changes, jnp.broadcast_to(parameters[1], x.shape))
    mapped = jax.vmap(lambda p: over_rows(p, x))(parameters)
    np.testing.assert_array_equal(mapped, jnp.broadcast_to(parameters[:, None], (3, *x.shape)))


def test_what_a_cpu_stores_is_no_part_of_other_loops():
    x, y = _drawn(8, 4, dtype="float32"), _drawn(64, 8, 4, dtype="float32")
    np.testing.assert_array_equal(stored(x), x)

    def f(x, y):
        return stored(jnp.cos(x)) * y

    assert " dot(" in (jax.jit(f).lower(x, y).compile().as_text() or "")


@pytest.mark.parametrize("shape", [(24, 5), (5, 24)], ids=str)
def test_gradients_of_products_of_rows(shape):
    x, weights = _drawn(2, 30, shape[0], dtype="float32"), _drawn(*shape, dtype="float32")
    g = _drawn(2, 30, shape[1], dtype="float32")
    of_x, of_weights = jax.vjp(product, x, weights)[1](g)
    wide = (np.asarray(a, np.float64) for a in (x, weights, g))
    x, weights, g = wide
    assert_close(of_x, np.einsum("abv,kv->abk", g, weights), FLOAT32_GRADIENT)
    assert_close(of_weights, np.einsum("abk,abv->kv", x, g), FLOAT32_GRADIENT)


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
