"""Mixers by name, and what tests read off them: parameters, gradients, sizes of states."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import mixers
from based_jax.testing.arrays import normals
from based_jax.testing.laws import Runner


def runner(name: str, **options: Any) -> Runner:
    return Runner(mixers.make(name, **options))


@functools.cache
def initial_parameters(name: str, **options: Any) -> dict[str, Any]:
    """Parameters as `init` draws them, unboxed, in NumPy."""
    mixer = mixers.make(name, **options)
    x = np.zeros((1, 1, mixer.d_model), np.float32)
    return jax.device_get(nn.meta.unbox(jax.jit(mixer.init)(jax.random.key(0), x))["params"])


def parameter_count(name: str, **options: Any) -> int:
    mixer = mixers.make(name, **options)
    x = jax.ShapeDtypeStruct((1, 2, mixer.d_model), jnp.float32)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(mixer.init, jax.random.key(0), x)))


def float64_weights(run: Runner) -> dict[str, np.ndarray]:
    """Kernels and scales by name."""
    params = nn.meta.unbox(run.variables)["params"]
    return {name: np.float64(jax.tree.leaves(value)[0]) for name, value in params.items()}


def gradients(mixer: mixers.Mixer, x: Any) -> Any:
    """Gradients of the sum of the squared outputs; the parameters are far from their initial values."""
    variables = normals(mixer.init, x)
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(mixer.apply(variables, x)[0] ** 2)))
    return jax.device_get(gradient(variables))
