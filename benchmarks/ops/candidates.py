"""Prepare causal attention for timing: Taylor attention, its quadratic form, and softmax attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.typing import Array
from benchmarks.machine import cores
from benchmarks.study import FORWARD, FORWARD_BACKWARD, Candidate, Program, compile_jitted, without_torch

PASSES = (FORWARD, FORWARD_BACKWARD)
"""Passes: output only; output and the gradients of q, k and v for a given gradient of the output."""

TAYLOR = "taylor"
SOFTMAX = "softmax"

BATCH, HEADS, VALUES = 1, 4, 64
KEYS = {TAYLOR: 16, SOFTMAX: VALUES}
"""Channels per head of queries and keys. The sizes are a quarter of a layer of Based-360M, for a CPU."""


def family_of(name: str) -> str:
    """Return the kind of attention of a candidate."""
    return TAYLOR if name.startswith(TAYLOR) else SOFTMAX


def arrays(family: str, length: int) -> list[np.ndarray]:
    """Return q, k, v and the gradient of y, each (B, N, H, dim) float32, the same for every candidate."""
    sizes = KEYS[family], KEYS[family], VALUES, VALUES
    return [
        np.random.default_rng(seed).standard_normal((BATCH, length, HEADS, size), np.float32)
        for seed, size in enumerate(sizes)
    ]


def bytes_at(length: int) -> int:
    """Return the memory of the arrays of both families."""
    return 4 * BATCH * length * HEADS * (2 * KEYS[TAYLOR] + 4 * VALUES)


def _in_jax(name: str, label: str, function: Callable[..., Any], **lacks: str) -> Candidate:
    """Time `function(q, k, v)` and its vector-Jacobian product, compiled before any large array exists."""

    def prepare(length: int, direction: str) -> Program:
        given = [jnp.asarray(x) for x in arrays(family_of(name), length)]
        if direction == FORWARD:
            return compile_jitted(jax.jit(function), given[:3])
        return compile_jitted(jax.jit(with_gradients(function)), given)

    return Candidate(name, label, "jax", prepare, lacks)


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn (q, k, v, dy) into y and the gradients of q, k, v."""

    def run(q: Any, k: Any, v: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(function, q, k, v)
        return y, *pull_back(dy)

    return run


def _prefill(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Read a prompt: attend, and write keys and values into an empty cache of its length."""
    batch, length, heads, width = k.shape
    cache = ops.init_kv_cache(batch, length, heads, width, v.shape[-1])
    y, cache = ops.softmax_attention(q, k, v, initial_state=cache, return_state=True, implementation="tiled")
    return y, cache.k, cache.v


def _in_torch(length: int, direction: str) -> Program:
    """Prepare eager torch in its own layout, (B, H, N, dim), copied there beforehand."""
    import torch

    torch.set_num_threads(cores())
    forward = direction == FORWARD
    q, k, v, gradient = (torch.from_numpy(x).transpose(1, 2).contiguous() for x in arrays(SOFTMAX, length))
    for x in (q, k, v):
        x.requires_grad_(not forward)

    def call() -> Any:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (y,) if forward else (y, *torch.autograd.grad(y, (q, k, v), gradient))

    linear = sum(x.nbytes for x in (q, k, v)) * (2 if forward else 4)
    return Program(call, needed_bytes=linear)


def _ours(op: str, implementation: str) -> Callable[..., Any]:
    return partial(getattr(ops, op), implementation=implementation)


CANDIDATES = (
    _in_jax("taylor_xla", "Taylor, chunked scan (based_jax, xla)", _ours("taylor_attention", "xla")),
    _in_jax(
        "taylor_reference", "Taylor, quadratic (based_jax, reference)", _ours("taylor_attention", "reference")
    ),
    _in_jax(
        "dot_product_attention",
        "softmax (jax.nn.dot_product_attention)",
        partial(jax.nn.dot_product_attention, is_causal=True),
    ),
    _in_jax("softmax_xla", "softmax, by query blocks (based_jax, xla)", _ours("softmax_attention", "xla")),
    _in_jax("softmax_tiled", "softmax, by tiles (based_jax, tiled)", _ours("softmax_attention", "tiled")),
    _in_jax(
        "softmax_prefill",
        "softmax, by tiles, into a cache (based_jax, tiled)",
        _prefill,
        forward_backward="a prompt is read forward only",
    ),
    Candidate(
        "torch_sdpa",
        "softmax (torch scaled_dot_product_attention)",
        "torch",
        _in_torch,
        without_torch(PASSES),
    ),
)
