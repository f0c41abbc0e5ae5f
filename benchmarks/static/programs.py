"""The programs of a language model that run on a GPU for hours: a training step, a prompt, a token.

Each is compiled as users' runs are, from shapes alone, for a GPU that is not there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax.generate import loop
from based_jax.generate.capacity import capacity_for
from based_jax.generate.sampling import Sampler, row_settings
from based_jax.models import LanguageModel, ModelConfig
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import TrainState, make_train_step
from benchmarks.decode_models import abstract_weights
from benchmarks.static.topology import compile_for

STEPS = 1000
"""Of the learning-rate schedule: in the program it is two constants."""

TOKENS = 64
"""For which the loop that makes tokens has room; the program does not depend on it."""


def train(config: ModelConfig, batch: int, length: int, kind: str, dump: str = "") -> jax.stages.Compiled:
    """A step of AdamW on whole rows: parameters and moments in float32, the rest in the model's dtype."""
    model, how = LanguageModel(config), OptimizerConfig()
    optimizer = make_optimizer(how, STEPS)

    def init(key: jax.Array) -> TrainState:
        params = nn.meta.unbox(model.init(key, jnp.zeros((1, 1), jnp.int32)))
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    step = make_train_step(model, optimizer, learning_rate_schedule(how, STEPS))
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    state = jax.eval_shape(init, jax.random.key(0))
    return compile_for(kind, step, state, {"inputs": tokens, "targets": tokens}, donate=(0,), dump=dump)


def prefill(config: ModelConfig, batch: int, length: int, kind: str, dump: str = "") -> jax.stages.Compiled:
    """Reading prompts of `length` tokens into an empty state."""
    model, progress = _begin(config, batch, length)
    read = functools.partial(loop.read_chunk, model)
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    offset = jax.ShapeDtypeStruct((), jnp.int32)
    return compile_for(
        kind, read, abstract_weights(config), progress, tokens, lengths, offset, donate=(1,), dump=dump
    )


def decode(config: ModelConfig, batch: int, length: int, kind: str, dump: str = "") -> jax.stages.Compiled:
    """The loop that makes tokens after `length` others, greedily; its turns are unknown, one is a token."""
    model, progress = _begin(config, batch, length + TOKENS)
    settings = jax.eval_shape(lambda: row_settings([Sampler()] * batch, None))
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    stops: Any = jax.ShapeDtypeStruct((0,), jnp.int32)
    rules = loop.Rules(settings, stops, number)
    make = functools.partial(loop.make_tokens, model, TOKENS)
    return compile_for(kind, make, abstract_weights(config), progress, number, rules, donate=(1,), dump=dump)


PROGRAMS: dict[str, Callable[..., jax.stages.Compiled]] = {
    "train": train,
    "prefill": prefill,
    "decode": decode,
}


def _begin(config: ModelConfig, batch: int, length: int) -> tuple[LanguageModel, Any]:
    """A model, and where reading begins with room for `length` tokens."""
    model = LanguageModel(config)
    capacity = capacity_for(model, length)
    return model, jax.eval_shape(functools.partial(loop.begin, model, batch, capacity))
