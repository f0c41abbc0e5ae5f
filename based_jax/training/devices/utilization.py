"""Measure device utilization: model FLOP/s and their share of the devices' peak (MFU)."""

import re
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Utilization:
    """Converts steps per second into operations per second and MFU."""

    flops_per_step: float  # of the model, for all sequences of a step; without recomputation
    peak: float | None  # 10^12 operations per second of all devices together; None if unknown

    def metrics(self, steps_per_second: float) -> dict[str, float]:
        """Return `model_tflops_per_second` and, if the peak is known, `mfu`, its share of the peak."""
        tflops = self.flops_per_step * steps_per_second / 1e12
        share = {} if self.peak is None else {"mfu": tflops / self.peak}
        return {"model_tflops_per_second": tflops, **share}
