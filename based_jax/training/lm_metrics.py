"""Compute a language model's metrics: bits per byte, held-out losses by source, and utilization."""

import math
import re
from collections.abc import Callable
from importlib import resources

from based_jax.data.packed import TokenStream
from based_jax.data.shards.mixtures import Mixture
from based_jax.files import read_toml


def tokens_per_byte(stream: TokenStream | Mixture) -> float | None:
    """Return the mean number of tokens per byte of text; None if the number of bytes is unknown."""
    if not isinstance(stream, Mixture):
        return len(stream) / stream.num_bytes if stream.num_bytes else None
    parts = list(zip(stream.shares, stream.parts, strict=True))
    if not all(part.num_bytes for _, part in parts):
        return None
    return 1 / sum(share * part.num_bytes / len(part) for share, part in parts)


def held_out_metrics(
    stream: TokenStream | Mixture, measure: Callable[[TokenStream], tuple[float, float]]
) -> dict[str, float]:
    """Compute loss, perplexity and bits per byte of held-out text, and the loss of each mixture source.

    `measure` returns the sum of a stream's losses (nats) and the number of its targets.
    """
    parts = [measure(part) for part in (stream.parts if isinstance(stream, Mixture) else (stream,))]
    nats, targets = (sum(values) for values in zip(*parts, strict=True))
    metrics = {"eval_loss": nats / targets, "eval_perplexity": math.exp(min(nats / targets, 700.0))}
    if tokens_per_byte(stream) is not None:
        metrics["eval_bits_per_byte"] = nats / math.log(2) / stream.num_bytes
    if isinstance(stream, Mixture):
        each = zip(stream.names, parts, strict=True)
        metrics |= {f"eval_loss/{name}": own / count for name, (own, count) in each}
    return metrics


def peak_tflops(device_kind: str) -> float | None:
    """Return the peak of a device of this kind; None if it is not in peak_tflops.toml."""
    peaks = read_toml(str(resources.files("based_jax") / "training/devices/peak_tflops.toml"))
    return next((peak for name, peak in peaks.items() if re.search(rf"\b{name}\b", device_kind)), None)


def utilization(tflops: float, peak: float | None) -> dict[str, float]:
    """Return `model_tflops_per_second` and, if the devices' peak is known, `mfu`, its share of that.

    Both arguments are in 10^12 operations per second; the model's are without recomputation.
    """
    return {"model_tflops_per_second": tflops, **({} if peak is None else {"mfu": tflops / peak})}
