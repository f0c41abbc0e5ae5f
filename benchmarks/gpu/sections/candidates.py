"""Implementations of causal attention in JAX: our kernels, plain JAX, cuDNN."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax import ops
from benchmarks.gpu import io_model
from benchmarks.gpu.io_model import Sizes
from benchmarks.gpu.sections.device import bound
from benchmarks.gpu.sections.session import Session, UnavailableError
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, jitted
from pallas_kernels.taylor_attention.function import block_length

FORWARD = "forward"
FORWARD_BACKWARD = "forward_backward"


def attention(direction: str, sizes: Sizes, session: Session) -> list[Candidate]:
    """List all of them, ours first. Softmax queries and keys have V channels, as in a Transformer."""
    count = 3 if direction == FORWARD else 4
    taylor, softmax = (partial(_arrays, sizes, n, count) for n in (sizes.key_size, sizes.value_size))
    shared = cache(lambda make: make())  # on the device at the first use, once for all candidates
    ideal = ours_cost(sizes, direction)

    def row(name: str, function: Callable[..., Any], make: Any, cost: io_model.Cost | None) -> Candidate:
        def prepare() -> Prepared:
            run = function if direction == FORWARD else with_gradients(function)
            return jitted(run, jax.eval_shape(make), make=partial(shared, make))

        least = None if cost is None else bound(session, cost)
        return Candidate(name, prepare, {"direction": direction}, least, ours=name in ("pallas", "mosaic"))

    names = ("pallas", "mosaic", "xla")
    rows = [row(name, _named(name), taylor, ideal) for name in names]
    return [*rows, row("softmax_cudnn", softmax_for(session), softmax, None)]


def _arrays(sizes: Sizes, key_size: int, count: int) -> list[jax.Array]:
    shape = (sizes.batch, sizes.length, sizes.heads)
    widths = (key_size, key_size, sizes.value_size, sizes.value_size)[:count]
    dtype = {2: jnp.bfloat16, 4: jnp.float32}[sizes.itemsize]
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (*shape, width), dtype) for key, width in zip(keys, widths, strict=False)]


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn (q, k, v, dy) into y and the gradients of q, k, v."""

    def run(q: Any, k: Any, v: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(function, q, k, v)
        return y, *pull_back(dy)

    return run


def ours_cost(sizes: Sizes, direction: str) -> io_model.Cost:
    """Return the bytes that our kernels move and the operations, with the block length that a call gets."""
    block = block_length(sizes.batch * sizes.heads, sizes.length)
    blocks = replace(sizes, block=None if block >= sizes.length else block)
    cost = io_model.forward(blocks)
    return cost if direction == FORWARD else cost + io_model.backward(blocks)


def softmax_for(session: Session) -> Callable[..., Any]:
    """Return cuDNN's attention; JAX's own without a GPU."""
    implementation: Any = "xla" if session.interpret else "cudnn"
    return partial(jax.nn.dot_product_attention, is_causal=True, implementation=implementation)


def _named(implementation: str) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any) -> Any:
        if implementation == "mosaic" and pallas_kernels.is_interpreted():
            raise UnavailableError("the interpreter of Mosaic takes minutes")
        require("taylor_attention", implementation, q, k, v)
        return ops.taylor_attention(q, k, v, implementation=implementation)

    return run


def require(op: str, implementation: str, *arrays: Any) -> None:
    """Check that the implementation can run here, on these arrays if given.

    Raises:
        UnavailableError: it cannot; the message has the reason.
    """
    try:
        ops.implementation_for(op, *arrays, implementation=implementation)
    except ValueError as error:
        raise UnavailableError(str(error)) from None
