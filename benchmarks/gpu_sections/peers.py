"""Run flash-linear-attention's Triton kernels of Based in torch, if torch, a GPU and `fla` are available.

Both scale queries by K^(-1/2) and add 1e-6 to the normaliser. Their layout has changed between releases, so
it is detected: the one in which a small problem comes out right.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu_sections import reference
from benchmarks.gpu_sections.reference import Problem
from benchmarks.gpu_sections.session import UnavailableError
from benchmarks.gpu_sections.stopwatch import Prepared
from benchmarks.io_model import Sizes, symmetric_size

NAMES = ("fla_parallel_based", "fla_fused_chunk_based")

DEVICE = "cuda"

AGREEMENT = 0.05
"""Largest error, over the largest value, of their bfloat16 result on a small problem."""


def prepare(name: str, sizes: Sizes, gradients: bool) -> Prepared:
    """Prepare one of `NAMES` on its own random inputs, with the gradients of q, k and v if `gradients`.

    Raises:
        UnavailableError: torch, a GPU for it, or the package is missing.
        ValueError: its results are not those of Taylor attention in any layout.
    """
    torch = _torch()
    function, sequence_first = _checked(name)
    shape = (sizes.batch, sizes.length, sizes.heads)
    if not sequence_first:
        shape = (sizes.batch, sizes.heads, sizes.length)
    widths = (sizes.key_size, sizes.key_size, sizes.value_size, sizes.value_size)
    held = [torch.randn(*shape, width, device=DEVICE, dtype=torch.bfloat16) for width in widths]
    for x in held[:3]:
        x.requires_grad_(gradients)

    def call() -> Any:
        y = function(*held[:3])
        return torch.autograd.grad(y, held[:3], held[3]) if gradients else y

    def free() -> None:
        held.clear()
        torch.cuda.empty_cache()

    return Prepared(call, wait=lambda _: torch.cuda.synchronize(), free=free)


def _torch() -> Any:
    """Import torch; it must have a GPU."""
    try:
        import torch
    except ImportError:
        raise UnavailableError("torch is not installed") from None
    if not torch.cuda.is_available():
        raise UnavailableError("torch sees no GPU")
    return torch


@functools.cache
def _checked(name: str) -> tuple[Callable[..., Any], bool]:
    """Return the function, and whether it takes (B, N, H, dim) rather than (B, H, N, dim)."""
    torch = _torch()
    try:
        function = getattr(importlib.import_module("fla.ops.based"), name.removeprefix("fla_"))
    except ImportError as error:
        raise UnavailableError(f"flash-linear-attention is not installed ({error})") from None
    problem = _small()
    expected = reference.taylor_attention(problem, eps=1e-6).y
    worst = {}
    for sequence_first in (True, False):
        order = (0, 1, 2, 3) if sequence_first else (0, 2, 1, 3)
        q, k, v = (torch.tensor(x.transpose(order), device=DEVICE, dtype=torch.bfloat16) for x in problem[:3])
        y = function(q.contiguous(), k.contiguous(), v.contiguous()).float().cpu().numpy().transpose(order)
        worst[sequence_first] = float(np.abs(y - expected).max() / np.abs(expected).max())
        if worst[sequence_first] < AGREEMENT:
            return function, sequence_first
    raise ValueError(f"{name} is off by {worst[True]:.2g} and {worst[False]:.2g} in the layouts we know")


def _small() -> Problem:
    """Make 128 tokens of 2 rows and 4 heads, rounded to bfloat16's 8 bits."""
    rng = np.random.default_rng(0)
    batch, length, heads = 2, 128, 4
    q, k, v = (np.round(rng.standard_normal((batch, length, heads, n)) * 8) / 8 for n in (16, 16, 64))
    features = symmetric_size(16)
    kv, z = np.zeros((batch, heads, features, 64)), np.zeros((batch, heads, features))
    starts, counts = np.full((batch, length), -1), np.full(batch, length)
    return Problem(q, k, v, np.zeros_like(v), kv, z, kv, z, starts, counts)
