"""Prepare every registered mixer for timing: forward, forward and backward, one decoding step."""

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
from benchmarks.programs import FORWARD, FORWARD_BACKWARD, Candidate, Program, compile_jitted

DECODE = "decode"
PASSES = (FORWARD, FORWARD_BACKWARD, DECODE)
"""Passes: outputs; gradients of the sum of squares by parameters and input; the next token after a text."""

OPTIONS: dict[str, dict[str, Any]] = {"base_conv": {"kernel_size": -1}}
"""Options that differ from the defaults: base_conv is measured with the long one of its two convolutions."""

LIMIT = "l_max"
"""Option that bounds the length; mixers that have it get the longest measured length."""


@dataclass(frozen=True)
class Measured:
    """A mixer of the report."""

    name: str
    options: dict[str, Any]
    mixer: Mixer

    @functools.cached_property
    def info(self) -> mixers.MixerInfo:
        """Return what the registry has about it."""
        return mixers.info(self.name)

    def candidate(self) -> Candidate:
        """Return the candidate of the study, batch 1."""
        lacks = {} if self.info.stateful else {DECODE: "keeps no state"}
        return Candidate(self.name, self.info.summary, "jax", self.prepare, lacks=lacks)

    def state_size(self, length: int) -> dict[str, int | None]:
        """Return columns of a row: bytes of the state for `length` tokens and the papers' floats, or None."""
        if not self.info.stateful:
            return {"state_bytes": None, "state_floats": None}
        shapes = jax.eval_shape(lambda: self.mixer.init_state(1, length))
        allocated = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        return {"state_bytes": allocated, "state_floats": self.mixer.state_size(length)}

    @functools.cached_property
    def params(self) -> Params:
        """Return its parameters, the same at every length."""
        x = jnp.zeros((1, 1, self.mixer.d_model))
        return meta.unbox(jax.jit(self.mixer.init)(jax.random.key(0), x))

    @functools.cached_property
    def step(self) -> Any:
        """Return one decoding step, jitted once: a state that does not grow is compiled for one length."""

        def step(params: Params, x: Array, state: State) -> tuple[Array, State]:
            y, after = self.mixer.apply(params, x, state, **self.ids(x))
            # With the streams before the step, so that each call decodes the same position.
            return y, jax.tree.map(lambda a, b: b if _is_stream(b) else a, after, state, is_leaf=_is_stream)

        return jax.jit(step, donate_argnums=2)

    def prepare(self, length: int, direction: str) -> Program:
        """Compile a pass for inputs (1, N, D); decoding is of token N after N - 1 others."""

        def forward(params: Params, x: Array) -> Array:
            return self.mixer.apply(params, x, **self.ids(x))[0]

        def loss(params: Params, x: Array) -> Array:
            return jnp.sum(forward(params, x) ** 2)

        x = jax.random.normal(jax.random.key(1), (1, length, self.mixer.d_model))
        if direction == DECODE:
            # An empty state: the time of a step does not depend on its contents.
            state = jax.tree.map(jnp.copy, self.mixer.init_state(1, length))
            state = map_streams(state, lambda s: replace(s, length=jnp.full_like(s.length, length - 1)))
            return compile_jitted(self.step, [self.params, x[:, -1:], state], carried=2)
        function = forward if direction == FORWARD else jax.grad(loss, argnums=(0, 1))
        return compile_jitted(jax.jit(function), [self.params, x])

    def ids(self, x: Array) -> dict[str, Array]:
        """Return token ids as the argument of a mixer that reads them: each of 64 in turn."""
        ids = jnp.broadcast_to(jnp.arange(x.shape[1]) % 64, x.shape[:2])
        return {"tokens": ids} if self.mixer.wants_tokens else {}


def measured(name: str, d_model: int, longest: int) -> Measured:
    """Return the mixer as measured, for texts of up to `longest` tokens."""
    limit = {LIMIT: longest} if LIMIT in mixers.info(name).options else {}
    options = OPTIONS.get(name, {}) | limit
    return Measured(name, options, mixers.make(name, d_model=d_model, **options))


def _is_stream(node: Any) -> bool:
    return isinstance(node, Stream)


def map_streams(state: State, function: Any) -> State:
    """Apply `function` to every stream in a state."""
    return jax.tree.map(lambda n: function(n) if _is_stream(n) else n, state, is_leaf=_is_stream)
