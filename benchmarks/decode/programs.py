"""Compile the programs that `decode` times: reading a prompt, and making tokens after one."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.models import LanguageModel, ModelConfig
from based_jax.ops.core.products import in_loop_over_tokens
from based_jax.typing import Array, Int, Params, State
from benchmarks.decode.models import LABELS, state_bytes
from benchmarks.ops.mixers import placed
from benchmarks.study import Candidate, Program, compile_jitted

CONTEXTS, PREFILL, BATCHES = PARTS = "contexts", "prefill", "batches"

READ, FIRST, GENERATE = "prefill", "first_token", "generate"
"""Passes of the parts `prefill` and `batches`; those of `contexts` are batches."""


class Work(NamedTuple):
    """The work of one call of a program for each of its rows."""

    batch: int
    """rows"""
    start: int
    """tokens before the call; if 0 it reads a prompt, else it makes tokens one by one"""
    tokens: int
    """tokens that it reads or makes"""
    capacity: int
    """capacity of the state in tokens"""


@dataclass(frozen=True, eq=False)
class Decoder:
    """A model with its parameters."""

    name: str
    config: ModelConfig
    params: Params

    def program(self, work: Work) -> Program:
        """Compile the work; the first call allocates its state."""
        if not work.start:
            tokens = jnp.ones((work.batch, work.tokens), jnp.int32)
            return compile_jitted(reading(self.config, work.capacity), [self.params, tokens])
        arguments = decode_arguments(self.config, self.params, work)
        program = compile_jitted(decoding(self.config, work.tokens), arguments, carried=2)

        def call() -> Any:
            if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(arguments[2])):
                arguments[2] = filled(arguments[2])
            return program.call()

        return replace(program, call=call)


class Part(NamedTuple):
    """One sweep; all models take turns at each of its values."""

    name: str
    values: Sequence[int]
    passes: Sequence[str]
    work: Callable[[int, str], Work]
    """the work of a call at a value, in a pass"""

    def candidates(self, decoders: Sequence[Decoder]) -> list[Candidate]:
        """Return the models as candidates, whose lengths are the values."""

        def prepare(decoder: Decoder, value: int, direction: str) -> Program:
            return decoder.program(self.work(value, direction))

        return [Candidate(d.name, LABELS[d.name], "jax", functools.partial(prepare, d)) for d in decoders]

    def row(self, config: ModelConfig, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of decoding to a case of the study; `length` is the swept value."""
        work, seconds = self.work(row["length"], row["pass"]), row["seconds"]
        return {
            "part": self.name,
            **row,
            "batch": work.batch,
            "tokens": work.tokens,
            "seconds_per_token": seconds and seconds / work.tokens,
            "tokens_per_second": seconds and work.batch * work.tokens / seconds,
            "state_bytes": state_bytes(config, work.capacity),
        }


def decode_arguments(config: ModelConfig, params: Params, work: Work) -> list[Any]:
    """Return arguments of `decoding` for compiling: the state is abstract, and so may be the parameters."""
    state = jax.eval_shape(lambda: LanguageModel(config).init_state(work.batch, work.capacity))
    return [params, jnp.ones((work.batch,), jnp.int32), state, jnp.int32(work.start)]


@functools.cache
def decoding(config: ModelConfig, steps: int) -> Any:
    """Return a jitted function that makes `steps` tokens greedily and updates the state in place.

    Its arguments: parameters; the last tokens, int32 (B,); the state; the number of tokens before the call,
    so that every call with the previous call's state does the same work. It returns the tokens,
    int32 (steps, B), and the state.
    """

    model = LanguageModel(config)

    def run(params: Params, token: Array, state: State, start: Array) -> tuple[Int[Array, "steps B"], State]:
        def step(carry: tuple[Array, State], _: None) -> tuple[tuple[Array, State], Array]:
            token, state = carry
            with in_loop_over_tokens():
                hidden, state = model.apply(params, token[:, None], state, method="hidden")
            token = most_likely(model, params, hidden[:, 0])
            return (token, state), token

        (_, state), tokens = lax.scan(step, (token, placed(state, start)), length=steps)
        return tokens, state

    return jax.jit(run, donate_argnums=2)


@functools.cache
def reading(config: ModelConfig, capacity: int) -> Any:
    """Return a jitted function of parameters and prompts (B, N): each row's next token, and the new state."""

    model = LanguageModel(config)

    def run(params: Params, tokens: Array) -> tuple[Int[Array, " B"], State]:
        state = model.init_state(len(tokens), capacity)
        hidden, state = model.apply(params, tokens, state, method="hidden")
        return most_likely(model, params, hidden[:, -1]), state

    return jax.jit(run)


def most_likely(model: LanguageModel, params: Params, hidden: Array) -> Int[Array, " B"]:
    """Return the token with the largest logit."""
    logits: Any = model.apply(params, hidden, method="unembed")
    return jnp.argmax(logits[:, : model.config.vocab_size], axis=-1).astype(jnp.int32)


def filled(state: State) -> State:
    """Fill an abstract state as if rows had read tokens that all left the same nonzero numbers.

    The time of a step does not depend on what a state holds.
    """

    def of(leaf: Any) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.zeros(leaf.shape, leaf.dtype)
        values = jax.random.uniform(jax.random.key(0), leaf.shape[2:], minval=0.5)
        return jnp.broadcast_to(values.astype(leaf.dtype), leaf.shape)

    return jax.tree.map(of, state)
