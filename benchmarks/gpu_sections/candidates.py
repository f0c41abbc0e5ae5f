"""Implementations of causal attention: our kernels, plain JAX, cuDNN, flash-linear-attention."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax import ops
from benchmarks import io_model
from benchmarks.gpu_sections import peers
from benchmarks.gpu_sections.device import Rates
from benchmarks.gpu_sections.session import Session, UnavailableError
from benchmarks.gpu_sections.stopwatch import Candidate, Prepared, jitted
from benchmarks.io_model import Sizes
from pallas_kernels.taylor_attention.function import block_length

MEMORY_FRACTION = 0.75
"""Share of the device's memory for the scratch of one candidate."""

FORWARD = "forward"
FORWARD_BACKWARD = "forward_backward"


def attention(session: Session, sizes: Sizes, direction: str, rates: Rates) -> list[Candidate]:
    """List all of them, ours first. Softmax queries and keys have V channels, as in a Transformer."""
    taylor = functools.lru_cache(None)(lambda: arrays(sizes, sizes.key_size))
    softmax = functools.lru_cache(None)(lambda: arrays(sizes, sizes.value_size))
    limit = memory_limit()

    def row(name: str, function: Callable[..., Any], inputs: Any, cost: io_model.Cost | None) -> Candidate:
        def prepare() -> Prepared:
            if direction == FORWARD:
                return jitted(function, inputs()[:3], memory_limit=limit)
            return jitted(with_gradients(function), inputs(), memory_limit=limit)

        bound = None if cost is None else rates.bound(cost)
        return Candidate(name, prepare, {"direction": direction}, bound, ours=name == "pallas")

    ideal = ours_cost(sizes, direction)
    rows = [
        row("pallas", pallas_kernels.taylor_attention, taylor, ideal),
        row("xla", _named("xla"), taylor, ideal),
    ]
    softmax_cost = None
    if direction == FORWARD:
        rows.append(row("triton", _named("triton"), taylor, ideal))
        rows.append(row("cumulative_sum", cumulative_sum, taylor, ideal))
        softmax_cost = io_model.softmax(sizes)
    rows.append(row("softmax_cudnn", softmax_for(session), softmax, softmax_cost))
    for name in peers.NAMES:
        prepare = functools.partial(peers.prepare, name, sizes, direction != FORWARD)
        rows.append(Candidate(name, prepare, {"direction": direction}, rates.bound(ideal)))
    return rows


def backends(sizes: Sizes, rates: Rates) -> list[Candidate]:
    """List the forward pass of the portable kernels, and that of Hopper's own instructions."""
    inputs = functools.lru_cache(None)(lambda: arrays(sizes, sizes.key_size)[:3])
    bound = rates.bound(ours_cost(sizes, FORWARD))
    return [
        Candidate(name, functools.partial(_prepared, name, inputs), {"direction": FORWARD}, bound, ours=True)
        for name in ("pallas", "mosaic")
    ]


def _prepared(name: str, inputs: Callable[[], list[jax.Array]]) -> Prepared:
    return jitted(_named(name), inputs())


def arrays(sizes: Sizes, key_size: int) -> list[jax.Array]:
    """Make q, k, v and the gradient of y on the device."""
    shape = (sizes.batch, sizes.length, sizes.heads)
    widths = (key_size, key_size, sizes.value_size, sizes.value_size)
    dtype = {2: jnp.bfloat16, 4: jnp.float32}[sizes.itemsize]
    return [
        jax.random.normal(key, (*shape, width), dtype)
        for key, width in zip(jax.random.split(jax.random.key(0), 4), widths, strict=True)
    ]


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn (q, k, v, dy) into y and the gradients of q, k, v."""

    def run(q: Any, k: Any, v: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(function, q, k, v)
        return y, *pull_back(dy)

    return run


def ours_cost(sizes: Sizes, direction: str) -> io_model.Cost:
    """Return the bytes that our kernels move and the operations, with the block length that a call gets."""
    block = block_length(sizes.batch * sizes.heads, sizes.length)
    blocks = io_model.Sizes(**{**vars(sizes), "block": None if block >= sizes.length else block})
    cost = io_model.forward(blocks)
    return cost if direction == FORWARD else cost + io_model.backward(blocks)


def memory_limit() -> float:
    """Return the bytes of scratch memory that a candidate may need."""
    stats = jax.devices()[0].memory_stats() or {}
    return MEMORY_FRACTION * stats.get("bytes_limit", math.inf)


def cumulative_sum(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Compute the framework's form (Based, Figure 5): mapped features, all prefix sums of phi(k) v^T."""
    phi_q, phi_k = (ops.taylor_features(x) for x in (q, k))
    sums = jnp.cumsum(phi_k[..., None] * v[..., None, :], axis=1)
    normaliser = jnp.sum(phi_q * jnp.cumsum(phi_k.astype(jnp.float32), axis=1), axis=-1)
    return (jnp.einsum("bnhf,bnhfv->bnhv", phi_q, sums) / normaliser[..., None]).astype(v.dtype)


def softmax_for(session: Session, is_causal: bool = True) -> Callable[..., Any]:
    """Return cuDNN's attention; JAX's own without a GPU."""
    implementation: Any = "xla" if session.sizing.interpret else "cudnn"
    return functools.partial(jax.nn.dot_product_attention, is_causal=is_causal, implementation=implementation)


def _named(implementation: str) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any) -> Any:
        require("taylor_attention", implementation)
        return ops.taylor_attention(q, k, v, implementation=implementation)

    return run


def require(op: str, implementation: str) -> None:
    """Check that the implementation can run here.

    Raises:
        UnavailableError: it cannot; the message has the reason.
    """
    try:
        ops.implementation_for(op, implementation=implementation)
    except ValueError as error:
        raise UnavailableError(str(error)) from None
