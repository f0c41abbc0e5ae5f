"""Time fused softmax attention in torch, if it is installed.

Torch is not a dependency of this project; without it this row is left out with the reason.
"""

import importlib.util
from typing import Any

import numpy as np

from benchmarks.machine import cores
from benchmarks.ops.candidates import FORWARD, SOFTMAX, Candidate, Inputs, Program

NAME = "torch_sdpa"


def missing() -> str | None:
    """Return why there can be no rows of torch here; None if there can."""
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def candidate() -> Candidate:
    """Return the row, on as many threads as this process has cores.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    torch.set_num_threads(cores())
    label = "softmax (torch scaled_dot_product_attention)"
    return Candidate(NAME, label, "torch", SOFTMAX, _program)


def _program(inputs: Inputs, direction: str) -> Program:
    """Prepare eager torch in its own layout, (B, H, N, dim), copied there beforehand."""
    import torch

    forward = direction == FORWARD
    q, k, v, gradient = (torch.from_numpy(_heads_first(x)) for x in inputs.arrays(SOFTMAX))
    for x in (q, k, v):
        x.requires_grad_(not forward)

    def call() -> Any:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (y,) if forward else (y, *torch.autograd.grad(y, (q, k, v), gradient))

    linear = sum(x.nbytes for x in (q, k, v)) * (2 if forward else 4)
    return Program(
        call=call,
        to_numpy=lambda result: [_heads_first(x.detach().numpy()) for x in result],
        needed_bytes=linear,
    )


def _heads_first(x: np.ndarray) -> np.ndarray:
    """(B, N, H, dim) <-> (B, H, N, dim), contiguous."""
    return np.ascontiguousarray(x.swapaxes(1, 2))
