"""Summarize the rows of a run: their number, and the kernels' performance targets beside them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[dict[str, Any]]

WIDE_WINDOW_BATCH = 32


@dataclass(frozen=True)
class Target:
    """A target number: at least `least`, or at most `most`."""

    name: str
    value: float | None
    """measured; None if a candidate did not run"""
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is met; None if not measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it JSON-ready."""
        return {"target": self.name, "wanted": self.wanted, "measured": self.value, "met": self.met}

    @property
    def wanted(self) -> str:
        """Describe the target in words."""
        bound = f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"
        return f"{bound} {self.unit}".strip()

    def row(self) -> list[str | None]:
        """Return what, wanted, measured, as in the documentation's tables."""
        if self.value is None:
            return [self.name, self.wanted, None]
        value = f"{self.value:.3g} {self.unit}".strip()
        return [self.name, self.wanted, value if self.met else f"{value}, missed"]


def summary(rows: Rows) -> dict[str, Any]:
    """Return the rows of each status by section, the targets, and their table of [what, wanted, measured]."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        section = counts.setdefault(row["section"], {})
        section[row["status"]] = section.get(row["status"], 0) + 1
    found = targets(rows)
    tables = {"targets": [target.row() for target in found]}
    return {"rows": counts, "targets": [target.as_dict() for target in found], "tables": tables}


def targets(rows: Rows) -> list[Target]:
    """List every target, measured or not."""
    at_8k = times(rows, "forward", "B4 N8192")
    peers = [r["seconds"] for r in measured(rows, "torch", "forward") if r["batch"] * r["length"] == 4 * 8192]
    large, alone = times(rows, "forward", "B16 N32768"), times(rows, "forward", "B1 N32768")
    decode = [
        row["bound_fraction"] for row in measured(rows, "decode", "B128") if row["what"] == "pallas loop"
    ]
    window = [
        _over(times(rows, "window", f"B{batch}"), "xla loop", "pallas loop")
        for batch in _batches(rows, "window")
        if batch >= WIDE_WINDOW_BATCH
    ]
    return [
        Target(
            "forward, N 8192, B*H 64: best of flash-linear-attention over ours",
            quotient(_least(peers), at_8k.get("pallas")),
            least=2,
        ),
        Target(
            "forward, N 8192, B*H 64: cumulative sum over ours",
            _over(at_8k, "cumulative_sum", "pallas"),
            least=5,
        ),
        Target("forward, B 16, H 16, N 32768", _milliseconds(large.get("pallas")), most=2.5, unit="ms"),
        Target("forward, B 1, H 16, N 32768", _milliseconds(alone.get("pallas")), most=0.3, unit="ms"),
        Target(
            "backward over forward, B 16, H 16, N 32768",
            quotient(backward(rows), large.get("pallas")),
            most=3.5,
        ),
        Target("decode, B 128: share of the copy bandwidth", decode[0] if decode else None, least=0.8),
        Target("window decode, B 32 and more: xla over ours", _least(window), least=2),
    ]


def backward(rows: Rows) -> float | None:
    """Return the seconds of the backward pass alone on the reference case."""
    both, forward = (times(rows, name, "B16 N32768").get("pallas") for name in ("backward", "forward"))
    return None if both is None or forward is None else both - forward


def measured(rows: Rows, section: str, step: str) -> list[dict[str, Any]]:
    """Return the rows of a step that have a time."""
    wanted = (section, step, "measured")
    return [r for r in rows if (r["section"], r.get("step"), r["status"]) == wanted and r["seconds"]]


def times(rows: Rows, section: str, step: str) -> dict[str, float]:
    """Return the seconds of a step by candidate."""
    return {row["what"]: row["seconds"] for row in measured(rows, section, step)}


def _batches(rows: Rows, section: str) -> list[int]:
    return sorted({row["batch"] for row in rows if row["section"] == section and "batch" in row})


def _over(times: dict[str, float], one: str, other: str) -> float | None:
    return quotient(times.get(one), times.get(other))


def quotient(one: float | None, other: float | None) -> float | None:
    """Divide one by the other, if both were measured."""
    return None if one is None or other is None else one / other


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
