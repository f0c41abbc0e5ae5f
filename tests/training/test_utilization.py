"""Operations a second, and their share of a device's peak."""

from based_jax.training.commands.lm import peak_tflops

PEAKS = {
    "NVIDIA H200": 989,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": None,
    "TPU v4": 275,
    "TPU v4 lite": 138,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "cpu": None,
}


def test_peaks_by_kind_of_device():
    assert {kind: peak_tflops(kind) for kind in PEAKS} == PEAKS
