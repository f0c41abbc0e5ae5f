"""Time the same attention in torch, if it is installed: the quadratic Taylor formula, fused softmax.

Torch is not a dependency of this project; without it these rows are left out with the reason.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.machine import cores
from benchmarks.ops.candidates import FORWARD, SOFTMAX, TAYLOR, Candidate, Inputs, Program

NAMES = ("torch_taylor", "torch_sdpa")

SQUARE_MATRICES = {("torch_taylor", True): 4, ("torch_taylor", False): 6}
"""Live (B, H, N, N) float32 arrays at the peak, forward only or not; measured, to skip large cases."""


def missing() -> str | None:
    """Return why there can be no torch rows here; None if there can."""
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def torch_candidates() -> tuple[Candidate, ...]:
    """Return both rows, on as many threads as this process has cores.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    from benchmarks.torch_reference import taylor

    torch.set_num_threads(cores())

    def sdpa(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    rows = (
        ("torch_taylor", "Taylor, quadratic (torch)", TAYLOR, taylor.quadratic),
        ("torch_sdpa", "softmax (torch scaled_dot_product_attention)", SOFTMAX, sdpa),
    )
    return tuple(
        Candidate(name, label, "torch", family, partial(_program, name, function, family))
        for name, label, family, function in rows
    )


def _program(name: str, function: Callable[..., Any], family: str, inputs: Inputs, direction: str) -> Program:
    """Prepare eager torch in its own layout, (B, H, N, dim), copied there beforehand."""
    import torch

    forward = direction == FORWARD
    q, k, v, gradient = (torch.from_numpy(_heads_first(x)) for x in inputs.arrays(family))
    for x in (q, k, v):
        x.requires_grad_(not forward)

    def call() -> Any:
        y = function(q, k, v)
        return (y,) if forward else (y, *torch.autograd.grad(y, (q, k, v), gradient))

    linear = sum(x.nbytes for x in (q, k, v)) * (2 if forward else 4)
    square = 4 * inputs.shape.batch * inputs.shape.heads * inputs.length**2
    return Program(
        call=call,
        to_numpy=lambda result: [_heads_first(x.detach().numpy()) for x in result],
        needed_bytes=linear + SQUARE_MATRICES.get((name, forward), 0) * square,
    )


def _heads_first(x: np.ndarray) -> np.ndarray:
    """(B, N, H, dim) <-> (B, H, N, dim), contiguous."""
    return np.ascontiguousarray(x.swapaxes(1, 2))
