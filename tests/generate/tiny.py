"""Tiny models, and what they must generate by definition."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from tests.arrays import array

MIXERS = {
    "C": MixerSpec("gated_conv", {"kernel_size": 4}),
    "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
    "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
    "A": MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.5}),
}
LENGTH = 48


@contextlib.contextmanager
def forbidding():
    """A caller's settings that raise at what our code does: broadcasts and transfers."""
    with jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow"):
        yield


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model, its variables, and what it must generate by definition."""

    model: LanguageModel
    params: Any
    forward: Callable[[Any, np.ndarray], jax.Array]

    def greedy(self, prompt: list[int], steps: int) -> list[int]:
        """Recompute the whole text for every token."""
        text = list(prompt)
        for _ in range(steps):
            padded = np.array([text + [0] * (LENGTH - len(text))])
            logits = np.asarray(self.forward(self.params, padded))[0, len(text) - 1]
            text.append(int(logits[: self.model.config.vocab_size].argmax()))
        return text[len(prompt) :]


def make_tiny(schedule: str, **changes: Any) -> Tiny:
    options: dict[str, Any] = {"mixers": MIXERS, **changes}
    config = ModelConfig(vocab_size=50, d_model=16, schedule=schedule, mlp_hidden=16, **options)
    model = LanguageModel(config)
    return Tiny(model, random_params(model), jax.jit(lambda params, tokens: model.apply(params, tokens)[0]))


def make_bytes(schedule: str = "C", **changes: Any) -> tuple[LanguageModel, Any]:
    """A model of bytes and its variables: small programs."""
    config = ModelConfig(257, 16, schedule, {x: MIXERS[x] for x in schedule}, mlp_hidden=16, **changes)
    model = LanguageModel(config)
    return model, random_params(model)


def random_params(model: LanguageModel) -> Any:
    """Weights so large that next tokens differ, made without compiling `init`."""
    generator = np.random.default_rng(1)

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = 0.4 * generator.normal(size=leaf.shape) + (len(leaf.shape) == 1)
        return array(values, leaf.dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), np.int32))
    return jax.tree.map(fill, shapes)
