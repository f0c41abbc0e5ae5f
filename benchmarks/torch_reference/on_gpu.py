"""Time torch on a GPU; see `benchmarks.gpu.sections.torch_steps`, whose job is the only argument.

Prints a row as JSON after each case. Ends itself after the job's seconds.
"""

import faulthandler
import functools
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from based_jax.training.optimizer import OptimizerConfig
from benchmarks.timing import Timing, calls_per_sample
from benchmarks.torch_reference.transformer import LanguageModel, make_step

NAMES = ("fla_parallel_based", "fla_fused_chunk_based")
"""flash-linear-attention's kernels of Based: q, k, v are (B, N, H, dim); they add 1e-6 to the normaliser."""

AGREEMENT = 0.05
"""Largest error, over the largest value, of a bfloat16 result on a small problem."""

SAMPLES = 7

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main(argument: str) -> int:
    """Run a job; return the exit status."""
    job = json.loads(argument)
    faulthandler.dump_traceback_later(job["seconds"], exit=True)
    torch.set_default_device(DEVICE)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    if "train" in job:
        _measured(" ".join(job["train"]), lambda: trained(job), batch=job["rows"], length=job["length"])
        return 0
    for batch, length in job["sizes"]:
        for name in NAMES:
            run = functools.partial(attention, name, batch, length, job["gradients"])
            _measured(name, run, batch=batch, length=length)
    return 0


def attention(name: str, batch: int, length: int, gradients: bool) -> dict[str, Any]:
    """Time attention with 16 heads of 16 and 64 channels."""
    function = checked(name)
    q, k, v = (torch.randn(batch, length, 16, n, dtype=torch.bfloat16) for n in (16, 16, 64))
    dy = torch.randn_like(v)
    for x in (q, k, v):
        x.requires_grad_(gradients)

    def call() -> Any:
        y = function(q, k, v)
        return torch.autograd.grad(y, (q, k, v), dy) if gradients else y

    return {"seconds": seconds(call)}


@functools.cache
def checked(name: str) -> Callable[..., torch.Tensor]:
    """Return one of `NAMES`.

    Raises:
        ValueError: it does not compute Taylor attention.
    """
    import fla.ops.based

    function = getattr(fla.ops.based, name.removeprefix("fla_"))
    q, k, v = (torch.randn(2, 128, 4, n, dtype=torch.bfloat16) for n in (16, 16, 64))
    wanted = quadratic(*(x.float().transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    error = float((function(q, k, v) - wanted).abs().max() / wanted.abs().max())
    if not error < AGREEMENT:
        raise ValueError(f"{name} is off by {error:.2g}")
    return function


def quadratic(q, k, v):
    """Compute Taylor attention with all N x N weights 1 + s + s^2 / 2, s = q . k / sqrt(K); (..., N, dim)."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    weights = (1 + s + s * s / 2).tril()
    return weights @ v / (weights.sum(-1, keepdim=True) + 1e-12)


def trained(job: dict[str, Any]) -> dict[str, Any]:
    """Time training steps; softmax attention is torch's own, by FlashAttention where it can."""
    from benchmarks.decode.models import model_config

    name, how = job["train"]
    config = model_config(name, job["size"])
    model = LanguageModel(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    shape = (1, job["rows"], job["length"] + 1)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, shape)
    batches = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:]}
    step = make_step(model, OptimizerConfig(), batches, compiled=how == "compiled")
    begin = time.perf_counter()
    losses = [step(0)]
    first = time.perf_counter() - begin
    taken = seconds(lambda: step(0))
    losses.append(step(0))
    return {
        "seconds": taken,
        "tokens_per_second": job["rows"] * job["length"] / taken,
        "first_seconds": first,
        "losses": losses,
        "peak_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else None,
    }


def seconds(call: Callable[[], Any]) -> float:
    """Return the median seconds of a call."""
    timing = Timing(math.inf, wait=lambda _: torch.cuda.synchronize() if DEVICE == "cuda" else None)
    timing.timed(call, 2)
    timing.calls = calls_per_sample(timing.timed(call, 2))
    timing.samples += [timing.timed(call, timing.calls) for _ in range(SAMPLES)]
    return timing.statistics()["seconds"]


def _measured(what: str, run: Callable[[], dict[str, Any]], **facts: Any) -> None:
    """Print the row of one case."""
    try:
        row = {"status": "measured", **run()}
    except ImportError as error:
        row = {"status": "skipped", "reason": f"torch and flash-linear-attention are needed ({error})"}
    except Exception as error:  # torch and Triton raise all kinds
        # Below its first line torch names the cause.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        row = {"status": "failed", "reason": reason[:500], "ours": False}
    print(json.dumps({"what": what, **row, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
