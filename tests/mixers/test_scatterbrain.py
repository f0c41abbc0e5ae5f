"""ScatterBrain: its random features."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import meta

from based_jax.testing import laws
from tests.mixers.built import runner


def test_random_features_are_not_trained():
    x = laws.inputs(2, 13, 12, 0)
    run = runner("scatterbrain", d_model=12, left=1, feature_dim=4)
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(run.mixer.apply(variables, x)[0] ** 2)))
    of_params = jax.device_get(meta.unbox(gradient(run.variables))["params"])
    assert not np.any(of_params["random_features"])
    assert np.any(of_params["q"]["kernel"])
