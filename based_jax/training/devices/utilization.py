"""Measure device utilization: model FLOP/s and their share of the devices' peak (MFU)."""

import re

# Peak of dense bfloat16 products on one device, in 10^12 operations per second, from the vendors' data
# sheets. Keys are substrings of JAX's `device_kind`; the first match counts.
PEAK_TFLOPS = {
    "A100": 312.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
    "TPU v4 lite": 138.0,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
}


def peak_tflops(device_kind: str) -> float | None:
    """Return the peak of a device of this kind; None if it is not in the table."""
    fitting = (peak for name, peak in PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device_kind))
    return next(fitting, None)


def utilization(tflops: float, peak: float | None) -> dict[str, float]:
    """Return `model_tflops_per_second` and, if the devices' peak is known, `mfu`, its share of that.

    Both arguments are in 10^12 operations per second; the model's are without recomputation.
    """
    return {"model_tflops_per_second": tflops, **({} if peak is None else {"mfu": tflops / peak})}
