"""The diagonal state-space model: its definition, its three forms, and the laws of every op with a state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from based_jax.ops.diagonal_ssm import diagonal_ssm_kernel
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, FLOAT32_STATE, FLOAT64, assert_close

LENGTH, HEADS, CHANNELS, MODES, CHUNK = 23, 2, 2, 3, 8


def numbers(seed):
    """x, the papers' A (stable), B, C, time steps of the usual sizes, skip; float64."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(size=(3, HEADS, MODES, 2))
    a = np.stack([-np.exp(a[..., 0]) / 2, np.pi * (np.arange(MODES) + a[..., 1] * 0.1)], axis=-1)
    dt = np.exp(rng.uniform(np.log(1e-3), np.log(0.5), HEADS))
    x = rng.normal(size=(2, LENGTH, HEADS, CHANNELS))
    return x, a, b, c, dt, rng.normal(size=HEADS)


def narrow(arrays):
    return [array(a, jnp.float32) for a in arrays]


@functools.partial(jax.jit, static_argnames=("implementation", "stateful"))
def everything(x, a, b, c, dt, skip, ids, mask, weights, implementation, stateful):
    """Outputs, state and gradients."""

    def loss(x, a, b, c, dt, skip):
        options = {}
        if stateful:
            initial = ops.init_diagonal_ssm_state(2, HEADS, CHANNELS, MODES, x.dtype)
            options = {"initial_state": initial, "return_state": True, "chunk_size": CHUNK}
        y = ops.diagonal_ssm(
            x, *ops.discretize_bilinear(a, b, c, dt),
            skip=skip, segment_ids=ids, mask=mask, implementation=implementation, **options,
        )  # fmt: skip
        y, state = y if stateful else (y, None)
        kept = 0.0 if state is None else (state.modes * 0.1).sum()
        return (y * weights).sum() + kept, (y, state)

    run = jax.value_and_grad(loss, tuple(range(6)), has_aux=True)
    (_, (y, state)), gradients = run(x, a, b, c, dt, skip)
    return jnp.where(mask[..., None, None], y, 0), state, gradients


def defined(x, a, b, c, dt, skip, ids, counts):
    """h_t = abar h_{t-1} + x_t per segment, and the modes behind each row's last token."""
    a, b, c = (z[..., 0] + 1j * z[..., 1] for z in (a, b, c))
    abar = (1 + dt[:, None] * a / 2) / (1 - dt[:, None] * a / 2)
    weight = b * c * dt[:, None] / (1 - dt[:, None] * a / 2)
    y, last = np.zeros(x.shape), np.zeros((2, HEADS, CHANNELS, MODES), complex)
    for row in range(2):
        starts = oracles.segment_starts(ids[row][: counts[row]])
        h = np.zeros((HEADS, CHANNELS, MODES), complex)
        for t in range(counts[row]):
            h = abar[:, None] * (0 if starts[t] == t else h) + x[row, t][..., None]
            y[row, t] = 2 * np.einsum("hs,hvs->hv", weight, h).real + skip[:, None] * x[row, t]
        last[row] = h
    return y, np.stack([last.real, last.imag], axis=-1)


def test_values_states_and_gradients():
    """The recurrence against its definition, the FFT and the chunks against the recurrence."""

    @given(draw.seeds, draw.segment_ids(2, LENGTH), draw.counts(2, LENGTH))
    @settings(max_examples=8)
    def law(seed, ids, counts):
        arrays, mask = numbers(seed), draw.mask(counts, LENGTH)
        weights = np.random.default_rng(0).normal(size=arrays[0].shape) * mask[..., None, None]
        with jax.enable_x64(True):
            exact = everything(*arrays, ids, mask, weights, "reference", True)
            y, modes = defined(*arrays, ids, counts)
            assert_close((exact[0], exact[1].modes), (y, modes), FLOAT64)
            assert exact[1].stream.length.tolist() == counts.tolist()
            assert_close(everything(*arrays, ids, mask, weights, "xla", True), exact, FLOAT64)
            alone = everything(*arrays, ids, mask, weights, "xla", False)
            assert_close(alone[0], exact[0], FLOAT64)
        low = everything(*narrow(arrays), ids, mask, weights.astype(np.float32), "xla", True)
        assert_close(low[0], exact[0], FLOAT32)
        assert_close(low[1], exact[1], FLOAT32_STATE)
        assert_close(low[2], exact[2], FLOAT32_GRADIENT)

    law()


