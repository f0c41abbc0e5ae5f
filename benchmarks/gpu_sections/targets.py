"""What the kernels are meant to reach, held against the rows of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[dict[str, Any]]

PEERS = ("fla_parallel_based", "fla_fused_chunk_based")

WIDE_WINDOW_BATCH = 32


@dataclass(frozen=True)
class Target:
    """A number to reach: at least `least`, or at most `most`."""

    name: str
    value: float | None
    """measured; None where a contestant did not run"""
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """None if not measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        wanted = f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"
        return {"target": self.name, "wanted": wanted, "measured": self.value, "met": self.met}


def targets(rows: Rows) -> list[Target]:
    """Every target, measured or not."""
    at_8k = _times(rows, "forward", "B4 N8192")
    large, alone = _times(rows, "forward", "B16 N32768"), _times(rows, "forward", "B1 N32768")
    both = _times(rows, "backward", "B16 N32768")
    backward = None if {"pallas"} - set(both) else both["pallas"] - large.get("pallas", float("nan"))
    decode = [
        row["bound_fraction"] for row in _measured(rows, "decode", "B128") if row["what"] == "pallas loop"
    ]
    window = [
        _over(times, "xla loop", "pallas loop")
        for batch in _batches(rows, "window")
        if batch >= WIDE_WINDOW_BATCH
        for times in [_times(rows, "window", f"B{batch}")]
    ]
    return [
        Target("forward, N 8192, B*H 64: best of flash-linear-attention over ours",
               _least(_over(at_8k, peer, "pallas") for peer in PEERS), least=2),
        Target("forward, N 8192, B*H 64: cumulative sum over ours",
               _over(at_8k, "cumulative_sum", "pallas"), least=5),
        Target("forward, B 16, H 16, N 32768: ms", _milliseconds(large.get("pallas")), most=2.5),
        Target("forward, B 1, H 16, N 32768: ms", _milliseconds(alone.get("pallas")), most=0.3),
        Target("backward over forward, B 16, H 16, N 32768",
               _quotient(backward, large.get("pallas")), most=3.5),
        Target("decode, B 128: share of the copy bandwidth", decode[0] if decode else None, least=0.8),
        Target("window decode, B 32 and more: xla over ours", _least(window), least=2),
    ]  # fmt: skip


def _measured(rows: Rows, section: str, step: str) -> list[dict[str, Any]]:
    return [r for r in rows if (r["section"], r.get("step"), r["status"]) == (section, step, "measured")]


def _times(rows: Rows, section: str, step: str) -> dict[str, float]:
    return {row["what"]: row["seconds"] for row in _measured(rows, section, step)}


def _batches(rows: Rows, section: str) -> list[int]:
    return sorted({row["batch"] for row in rows if row["section"] == section and "batch" in row})


def _over(times: dict[str, float], one: str, other: str) -> float | None:
    return _quotient(times.get(one), times.get(other))


def _quotient(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
