"""A mixer of Flax as a `Layer`."""

from typing import Any

import jax
import numpy as np

from based_jax.mixers import Mixer
from based_jax.testing.laws import QUICKLY, Runner
from based_jax.testing.layers.laws import FEATURES, Layer


def of_mixer(mixer: Mixer, longest: int = 16, **facts: Any) -> Layer:
    """Return a mixer as a `Layer` that supports everything, with parameters far from their initial values.

    A mixer with `wants_tokens` gets ids that its inputs determine.

    Args:
        mixer: with its options; it must be causal and have a state.
        longest: tokens of the longest row. Every length compiles programs.
        facts: further attributes of `Layer`.
    """
    run = Runner(mixer, max_length=2 * longest)

    def with_ids(x: np.ndarray, context: dict[str, Any]) -> dict[str, Any]:
        ids = {"tokens": (16 * np.abs(x[..., 0])).astype(int) % 16} if mixer.wants_tokens else {}
        return ids | context

    def forward(x: np.ndarray, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
        return run(x, state, **with_ids(x, context))

    def gradients(x: Any, dy: Any, context: dict[str, Any]) -> Any:
        _, backward = jax.vjp(lambda x: mixer.apply(run.variables, x, None, **context)[0], x)
        return backward(dy)[0]

    compiled = jax.jit(gradients, compiler_options=QUICKLY)

    def gradient(x: np.ndarray, dy: np.ndarray, **context: Any) -> np.ndarray:
        return np.asarray(compiled(x, dy, with_ids(x, context)))

    facts = {"supports": tuple(FEATURES), "name": type(mixer).__name__} | facts
    return Layer(forward, mixer.d_model, init_state=run.fresh, gradient=gradient, longest=longest, **facts)
