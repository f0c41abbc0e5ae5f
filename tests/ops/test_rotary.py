"""Rotary embedding against complex numbers, and what it is for: scores depend on distances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_ANGLE, assert_close

rotary = functools.partial(jax.jit, static_argnames=("dim", "base", "interleaved"))(ops.rotary)

# (head width, channels that take part): all, none left over, a part, odd dims, one pair
DIMS = [(4, 4), (2, 2), (8, 4), (8, 5), (6, 1), (70, 35), (5, 4)]
CORE = [(8, 4), (8, 5)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("width", "dim"), [pytest.param(*dims, marks=[pytest.mark.release] * (dims not in CORE)) for dims in DIMS]
)
def test_turns_pairs_as_complex_numbers(width, dim, interleaved):
    @settings(max_examples=5)
    @given(draw.seeds, st.booleans())
    def law(seed, one_row):
        rng = np.random.default_rng(seed)
        base = 500.0 if one_row else 10000.0
        x = rng.normal(size=(2, 3, 2, width)).astype(np.float32)
        positions = rng.integers(0, 4096, size=(1 if one_row else 2, 3))
        y = np.asarray(rotary(x, np.int32(positions), dim=dim, base=base, interleaved=interleaved))
        expected = oracles.rotary(x.astype(np.float64), positions, dim, base, interleaved)
        assert_close(y, expected, FLOAT32 + 4096 * FLOAT32_ANGLE)
        rotated = 2 * ((dim + 1) // 2)
        assert np.array_equal(y[..., rotated:], x[..., rotated:])

    law()


def test_scores_are_those_of_the_distance_at_any_offset():
    """Float32 products of position and frequency are off by 0.03 at 1e6 and by whole turns at 1e9."""
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 64)).astype(np.float32)[:, :, None]
    near = None
    for offset in (0, 10**6, 10**9, 2**31 - 8, -(2**31)):
        at = [np.full((1, 1), offset + step, np.int32) for step in (7, 2)]
        score = np.vdot(rotary(q, at[0]), rotary(k, at[1]))
        near = score if near is None else near
        assert_close(score, near, 1e-5)  # 64 products, each off by 4e-7


def test_bfloat16_angles_are_float32():
    """At position 4095 a bfloat16 position would be off by several radians."""
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 8))
    y = rotary(x.astype(jnp.bfloat16), np.full((1, 1), 4095, np.int32))
    assert_close(y, oracles.rotary(x, np.full((1, 1), 4095), 8, 1e4, False), 2 * BFLOAT16)