def test_the_transform_and_its_gradients():
    """Without segments; the test above leaves this form's gradients out."""
    arrays = numbers(1)

    @functools.partial(jax.jit, static_argnames="implementation")
    def run(x, a, b, c, dt, implementation):
        def loss(x, dt):
            y = ops.diagonal_ssm(x, *ops.discretize_bilinear(a, b, c, dt), implementation=implementation)
            return (y**2).sum(), y

        (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, dt)
        return y, gradients

    with jax.enable_x64(True):
        exact = run(*arrays[:-1], "reference")
        assert_close(run(*arrays[:-1], "xla"), exact, FLOAT64)
    y, gradients = run(*narrow(arrays[:-1]), "xla")
    assert_close(y, exact[0], FLOAT32)
    assert_close(gradients, exact[1], FLOAT32_GRADIENT)


def test_split_law():
    x, a, b, c, dt, skip = narrow(numbers(2))
    ids = np.repeat([[4, 2, 2, 4]], [5, 9, 1, 8], axis=1).repeat(2, axis=0).astype(np.int32)
    log_a, weight = jax.jit(ops.discretize_bilinear)(a, b, c, dt)
    run = functools.partial(
        jax.jit(ops.diagonal_ssm, static_argnames=("return_state", "chunk_size")),
        log_a=log_a, weight=weight, skip=skip, chunk_size=CHUNK,
    )  # fmt: skip
    whole = run(x, segment_ids=ids)
    state = ops.init_diagonal_ssm_state(2, HEADS, CHANNELS, MODES)
    outputs, begin = [], 0
    for size in (1, 10, 1, 1, 10):
        piece = slice(begin, begin + size)
        y, state = run(
            np.asarray(x)[:, piece], initial_state=state, return_state=True, segment_ids=ids[:, piece]
        )
        outputs.append(y)
        begin += size
    assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)


def test_long_kernels_keep_their_digits():
    """Thousands of lags of slow modes in float32; powers of a rounded transition would be off by 1e-4."""
    a, dt = np.array([[[-0.5, 0.0], [-0.5, 3 * np.pi]]]), np.array([1e-3])
    one = np.array([[[1.0, 0.0]] * 2])
    kernel = jax.jit(lambda *arrays: diagonal_ssm_kernel(*ops.discretize_bilinear(*arrays), 5000))
    z = dt * (a[..., 0] + 1j * a[..., 1]) / 2
    exact = 2 * (((1 + z) / (1 - z)) ** np.arange(5000)[:, None] * dt / (1 - z)).sum(1).real
    with jax.enable_x64(True):
        assert_close(kernel(a, one, one, dt)[:, 0], exact, FLOAT64)
    assert_close(kernel(*narrow((a, one, one, dt)))[:, 0], exact, 3e-6)


def test_a_transition_of_zero():
    """dt A = -2 forgets everything: one tap, and finite gradients."""
    a, one = array([[[-2.0, 0.0]]]), array([[[1.0, 0.0]]])

    @jax.jit
    @jax.value_and_grad
    def loss(a):
        log_a, weight = ops.discretize_bilinear(a, one, one, jnp.ones(1))
        y = ops.diagonal_ssm(jnp.ones((1, 4, 1, 1)), log_a, weight)
        return (y * jnp.arange(4.0)[:, None, None]).sum()

    value, gradient = loss(a)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_low_precision():
    """bfloat16 in and out, float32 inside."""
    x, *arrays, _ = narrow(numbers(3))
    run = jax.jit(lambda x: ops.diagonal_ssm(x, *ops.discretize_bilinear(*arrays)))
    x = array(x, jnp.bfloat16)
    y = run(x)
    assert y.dtype == jnp.bfloat16
    assert_close(y, run(x.astype(jnp.float32)), 4e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.ones((2, 3, 4))}, ValueError, "x has shape"),
        ({"x": jnp.ones((2, 3, 1, 1), int)}, TypeError, "x has dtype"),
        ({"log_a": jnp.ones((2, 3, 2))}, ValueError, "log_a has shape"),
        ({"log_a": jnp.ones((1, 3), complex)}, ValueError, "log_a has shape"),
        ({"weight": jnp.ones((1, 2, 2))}, ValueError, "weight has shape"),
        ({"skip": jnp.ones(2)}, ValueError, "skip has shape"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0: expected at least 1"),
        ({"return_state": True}, ValueError, "return_state = True: expected False without a state"),
        ({"initial_state": ops.init_diagonal_ssm_state(2, 1, 1, 2)}, ValueError, r"state\.modes has shape"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    arguments = {"x": jnp.ones((2, 3, 1, 1)), "log_a": jnp.ones((1, 3, 2)), "weight": jnp.ones((1, 3, 2))}
    with pytest.raises(error, match=message):
        ops.diagonal_ssm(**arguments | changes)
