"""Measure device utilization: model FLOP/s and their share of the devices' peak (MFU)."""

import re
from importlib import resources

from based_jax.files import read_toml


def peak_tflops(device_kind: str) -> float | None:
    """Return the peak of a device of this kind; None if it is not in peak_tflops.toml."""
    peaks = read_toml(str(resources.files("based_jax") / "training/devices/peak_tflops.toml"))
    return next((peak for name, peak in peaks.items() if re.search(rf"\b{name}\b", device_kind)), None)


def utilization(tflops: float, peak: float | None) -> dict[str, float]:
    """Return `model_tflops_per_second` and, if the devices' peak is known, `mfu`, its share of that.

    Both arguments are in 10^12 operations per second; the model's are without recomputation.
    """
    return {"model_tflops_per_second": tflops, **({} if peak is None else {"mfu": tflops / peak})}
