"""Predictions for the kernels before any measurement, from compiled code and arithmetic."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu_sections.targets import Rows, backward, measured, times


class Expectation(NamedTuple):
    """A number of the report, and its prediction."""

    what: str
    expected: str
    value: Callable[[Rows], float | None]
    unit: str = "ms"
    scale: float = 1e3
    """units per second, or per unit of `value`'s result"""

    def row(self, rows: Rows) -> list[str | None]:
        """Return the quantity, the prediction and the measurement, as in the documentation's tables."""
        value = self.value(rows)
        return [
            self.what,
            self.expected,
            None if value is None else f"{value * self.scale:.3g} {self.unit}".strip(),
        ]


def _seconds(section: str, step: str, what: str) -> Callable[[Rows], float | None]:
    return lambda rows: times(rows, section, step).get(what)


def _rate(step: str) -> Callable[[Rows], float | None]:
    return lambda rows: next((r.get("per_second") for r in measured(rows, "machine", step)), None)


def _three_passes(rows: Rows) -> float | None:
    found = [times(rows, "kernels", f"{name} blocks").get(name) for name in ("key_sums", "scan", "outputs")]
    return None if None in found else sum(filter(None, found))


def _largest_error(rows: Rows) -> float | None:
    found = [r for r in rows if r["section"] == "correctness" and "N2048" in r.get("step", "")]
    return next((row["errors"].get("y") for row in found if row.get("errors")), None)


LARGE = "forward, B 16, H 16, N 32768"

EXPECTATIONS = (
    Expectation("copy, read and written", "4.3 TB/s", _rate("copy"), "TB/s", 1e-12),
    Expectation("bfloat16 matmul, 8192^3", "790 TFLOP/s", _rate("matmul"), "TFLOP/s", 1e-12),
    Expectation(LARGE, "1.2 ms (0.9 to 1.9)", _seconds("forward", "B16 N32768", "pallas")),
    Expectation(
        "the same through jax-triton",
        "1.6 ms (1.2 to 2.4); under 0.8 of ours take it as the default",
        _seconds("forward", "B16 N32768", "triton"),
    ),
    Expectation(
        "the same through Mosaic GPU (jax 0.11 or newer)",
        "1.2 ms (0.8 to 1.8)",
        _seconds("forward", "B16 N32768", "mosaic"),
    ),
    Expectation("the same in three passes, L = 4096", "1.8 ms", _three_passes),
    Expectation("backward alone, L = N", "5 to 6 ms", backward),
    Expectation("forward, B 1, N 32768, L = 2048", "0.18 ms", _seconds("blocks", "B1 N32768", "block 2048")),
    Expectation("the same, L = 1024", "0.2 ms", _seconds("blocks", "B1 N32768", "block 1024")),
    Expectation("the same, B 1, serial", "1.0 to 1.4 ms", _seconds("blocks", "B1 N32768", "serial")),
    Expectation("forward, B 4 (64 heads), N 32768", "0.65 ms", _seconds("blocks", "B4 N32768", "default")),
    Expectation("the same, B 4, serial", "1.2 ms", _seconds("blocks", "B4 N32768", "serial")),
    Expectation("forward, B 16, N 2048", "0.12 to 0.18 ms", _seconds("forward", "B16 N2048", "pallas")),
    Expectation(
        "decoding step, B 128, H 16", "40 to 50 us", _seconds("decode", "B128", "pallas loop"), "us", 1e6
    ),
    Expectation(
        "decoding step, B 1",
        "4 to 6 us, bound by its launch",
        _seconds("decode", "B1", "pallas loop"),
        "us",
        1e6,
    ),
    Expectation(
        "largest error, bfloat16 forward, N 2048", "3e-3 of the largest value", _largest_error, "", 1
    ),
    *(
        Expectation(
            f"`{name}` alone, B 16, H 16, N 32768, {words}",
            "above, at 55 %",
            _seconds("kernels", f"{name} {step}", name),
        )
        for name in ("outputs", "dq", "dk", "dv", "key_sums", "query_sums", "scan")
        for step, words in (("serial", "serial"), ("blocks", "L = 4096"))
        if step == "blocks" or name in ("outputs", "dq", "dk", "dv")
    ),
)
