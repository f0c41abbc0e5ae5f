"""Every registered mixer, ready to be timed: forward, forward and backward, one decoding step."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import meta

from based_jax import mixers
from based_jax.mixers.contract import Mixer
from based_jax.ops.core.stream import Stream
from based_jax.typing import Array, Params, State
from benchmarks.candidates import FORWARD, FORWARD_BACKWARD, Candidate, Program, compile_jitted

DECODE = "decode"
PASSES = (FORWARD, FORWARD_BACKWARD, DECODE)
"""Outputs; gradients of the sum of squares by parameters and input; the next token after a text."""

OPTIONS: dict[str, dict[str, Any]] = {"base_conv": {"kernel_size": -1}}
"""Options that are not the defaults: base_conv is measured with the long one of its two convolutions."""

LIMIT = "l_max"
"""Option that bounds the length; mixers that have it get the longest length measured."""


@dataclass(frozen=True)
class Entry:
    """One mixer of the report."""

    name: str
    options: dict[str, Any]
    mixer: Mixer

    def candidate(self) -> Candidate:
        """What the study times, batch 1."""
        programs = Programs(self.mixer)
        stateful = mixers.info(self.name).stateful
        lacks = {} if stateful else {DECODE: "keeps no state"}
        return Candidate(self.name, mixers.info(self.name).summary, "jax", None, programs.prepare, lacks)

    def state(self, length: int) -> dict[str, int | None]:
        """Columns of a row: bytes of the state for `length` tokens and the papers' floats, or None."""
        if not mixers.info(self.name).stateful:
            return {"state_bytes": None, "state_floats": None}
        shapes = jax.eval_shape(lambda: self.mixer.init_state(1, length))
        allocated = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        return {"state_bytes": allocated, "state_floats": self.mixer.state_size(length)}


def entry(name: str, d_model: int, longest: int) -> Entry:
    """The mixer as it is measured, for texts of up to `longest` tokens."""
    limit = {LIMIT: longest} if LIMIT in mixers.info(name).options else {}
    options = OPTIONS.get(name, {}) | limit
    return Entry(name, options, mixers.make(name, d_model=d_model, **options))


@dataclass(frozen=True)
class Programs:
    """Compiles one mixer."""

    mixer: Mixer

    @functools.cached_property
    def params(self) -> Params:
        """Its parameters, the same at every length."""
        x = jnp.zeros((1, 1, self.mixer.d_model))
        return meta.unbox(jax.jit(self.mixer.init)(jax.random.key(0), x))

    @functools.cached_property
    def step(self) -> Any:
        """One decoding step, jitted once: a state that does not grow is compiled for one length only."""

        def step(params: Params, x: Array, state: State) -> tuple[Array, State]:
            y, after = self.mixer.apply(params, x, state)
            return y, _with_streams_of(after, state)

        return jax.jit(step, donate_argnums=2)

    def prepare(self, x: Array, direction: str) -> Program:
        """For inputs (1, N, D); decoding is of token N after N - 1 others."""

        def forward(params: Params, x: Array) -> Array:
            return self.mixer.apply(params, x)[0]

        def loss(params: Params, x: Array) -> Array:
            return jnp.sum(forward(params, x) ** 2)

        if direction == DECODE:
            return compile_jitted(self.step, [self.params, x[:, -1:], self.state(x.shape[1])], carried=2)
        function = forward if direction == FORWARD else jax.grad(loss, argnums=(0, 1))
        return compile_jitted(jax.jit(function), [self.params, x])

    def state(self, length: int) -> State:
        """A state with room for `length` tokens that has seen all but one, as far as positions go.

        What it remembers is an empty state's: the time of a step does not depend on it.
        """
        state = jax.tree.map(jnp.copy, self.mixer.init_state(1, length))
        return map_streams(state, lambda s: replace(s, length=jnp.full_like(s.length, length - 1)))


def _is_stream(node: Any) -> bool:
    return isinstance(node, Stream)


def map_streams(state: State, function: Any) -> State:
    """The state with `function` applied to every stream in it."""
    return jax.tree.map(lambda n: function(n) if _is_stream(n) else n, state, is_leaf=_is_stream)


def _with_streams_of(after: State, before: State) -> State:
    """The state after a step, moved back: however often it is timed, a step decodes the same position."""
    return jax.tree.map(lambda a, b: b if _is_stream(b) else a, after, before, is_leaf=_is_stream)
