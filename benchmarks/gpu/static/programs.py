"""Compile the programs that language models run on a GPU for hours: a training step, a prompt, a token.

Each is compiled like users' runs, from shapes alone, for an absent GPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax.generate import pool
from based_jax.generate.sampling import Sampler, row_settings
from based_jax.generate.states import capacity_for
from based_jax.models import LanguageModel, ModelConfig
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import TrainState, make_train_step
from benchmarks.decode.models import abstract_weights
from benchmarks.gpu.static.topology import compile_for

STEPS = 1000
"""Steps of the learning-rate schedule: in the program they are two constants."""

TOKENS = 64
"""Capacity of the decoding loop, in tokens; the program does not depend on it."""


def training(config: ModelConfig, batch: int, length: int) -> tuple[Callable[..., Any], list[Any]]:
    """Return an AdamW step on whole rows and the shapes of its arguments, the state and a batch.

    Parameters and moments are float32, the rest has `config.dtype`.
    """
    model, how = LanguageModel(config), OptimizerConfig()
    optimizer = make_optimizer(how, STEPS)

    def init(key: jax.Array) -> TrainState:
        params = nn.meta.unbox(model.init(key, jnp.zeros((1, 1), jnp.int32)))
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    step = make_train_step(model, optimizer, learning_rate_schedule(how, STEPS))
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return step, [jax.eval_shape(init, jax.random.key(0)), {"inputs": tokens, "targets": tokens}]


def train(config: ModelConfig, batch: int, length: int, kind: str) -> jax.stages.Compiled:
    """Compile the step of `training`."""
    step, arguments = training(config, batch, length)
    return compile_for(kind, step, *arguments, donate=(0,))


def prefill(config: ModelConfig, batch: int, length: int, kind: str) -> jax.stages.Compiled:
    """Compile reading prompts of `length` tokens into an empty state."""
    model, text = _begin(config, batch, length)
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    offset = jax.ShapeDtypeStruct((), jnp.int32)

    def read(*arguments: Any) -> Any:
        return pool.read_chunk(model, *arguments)[1]

    return compile_for(kind, read, abstract_weights(config), text, tokens, lengths, offset, donate=(1,))


def decode(config: ModelConfig, batch: int, length: int, kind: str) -> jax.stages.Compiled:
    """Compile the greedy decoding loop after `length` tokens; its iterations are unknown, one is a token."""
    model, text = _begin(config, batch, length + TOKENS)

    def new_rows(text: Any) -> Any:
        return pool.new_rows(text, row_settings([Sampler()] * batch, None), None, TOKENS)

    rows, number = jax.eval_shape(new_rows, text), jax.ShapeDtypeStruct((), jnp.int32)
    make = functools.partial(pool.decode, model, chunk=TOKENS, top_logprobs=None)
    return compile_for(kind, make, abstract_weights(config), rows, number, donate=(1,))


PROGRAMS = {"train": train, "prefill": prefill, "decode": decode}


def _begin(config: ModelConfig, batch: int, length: int) -> tuple[LanguageModel, Any]:
    """Return a model, and its rows before the first token with capacity for `length` tokens."""
    model = LanguageModel(config)
    capacity = capacity_for(model, length)
    return model, jax.eval_shape(functools.partial(pool.begin, model, batch, capacity))
