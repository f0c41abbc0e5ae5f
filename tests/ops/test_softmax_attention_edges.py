"""Softmax attention at its edges: grouped heads, rows without tokens, extreme values, memory, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.core.implementations import KERNELS
from based_jax.ops.tiled_attention import row_max
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, assert_close

IMPLEMENTATIONS = [
    name for name in ops.implementations("softmax_attention") if name not in (*KERNELS, "tiled")
]
FULL = ["tiled", *IMPLEMENTATIONS]
"""of full causal attention"""


def test_helpers_of_the_two_window_conventions():
    """The paper's w keys are left = w - 1; the authors' window_size W is halved: W // 2 + 1 keys."""
    assert [ops.left_from_paper_window(w) for w in (1, 16, 64)] == [0, 15, 63]
    assert [ops.left_from_torch_window(w) for w in (0, 1, 128, 256)] == [0, 0, 64, 128]
    with pytest.raises(ValueError, match="width = 0"):
        ops.left_from_paper_window(0)
    with pytest.raises(ValueError, match="window_size = -1"):
        ops.left_from_torch_window(-1)


@pytest.mark.parametrize("implementation", FULL)
@pytest.mark.parametrize("kwargs", [{}, {"left": 1}, {"causal": False}], ids=str)
def test_a_row_without_tokens_sees_nothing(implementation, kwargs):
    """Its outputs are 0, not the mean of its padding, and nothing flows back."""
    if kwargs and implementation == "tiled":
        with pytest.raises(ValueError, match="implementation = 'tiled': expected another one: it"):
            ops.softmax_attention(*[jnp.ones((1, 2, 1, 1))] * 3, implementation="tiled", **kwargs)
        return
    x = array(np.random.default_rng(0).normal(size=(2, 3, 1, 2)), jnp.float32)
    mask = array([[True, True, False], [False] * 3])

    @jax.jit
    def call(v):
        y, back = jax.vjp(
            lambda v: ops.softmax_attention(x, x, v, mask=mask, implementation=implementation, **kwargs), v
        )
        return y, back(jnp.ones_like(y))[0]

    y, gradient = map(np.asarray, call(x))
    assert not y[1].any()
    assert not gradient[1].any()
    assert y[0, :2].all()
    assert gradient[0, :2].all()


@functools.partial(jax.jit, static_argnames=("left", "implementation"))
def value_and_gradient(q, k, v, *, left: int | None, implementation: str):
    def loss(q, k, v):
        y = ops.softmax_attention(q, k, v, left=left, implementation=implementation)
        return y.astype(jnp.float32).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    return y, gradients


@pytest.mark.parametrize(
    ("dtype", "left"),
    [
        pytest.param(jnp.bfloat16, None, marks=pytest.mark.release),
        (jnp.float16, 3),
        pytest.param(jnp.float32, None, marks=pytest.mark.slow),
    ],
)
def test_extreme_values(dtype, left):
    """Scores of 1e6, equal keys and zeros: finite forward and backward, and right."""
    tolerance = {jnp.float32: FLOAT32, jnp.bfloat16: BFLOAT16, jnp.float16: FLOAT16}[dtype]

    @settings(max_examples=8)
    @given(st.sampled_from(["large", "equal", "zeros", "plain"]), draw.seeds)
    def law(kind, seed):
        rng = np.random.default_rng(seed)
        q, k, v = rng.normal(size=(3, 2, 20, 2, 4))
        if kind == "large":  # small integers times 1024: scores are exact, so that their order is
            q, k = (1024.0 * rng.integers(-3, 4, size=x.shape) for x in (q, k))
        if kind == "equal":
            k[:] = k[:1, :1]
        if kind == "zeros":
            q, k = 0 * q, 0 * k
        q, k, v = (array(x, dtype) for x in (q, k, v))
        expected = oracles.softmax_attention(*(np.asarray(x, np.float64) for x in (q, k, v)), left=left)
        for implementation in IMPLEMENTATIONS if left else FULL:
            y, gradients = value_and_gradient(q, k, v, left=left, implementation=implementation)
            assert y.dtype == dtype
            assert_close(y, expected, tolerance, f"{implementation} {kind}")
            for gradient in gradients:
                assert gradient.dtype == dtype
                assert np.isfinite(np.asarray(gradient, np.float32)).all(), f"{implementation} {kind}"

    law()


def temporary_bytes(function, length: int) -> int:
    array = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    return jax.jit(function).lower(array, array, array).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_is_linear_in_the_length_forward_and_backward():
    """Less than a sixteenth of all scores: no (N, N) matrix exists, in a window or in full."""

    def step(left):
        return lambda *qkv: jax.value_and_grad(
            lambda *x: ops.softmax_attention(*x, left=left).sum(), (0, 1, 2)
        )(*qkv)

    for left in (31, None):
        size = temporary_bytes(step(left), 8192)
        assert 0 < size < 4 * 2 * 8192**2 / 16, f"left = {left}: {size} bytes"


def test_long_rows_are_not_reduced_in_windows():
    """XLA's CPU compiler rewrites a reduction of more than 32 neighbours into windows, which are slow."""
    compiled = jax.jit(row_max).lower(jax.ShapeDtypeStruct((64, 256), np.float32)).compile().as_text()
    assert compiled is not None
    assert "reduce-window" not in compiled
