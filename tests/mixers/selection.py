"""For the mixers that select tokens: padded and packed rows, the scores they select by, and their loss."""

from typing import Any

import jax
import numpy as np
from flax.linen import meta

from based_jax import mixers
from based_jax.testing import laws

WIDTH = 12
X = laws.inputs(2, 13, WIDTH, 0)
MASK = np.arange(13) < np.array([[13], [7]])
IDS = np.repeat([[0, 1]], [5, 8], axis=1).repeat(2, axis=0).astype(np.int32)


def scores(run: laws.Runner) -> np.ndarray:
    """One score per token of `X`: (B, N)."""
    kernel = meta.unbox(run.variables)["params"]["selecting"]["kernel"]
    return (X @ np.asarray(kernel))[..., 0]


def weights(run: laws.Runner) -> np.ndarray:
    """Sigmoids of the scores: (B, N)."""
    return 1 / (1 + np.exp(-scores(run)))


def loss(run: laws.Runner, **context: Any) -> float:
    """The auxiliary loss of `X`."""

    @jax.jit
    def collect(variables, x, context):
        return run.mixer.apply(variables, x, mutable=["losses"], **context)[1]

    return float(mixers.auxiliary_loss(collect(run.variables, X, laws.everything(X, context))))
