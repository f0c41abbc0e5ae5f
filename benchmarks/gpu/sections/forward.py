"""Sections `forward`, `backward`, `wide`: causal attention by length, batch and channels of the values."""

from collections.abc import Callable, Sequence
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
from benchmarks.gpu.sections.session import Session, Step, UnavailableError, require
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, jitted
from benchmarks.ops.candidates import with_gradients
from pallas_kernels.taylor_attention.function import block_length

HEADS = 16

OURS = ("pallas", "mosaic")

CUDNN = "softmax_cudnn"

TARGETS = ((4, 8192), (16, 32768), (1, 32768))
"""(batch, length) that have a target."""

SWEEP = (
    *((batch, 1024) for batch in (1, 4, 16, 64)),
    (16, 2048),
    *((4, 1024 * 2**i) for i in (1, 2, 4, 5, 6)),
    *((batch, 1024) for batch in (2, 8, 32)),
)
"""Based, Figure 5: batch at 1,024 tokens, then length at batch 4; the least informative come last."""

WIDE = tuple(
    (batch, length, width) for width in (112, 128) for batch in (16, 4, 1) for length in (16384, 1024)
)
"""(batch, length, channels of the values) at which our kernels are compared with each other."""


def forward_steps(session: Session, gradients: bool = False) -> list[Step]:
    """List a step per size: our kernels, plain JAX, cuDNN."""
    sizes = ((1, 130),) if session.quick else (*TARGETS, *SWEEP)
    return [_step(session, size, (*OURS, "xla", CUDNN), gradients) for size in sizes]


def backward_steps(session: Session) -> list[Step]:
    """List a step per size, with gradients."""
    return forward_steps(session, gradients=True)


def wide_steps(session: Session) -> list[Step]:
    """Compare our kernels where values have more than 64 channels."""
    sizes = ((1, 130, 112),) if session.quick else WIDE
    return [_step(session, size, OURS, value_size=size[2]) for size in sizes]


def _step(
    session: Session, size: Sequence[int], names: Sequence[str], gradients: bool = False, **facts: int
) -> Step:
    sizes = Sizes(size[0], size[1], 1 if session.quick else HEADS, **facts)
    name = " ".join([f"B{sizes.batch} N{sizes.length}", *(f"V{width}" for width in size[2:])])
    facts = {"batch": sizes.batch, "length": sizes.length, "heads": sizes.heads} | facts
    return Step(name, candidates=partial(_candidates, sizes, names, gradients), facts=facts)


def _candidates(sizes: Sizes, names: Sequence[str], gradients: bool, session: Session) -> list[Candidate]:
    """List them, ours first. Softmax queries and keys have V channels, as in a Transformer."""
    arrays = partial(_arrays, sizes, 4 if gradients else 3)
    shared = cache(arrays)  # on the device at the first use, once for all candidates
    least = bound(session, ours_cost(sizes, gradients))

    def prepare(name: str) -> Prepared:
        key_size = sizes.value_size if name == CUDNN else sizes.key_size
        function = _cudnn(session) if name == CUDNN else partial(_ours, name)
        run = with_gradients(function) if gradients else function
        return jitted(run, jax.eval_shape(partial(arrays, key_size)), make=partial(shared, key_size))

    return [
        Candidate(name, partial(prepare, name), bound=None if name == CUDNN else least, ours=name in OURS)
        for name in names
    ]


def _arrays(sizes: Sizes, count: int, key_size: int) -> list[jax.Array]:
    widths = (key_size, key_size, sizes.value_size, sizes.value_size)[:count]
    shapes = [(sizes.batch, sizes.length, sizes.heads, width) for width in widths]
    keys = jax.random.split(jax.random.key(0), count)
    return [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]


def ours_cost(sizes: Sizes, gradients: bool) -> io_model.Cost:
    """Return the bytes that our kernels move and the operations, with the block length that a call gets."""
    block = block_length(sizes.batch * sizes.heads, sizes.length)
    blocks = replace(sizes, block=None if block >= sizes.length else block)
    cost = io_model.forward(blocks)
    return cost + io_model.backward(blocks) if gradients else cost


def _cudnn(session: Session) -> Callable[..., Any]:
    """Return cuDNN's attention; JAX's own without a GPU."""
    implementation: Any = "xla" if session.interpret else "cudnn"
    return partial(jax.nn.dot_product_attention, is_causal=True, implementation=implementation)


def _ours(implementation: str, q: Any, k: Any, v: Any) -> Any:
    if implementation == "mosaic" and pallas_kernels.is_interpreted():
        raise UnavailableError("the interpreter of Mosaic takes minutes")
    require("taylor_attention", implementation, q, k, v)
    return ops.taylor_attention(q, k, v, implementation=implementation)
