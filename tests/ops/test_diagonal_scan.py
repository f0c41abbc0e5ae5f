"""Scans with an elementwise state: the token loop, its gradients, and what the laws ask of every op."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import ones
from tests.marks import release_but, slow_but
from tests.ops.contract import Contract, Interpreted


class Case(NamedTuple):
    """Sizes, and whether the inputs skip the scan."""

    sizes: tuple[int, int, int, int]  # B, N, E, S
    chunk: int | None
    skip: bool = True


FUSED = [Case((2, 11, 32, 2), None)]
CASES = [Case((2, 11, 3, 2), 4), Case((1, 7, 2, 3), None, skip=False), Case((2, 1, 1, 2), None)]


class TestSelectiveScan(Contract):
    """Step sizes from shut to wide open."""

    cases = slow_but(CASES[:2], CASES, core=CASES[:1])
    bare = CASES[1:2]
    tokens, state = ("x", "dt", "B", "C"), ("h",)

    def arrays(self, rng, case):
        batch, length, channels, states = case.sizes
        open_by = rng.choice([0.0, 0.1, 1.0, 30.0], size=(batch, length, channels))
        arrays = {
            "x": rng.normal(size=(batch, length, channels)),
            "dt": open_by * rng.random((batch, length, 1)),
            "A": -rng.exponential(size=(channels, states)),
            "B": rng.normal(size=(batch, length, states)),
            "C": rng.normal(size=(batch, length, states)),
            "h": rng.normal(size=(batch, channels, states)),
        }
        return arrays | ({"D": rng.normal(size=channels)} if case.skip else {})

    def call(self, arrays, at, case, implementation):
        y, state = ops.selective_scan(
            *(arrays[name] for name in ("x", "dt", "A", "B", "C")),
            arrays.get("D"),
            initial_state=at.after(lambda stream: ops.DiagonalScanState(arrays["h"], stream)),
            return_state=True,
            **at.context,
            chunk_size=case.chunk,
            implementation=implementation,
        )
        return y, {"h": state.h}, state.stream

    def oracle(self, arrays, at, case):
        x, dt, A, B, C = (arrays[name] for name in ("x", "dt", "A", "B", "C"))
        y, h = np.zeros(x.shape), arrays["h"].copy()
        for row, t in np.argwhere(at.mask):
            h[row] *= not at.begins[row, t]
            h[row] = np.exp(dt[row, t][:, None] * A) * h[row] + np.outer(dt[row, t] * x[row, t], B[row, t])
            y[row, t] = h[row] @ C[row, t] + arrays.get("D", 0) * x[row, t]
        return y, {"h": h}


class TestSelectiveScanKernel(Interpreted, TestSelectiveScan):
    cases = release_but([], FUSED)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extreme_gates(dtype):
    """Gates of exactly 0 and 1 give numbers, forward and backward."""
    numbers = TestSelectiveScan().arrays(np.random.default_rng(2), Case((1, 9, 2, 2), 4))
    arrays = {name: np.float32(x) for name, x in numbers.items()}
    dt = np.float32([[0.0], [1e4], [0.0], [1e-30], [1e4], [1e4], [0.0], [1.0], [0.0]]) * np.ones((1, 1, 2))
    arrays |= {"dt": dt, "A": np.float32([[-1e4, -1e-30], [0.0, -1.0]])}

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(arrays):
        x, dt, A, B, C = (arrays[name].astype(dtype) for name in ("x", "dt", "A", "B", "C"))
        y = ops.selective_scan(x, dt, A, B, C, chunk_size=4)
        return (y.astype(jnp.float32) ** 2).sum(), y

    (_, y), gradients = run(arrays)
    assert y.dtype == dtype
    chex.assert_tree_all_finite((y, gradients))


@pytest.mark.release
def test_the_history_of_states_is_never_in_memory():
    """The backward pass included: a state per chunk, and one chunk's insides."""
    length, channels, states = 8192, 8, 16
    tokens, maps, rates = (
        jax.ShapeDtypeStruct(shape, np.float32)
        for shape in ((1, length, channels), (1, length, states), (channels, states))
    )

    def loss(x, dt, A, B, C):
        return ops.selective_scan(x, dt, A, B, C).sum()

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    compiled = program.lower(tokens, tokens, rates, maps, maps).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 4 * length * channels * states


def test_terms_of_numpy(unchecked):
    x = np.ones((1, 3, 2), np.float32)
    np.testing.assert_array_equal(ops.diagonal_scan((x, x), lambda t: t, lambda h, t: h)[0, :, 0], [1, 2, 3])


def test_terms_have_one_shape(unchecked):
    """A constant decay is not widened silently: a scan needs one for each token."""
    with pytest.raises(ValueError, match=r"a of terms has shape \(4,\): expected \(2, 1, 4\)"):
        ops.diagonal_scan(ones((2, 3, 4)), lambda x: (jnp.ones(4), x), lambda h, x: h)
