"""How well a run uses its devices: the model's operations a second, and their share of the devices' peak."""

import re
from dataclasses import dataclass

# Dense products in bfloat16 of one device, 10^12 operations a second, by a part of JAX's `device_kind`, from
# the makers' data sheets; the first that fits counts.
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
    """The peak of a device of this kind; None for one that is not in the table."""
    fitting = (peak for name, peak in PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device_kind))
    return next(fitting, None)


@dataclass(frozen=True)
class Utilization:
    """What turns the time of steps into operations a second."""

    flops_per_step: float  # of the model, all sequences of a step together; recomputation does not count
    peak: float | None  # 10^12 operations a second of all devices together; None if unknown

    def metrics(self, steps_per_second: float) -> dict[str, float]:
        """`model_tflops_per_second` and, with a known peak, `mfu`, their share of it."""
        tflops = self.flops_per_step * steps_per_second / 1e12
        share = {} if self.peak is None else {"mfu": tflops / self.peak}
        return {"model_tflops_per_second": tflops, **share}
