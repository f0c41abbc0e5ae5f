"""Norms against their formulas, and their precision."""

import functools
import importlib.util

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.core import platforms
from benchmarks.gpu.static import cost, hlo
from benchmarks.gpu.static.topology import PLUGINS, compile_for, use_cpu
from tests.arrays import ones
from tests.ops import draw
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, assert_close


def rms_formula(x, scale, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def layer_formula(x, scale, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale + bias


@functools.partial(jax.jit, static_argnums=3)
def norms(x, scale, bias, eps=1e-5):
    """The norm by squares, and the other one with and without its bias."""
    return ops.rms_norm(x, scale, eps), ops.layer_norm(x, scale, bias, eps), ops.layer_norm(x, scale, eps=eps)


@given(st.sampled_from([(1,), (3, 4), (2, 3, 8)]), st.sampled_from([1e-5, 1e-2]), draw.seeds)
def test_formulas(shape, eps, seed):
    rng = np.random.default_rng(seed)
    x, scale, bias = rng.normal(size=shape), rng.normal(size=shape[-1]), rng.normal(size=shape[-1])
    with jax.enable_x64(True):
        rms, layer, without_bias = norms(x, scale, bias, eps)
    assert_close(rms, rms_formula(x, scale, eps), FLOAT64)
    assert_close(layer, layer_formula(x, scale, bias, eps), FLOAT64)
    assert_close(without_bias, layer_formula(x, scale, 0, eps), FLOAT64)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, FLOAT32), (jnp.bfloat16, BFLOAT16), (jnp.float16, FLOAT16)]
)
@pytest.mark.parametrize("magnitude", [1.0, 1e3])
def test_squares_do_not_overflow_in_low_precision(dtype, tolerance, magnitude):
    """float16 ends at 65504: the square of 1e3 does not fit."""
    x = (magnitude * np.random.default_rng(0).normal(size=(4, 16))).astype(dtype)
    rms, layer, _ = norms(x, np.ones(16, np.float32), np.zeros(16, np.float32))
    exact = np.asarray(x, np.float64)
    for y, expected in ((rms, rms_formula(exact, 1, 1e-5)), (layer, layer_formula(exact, 1, 0, 1e-5))):
        assert y.dtype == dtype
        assert_close(y, expected, tolerance)


def test_zeros_and_constants_have_finite_gradients():
    for norm in (ops.rms_norm, ops.layer_norm):
        run = jax.jit(jax.value_and_grad(lambda x, norm=norm: norm(x, ones(4)).sum()))
        for x in np.zeros((2, 4), np.float32), np.ones((2, 4), np.float32):
            chex.assert_tree_all_finite(run(x))


def test_scales_of_several_axes_norm_each_head_by_itself():
    rng = np.random.default_rng(0)
    x, (scale, bias) = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 3, 4))
    rms, layer, _ = norms(x, np.float32(scale), np.float32(bias))
    assert_close(rms, rms_formula(x, scale, 1e-5), FLOAT32)
    assert_close(layer, layer_formula(x, scale, bias, 1e-5), FLOAT32)


def test_l2_norm():
    """Unit length but for eps; zeros stay zeros, with a finite gradient; low precision does not overflow."""
    x = np.random.default_rng(0).normal(size=(3, 4))
    expected = x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
    with jax.enable_x64(True):
        assert_close(jax.jit(ops.l2_norm)(x), expected, FLOAT64)
    y = jax.jit(ops.l2_norm)((1e3 * x).astype(np.float16))
    assert y.dtype == jnp.float16
    assert_close(y, expected, FLOAT16)
    run = jax.jit(jax.value_and_grad(lambda x: ops.l2_norm(x).sum()))
    zeros, gradient = run(np.zeros((2, 4), np.float32))
    assert zeros == 0
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 1e3])
def test_one_row_on_a_gpu_has_the_same_norm(monkeypatch, magnitude):
    monkeypatch.setattr(platforms, "platform_of", lambda arrays: "gpu")
    rng = np.random.default_rng(1)
    x, scale, bias = magnitude * rng.normal(size=(1, 1, 96)), rng.normal(size=96), rng.normal(size=96)
    rms, layer = (
        ops.rms_norm(*map(np.float32, (x, scale))),
        ops.layer_norm(*map(np.float32, (x, scale, bias))),
    )
    assert_close(rms, rms_formula(x, scale, 1e-5), FLOAT32)
    assert_close(layer, layer_formula(x, scale, bias, 1e-5), FLOAT32)


@pytest.mark.skipif(not any(map(importlib.util.find_spec, PLUGINS)), reason="needs jax's CUDA plugin")
@pytest.mark.parametrize("rows", [1, 4])
def test_compiled_for_a_gpu_a_norm_is_one_kernel(rows):
    use_cpu()
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 1024), (1024,))]
    compiled = compile_for("NVIDIA H200", lambda x, scale: ops.rms_norm(x, scale).astype("bfloat16"), *shapes)
    assert len(cost.work(hlo.read(compiled.as_text() or ""))) == 1
