"""Parameters of the state spaces that H3 convolves with (H3, section 3; Zoology's code).

    shift:     taps c_l = sum_n B_n C_{n+l}
    S4D:       modes A_n = -rate(r_n) + i w_n with step dt, input B_n and output C_n
    averages:  K_l = sum_n w_n q_n^l,   w = gamma p beta / sqrt(S),   q = 1 - p sigmoid(alpha),
               p = sigmoid(delta)

The last are Mega's moving averages (Ma et al. 2022, section 3.2). A mode is a logarithm and a weight, each a
pair of a real and an imaginary part, as `ops.diagonal_ssm` takes them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.contract import Mixer
from based_jax.mixers.initializers import Initializer, log_uniform, named, normal, uniform
from based_jax.typing import Array, Float
from based_jax.validate import expect, expect_choice

RATES: dict[str, tuple[Callable[[Array], Array], float]] = {
    "exp": (jnp.exp, math.log(0.5)),
    "none": (lambda r: r, 0.5),
    "relu": (lambda r: jax.nn.relu(r) + 1e-4, 0.5),
    "sigmoid": (jax.nn.sigmoid, 0.0),
    "softplus": (jax.nn.softplus, math.log(math.expm1(0.5))),
}
"""Map from parameter to rate, and the parameter whose rate is 1/2."""

DISCRETIZATIONS = {"bilinear": ops.discretize_bilinear, "zoh": ops.discretize_hold}

Modes = tuple[Float[Array, "H S 2"], Float[Array, "H S 2"]]


def shift_taps(mixer: Mixer, channels: int, states: int, prefix: str, axis: str) -> Float[Array, "S E"]:
    """Return the taps of a shift; its parameters are named `prefix` + "b" and "c"."""
    shape = (channels, states)

    def present(key: Array, shape: tuple[int, ...]) -> Array:
        return jnp.zeros(shape).at[:, 0].set(1)

    b = mixer.param(f"{prefix}b", named(present, axis, None), shape)
    c = mixer.param(f"{prefix}c", named(uniform(states**-0.5), axis, None), shape)
    # The correlation of c with b is a convolution with c reversed.
    return ops.long_conv(c.T[None, ::-1].astype(mixer.wide), b.T.astype(mixer.wide))[0, ::-1]


def s4d(mixer: Any, heads: int, modes: int) -> Modes:
    """Return the modes of S4D, by the options of an `H3`."""
    expect_choice("rate_form", mixer.rate_form, tuple(RATES))
    expect_choice("discretization", mixer.discretization, tuple(DISCRETIZATIONS))
    rate_of, half = RATES[mixer.rate_form]
    own = heads if mixer.num_ssms is None else mixer.num_ssms
    expect(heads % own == 0, "num_ssms", own, f"a divisor of the {heads} heads")
    axes = ("heads" if own == heads else None, None)

    log_dt = mixer.param("log_dt", named(log_uniform(mixer.dt_min, mixer.dt_max), "heads"), (heads,))
    rate = mixer.param("log_rate", named(nn.initializers.constant(half), *axes), (own, modes))
    frequency = mixer.param("frequency", named(frequencies, *axes), (own, modes))
    b = mixer.param("b", named(complex_ones, *axes, None), (own, modes, 2))
    c = mixer.param("c", named(normal(math.sqrt(0.5)), "heads", None, None), (heads, modes, 2))

    imaginary = jnp.zeros_like(frequency) if mixer.real else frequency
    a = jnp.stack([-rate_of(rate), imaginary], axis=-1)
    a, b, c, dt = (z.astype(mixer.wide) for z in (a, b, c, jnp.exp(log_dt)))
    a, b = (jnp.tile(z, (heads // own, 1, 1)) for z in (a, b))
    if mixer.bandlimit is not None:
        waves = dt[:, None] * jnp.abs(a[..., 1]) / (2 * math.pi)
        c = c * (waves < mixer.bandlimit / 2)[..., None]
    return DISCRETIZATIONS[mixer.discretization](a, b, c, dt)


def moving_averages(mixer: Mixer, heads: int, averages: int, tied_steps: bool) -> Modes:
    """Return the modes of Mega's averages, which are real; `ops.diagonal_ssm` takes half the weight."""

    def param(name: str, init: Initializer, count: int = averages) -> Array:
        return mixer.param(name, named(init, "heads", None), (heads, count)).astype(mixer.wide)

    small = normal(0.2)
    p = jax.nn.sigmoid(param("ema_step", small, 1 if tied_steps else averages))
    decay = p * jax.nn.sigmoid(param("ema_decay", small))
    beta = param("ema_in", _alternating)
    gamma = param("ema_out", normal(1.0))
    weight = p * beta * gamma * averages**-0.5 / 2
    log_a = jnp.log1p(-decay)
    return jnp.stack([log_a, jnp.zeros_like(log_a)], -1), jnp.stack([weight, jnp.zeros_like(weight)], -1)


def frequencies(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return pi n for the n-th mode (S4D-Lin)."""
    return jnp.broadcast_to(jnp.asarray(np.pi * np.arange(shape[-1]), dtype), shape)


def complex_ones(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return 1 + 0i."""
    return jnp.broadcast_to(jnp.asarray([1, 0], dtype), shape)


def _alternating(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return 1, -1, 1, ... plus a little noise."""
    return (-1.0) ** jnp.arange(shape[1]) + 0.02 * jax.random.normal(key, shape, dtype)
