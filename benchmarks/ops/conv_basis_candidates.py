"""Exact causal attention, attention through k convolutions, and a convolution matrix times a vector."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from based_jax import ops
from based_jax.ops.conv_basis import conv_attention_fft
from benchmarks.ops.candidates import (
    FORWARD,
    FORWARD_BACKWARD,
    SOFTMAX,
    Candidate,
    Inputs,
    Program,
    compile_jax,
    compile_jitted,
)
from benchmarks.ops.shapes import OpShape

EXACT = "softmax"
DENSE, FFT = "dense_product", "fft_product"
LACKS = {FORWARD_BACKWARD: "the product alone"}
GRADIENTS = {"conv": "surrogate", "anchors": "anchors"}
"""First word of a candidate's name -> its gradient; forward they are the same program."""


class ConvInputs(Inputs):
    """Inputs with the kernel and the vector of a product."""

    @staticmethod
    def bytes_at(shape: OpShape, length: int) -> int:
        """Return the memory of q, k, v, the gradient of y, the kernel and the vector."""
        return Inputs.bytes_at(shape, length) + 8 * length

    @cached_property
    def product(self) -> tuple[np.ndarray, np.ndarray]:
        """Kernel and vector, (N,) each."""
        kernel, vector = np.random.default_rng(4).standard_normal((2, self.length), np.float32)
        return kernel, vector


def candidates(terms: Sequence[int]) -> list[Candidate]:
    """List exact attention, then k = `terms` convolutions, then the two products."""
    return [
        _attention(EXACT, "softmax, by query blocks (ops.softmax_attention)", SOFTMAX, _exact),
        *(_conv(kind, count) for kind in GRADIENTS for count in terms),
        Candidate(DENSE, "convolution matrix times vector, dense", "jax", None, _dense, LACKS),
        Candidate(FFT, "convolution matrix times vector, FFT (ops.long_conv)", "jax", None, _fft, LACKS),
    ]


def terms_of(name: str) -> int | None:
    """Return k from a candidate's name; None for candidates without k."""
    kind, _, count = name.partition("_")
    return int(count) if kind in GRADIENTS else None


def has_pass(name: str, direction: str) -> bool:
    """Return whether the pass is timed: products have no gradient, and a forward pass has no kinds."""
    kind = name.partition("_")[0]
    only = {"anchors": FORWARD_BACKWARD, "dense": FORWARD, "fft": FORWARD}
    return only.get(kind, direction) == direction


def equally_spaced(terms: int, length: int) -> tuple[int, ...]:
    """Return the starts of `terms` segments of (almost) the same length."""
    return tuple(int(start) for start in np.arange(terms) * length // terms)


@contextmanager
def always_by_fft() -> Iterator[None]:
    """Within the block, compile convolutions by FFT even where all pairs of tokens may be faster."""
    before = conv_attention_fft.FFT_COST
    conv_attention_fft.FFT_COST = 0.0
    try:
        yield
    finally:
        conv_attention_fft.FFT_COST = before


def _attention(
    name: str, label: str, family: str | None, function: Any, lacks: Mapping[str, str] | None = None
) -> Candidate:
    def prepare(inputs: Inputs, direction: str) -> Program:
        return compile_jax(function, inputs, direction, SOFTMAX)

    return Candidate(name, label, "jax", family, prepare, lacks or {})


def _exact(q: Any, k: Any, v: Any) -> Any:
    return ops.softmax_attention(q, k, v, implementation="xla")


def _conv(kind: str, terms: int) -> Candidate:
    def function(q: Any, k: Any, v: Any) -> Any:
        starts = equally_spaced(terms, q.shape[1])
        return ops.conv_attention(q, k, v, starts=starts, gradient=GRADIENTS[kind], implementation="xla")

    how = f"gradient={GRADIENTS[kind]!r}"
    label = f"through {terms} convolution{'s' * (terms > 1)} (ops.conv_attention, {how})"
    lacks = {} if kind == "conv" else {FORWARD: f"the same as conv_{terms}"}
    return _attention(f"{kind}_{terms}", label, None, function, lacks)


def _dense(inputs: ConvInputs, _: str) -> Program:
    kernel, vector = inputs.product
    padded = np.concatenate([np.zeros(len(kernel) - 1, kernel.dtype), kernel])
    matrix = sliding_window_view(padded, len(kernel))[:, ::-1]
    return compile_jitted(jax.jit(jnp.matmul), [jnp.asarray(matrix), jnp.asarray(vector)])


def _fft(inputs: ConvInputs, _: str) -> Program:
    kernel, vector = inputs.product
    return compile_jitted(
        jax.jit(ops.long_conv), [jnp.asarray(x) for x in (vector[None, :, None], kernel[:, None])]
    )
