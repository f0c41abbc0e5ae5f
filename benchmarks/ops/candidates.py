"""Prepare causal attention in JAX for timing: our Taylor attention, its quadratic form, softmax attention."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.typing import Array
from benchmarks.ops.shapes import OpShape

FORWARD = "forward"
FORWARD_BACKWARD = "forward_backward"
PASSES = (FORWARD, FORWARD_BACKWARD)
"""Passes: output only; output and the gradients of q, k and v for a given gradient of the output."""

TAYLOR = "taylor"
SOFTMAX = "softmax"


@dataclass(frozen=True)
class Inputs:
    """The arrays of one length, the same values for every candidate, (B, N, H, dim) float32."""

    shape: OpShape
    length: int

    @staticmethod
    def bytes_at(shape: OpShape, length: int) -> int:
        """Return the memory that the arrays of both families take."""
        channels = 2 * shape.key_size + 4 * shape.value_size
        return 4 * shape.batch * length * shape.heads * channels

    def arrays(self, family: str) -> list[np.ndarray]:
        """Return q, k, v and the gradient of y. Softmax queries and keys have V channels, as usual."""
        values = self.shape.value_size
        keys = self.shape.key_size if family == TAYLOR else values
        rows = (self.shape.batch, self.length, self.shape.heads)
        return [
            np.random.default_rng(seed).standard_normal((*rows, size), np.float32)
            for seed, size in enumerate((keys, keys, values, values))
        ]


@dataclass(frozen=True)
class Program:
    """One candidate, compiled for one length and pass."""

    call: Callable[[], Any]
    """runs it once and returns when it is done"""
    to_numpy: Callable[[Any], list[np.ndarray]]
    """the result of `call` as y (and the gradients), each (B, N, H, dim)"""
    compile_seconds: float | None = None
    """whether it is compiled while others compile, unless the study compiles one at a time"""
    temp_bytes: int | None = None
    """scratch memory that the compiler planned; None without a compiler's plan"""
    needed_bytes: int | None = None
    """scratch memory, arguments and results (an estimate without a compiler's plan)"""


@dataclass(frozen=True)
class Candidate:
    """A row of the table."""

    name: str
    label: str
    framework: str
    family: str | None
    """candidates of one family compute the same numbers; None for a family of its own"""
    prepare: Callable[[Any, str], Program]
    """compiles it for the inputs of one length and a pass"""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """pass that it lacks -> why"""

    def key_size(self, shape: OpShape) -> int:
        """Return the channels of its queries and keys."""
        return shape.key_size if self.family == TAYLOR else shape.value_size


def _prefill(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Read a prompt: attend, and write keys and values into an empty cache of its length."""
    batch, length, heads, width = k.shape
    cache = ops.init_kv_cache(batch, length, heads, width, v.shape[-1])
    y, cache = ops.softmax_attention(q, k, v, initial_state=cache, return_state=True, implementation="tiled")
    return y, cache.k, cache.v


def compile_jax(function: Callable[..., Any], inputs: Inputs, direction: str, family: str) -> Program:
    """Compile `function(q, k, v)` or its vector-Jacobian product, before any large array exists."""

    def forward_backward(q, k, v, gradient):
        y, pull_back = jax.vjp(function, q, k, v)
        return y, *pull_back(gradient)

    arrays = [jnp.asarray(x) for x in inputs.arrays(family)]
    if direction == FORWARD:
        arrays.pop()
    return compile_jitted(jax.jit(function if direction == FORWARD else forward_backward), arrays)


def compile_jitted(
    function: Any, arguments: list[Any], carried: int | None = None, result: int = -1
) -> Program:
    """Compile a jitted function for its arguments; the result `result` replaces the donated `carried`."""
    start = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    temp = None if memory is None else memory.temp_size_in_bytes
    needed = None
    if memory is not None:  # a donated argument shares memory with its result
        needed = temp + memory.argument_size_in_bytes + memory.output_size_in_bytes
        needed -= memory.alias_size_in_bytes

    def call() -> Any:
        results = jax.block_until_ready(compiled(*arguments))
        if carried is not None:
            arguments[carried] = results[result]
        return results

    return Program(
        call=call,
        to_numpy=lambda result: [np.asarray(x) for x in jax.tree.leaves(result)],
        compile_seconds=seconds,
        temp_bytes=temp,
        needed_bytes=needed,
    )


def _candidate(name: str, label: str, function: Callable[..., Any], **lacks: str) -> Candidate:
    family = TAYLOR if name.startswith("taylor") else SOFTMAX

    def prepare(inputs: Inputs, direction: str) -> Program:
        return compile_jax(function, inputs, direction, family)

    return Candidate(name, label, "jax", family, prepare, lacks)


def _ours(op: str, implementation: str) -> Callable[..., Any]:
    return partial(getattr(ops, op), implementation=implementation)


JAX_CANDIDATES = (
    _candidate("taylor_xla", "Taylor, chunked scan (based_jax, xla)", _ours("taylor_attention", "xla")),
    _candidate(
        "taylor_reference",
        "Taylor, quadratic (based_jax, reference)",
        _ours("taylor_attention", "reference"),
    ),
    _candidate(
        "dot_product_attention",
        "softmax (jax.nn.dot_product_attention)",
        partial(jax.nn.dot_product_attention, is_causal=True),
    ),
    _candidate("softmax_xla", "softmax, by query blocks (based_jax, xla)", _ours("softmax_attention", "xla")),
    _candidate("softmax_tiled", "softmax, by tiles (based_jax, tiled)", _ours("softmax_attention", "tiled")),
    _candidate(
        "softmax_prefill",
        "softmax, by tiles, into a cache (based_jax, tiled)",
        _prefill,
        forward_backward="a prompt is read forward only",
    ),
)
