"""The diagonal state-space model: its definition, its three forms, and the laws of every op with a state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.diagonal_ssm import diagonal_ssm_kernel
from tests.arrays import array, ones
from tests.ops.contract import Contract
from tests.ops.placement import Placement
from tests.tolerances import FLOAT64, assert_close


class Case(NamedTuple):
    sizes: tuple[int, int, int, int, int]  # B, N, H, V, S
    chunk: int


CASES = [Case((2, 23, 2, 2, 3), 8)]


class TestDiagonalSSM(Contract):
    """In chunks after a state, by the transform without one; parameters as the papers have them."""

    cases = CASES
    tokens, state = ("x",), ("modes",)
    wide = ("a", "b", "c", "dt", "skip")
    zero_padding = False
    test_without_a_placement = None  # the transform

    def arrays(self, rng, case):
        """A (stable), B, C and time steps of the usual sizes."""
        batch, length, heads, channels, modes = case.sizes
        a, b, c = rng.normal(size=(3, heads, modes, 2))
        a = np.stack([-np.exp(a[..., 0]) / 2, np.pi * (np.arange(modes) + a[..., 1] * 0.1)], axis=-1)
        return {
            "x": rng.normal(size=(batch, length, heads, channels)),
            "a": a,
            "b": b,
            "c": c,
            "dt": np.exp(rng.uniform(np.log(1e-3), np.log(0.5), heads)),
            "skip": rng.normal(size=heads),
            "modes": rng.normal(size=(batch, heads, channels, modes, 2)),
        }

    def call(self, arrays, at, case, implementation):
        log_a, weight = ops.discretize_bilinear(*(arrays[name] for name in ("a", "b", "c", "dt")))
        before = at.after(lambda stream: ops.DiagonalSSMState(arrays["modes"], stream))
        y = ops.diagonal_ssm(
            arrays["x"],
            log_a,
            weight,
            skip=arrays["skip"],
            initial_state=before,
            return_state=before is not None,
            **at.context,
            chunk_size=case.chunk,
            implementation=implementation,
        )
        return (y[0], {"modes": y[1].modes}, y[1].stream) if before is not None else (y, {}, None)

    def oracle(self, arrays, at, case):
        """h_t = abar h_{t-1} + x_t per segment."""
        x, dt = arrays["x"], arrays["dt"]
        a, b, c, h = (arrays[name][..., 0] + 1j * arrays[name][..., 1] for name in ("a", "b", "c", "modes"))
        abar = (1 + dt[:, None] * a / 2) / (1 - dt[:, None] * a / 2)
        weight = b * c * dt[:, None] / (1 - dt[:, None] * a / 2)
        y = np.zeros(x.shape)
        for row, t in np.argwhere(at.mask):
            h[row] = abar[:, None] * (0 if at.begins[row, t] else h[row]) + x[row, t][..., None]
            y[row, t] = 2 * np.einsum("hs,hvs->hv", weight, h[row]).real
            y[row, t] += arrays["skip"][:, None] * x[row, t]
        return y, {"modes": np.stack([h.real, h.imag], axis=-1)}

    @pytest.mark.parametrize("segments", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_the_transform(self, segments):
        """Without a state, of one document in each row or several."""
        case = self.cases[0]

        def law(drawn):
            at = drawn.at if segments else self.alone(drawn.at)
            y, _ = self.oracle(drawn.arrays, at, case)
            weights = drawn.weights | {"modes": 0 * drawn.weights["modes"]}
            drawn = drawn._replace(at=at, weights=weights, y=y)
            given = Placement(*at[:2]) if segments else Placement()
            programs = [("xla", "float32"), ("reference", "float64")]
            for name, dtype in programs if segments else programs[:1]:
                result = self.run(drawn.arrays, given, weights, case, name, dtype)
                self.check(result, drawn, name, dtype)
                self.check_gradients(result, drawn, case, name, dtype)

        self.law(case, law, fresh=True, full=not segments)


def test_long_kernels_keep_their_digits():
    """Thousands of lags of slow modes in float32; powers of a rounded transition would be off by 1e-4."""
    a, dt = np.array([[[-0.5, 0.0], [-0.5, 3 * np.pi]]]), np.array([1e-3])
    one = np.array([[[1.0, 0.0]] * 2])
    kernel = jax.jit(lambda *arrays: diagonal_ssm_kernel(*ops.discretize_bilinear(*arrays), 5000))
    z = dt * (a[..., 0] + 1j * a[..., 1]) / 2
    exact = 2 * (((1 + z) / (1 - z)) ** np.arange(5000)[:, None] * dt / (1 - z)).sum(1).real
    with jax.enable_x64(True):
        assert_close(kernel(a, one, one, dt)[:, 0], exact, FLOAT64)
    assert_close(kernel(*map(np.float32, (a, one, one, dt)))[:, 0], exact, 3e-6)


def test_a_transition_of_zero():
    """dt A = -2 forgets everything: one tap, and finite gradients."""
    a, one = array([[[-2.0, 0.0]]]), array([[[1.0, 0.0]]])

    @jax.jit
    @jax.value_and_grad
    def loss(a):
        log_a, weight = ops.discretize_bilinear(a, one, one, ones(1))
        y = ops.diagonal_ssm(ones((1, 4, 1, 1)), log_a, weight)
        return (y * jnp.arange(4.0)[:, None, None]).sum()

    value, gradient = loss(a)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
