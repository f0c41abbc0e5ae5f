"""Summarize the rows of a run: their number, and the kernels' performance targets beside them."""

from collections import Counter
from collections.abc import Sequence
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
        return self.value >= self.least if self.least is not None else self.value <= (self.most or 0)

    @property
    def wanted(self) -> str:
        """Describe the target in words."""
        bound = f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"
        return f"{bound} {self.unit}".strip()

    def row(self) -> list[str | None]:
        """Return what, wanted, measured, as in the documentation's tables."""
        value = None if self.value is None else f"{self.value:.3g} {self.unit}".strip()
        return [self.name, self.wanted, f"{value}, missed" if self.met is False else value]


def summary(rows: Rows) -> dict[str, Any]:
    """Return the rows of each status by section, and the targets as a table of [what, wanted, measured]."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["section"], Counter())[row["status"]] += 1
    return {"rows": counts, "tables": {"targets": [target.row() for target in targets(rows)]}}


def targets(rows: Rows) -> list[Target]:
    """List every target, measured or not."""
    at_8k = _times(rows, "forward", "B4 N8192")
    peers = [
        r["seconds"] for r in _measured(rows, "torch", "forward") if r["batch"] * r["length"] == 4 * 8192
    ]
    large, alone = (_times(rows, "forward", size).get("pallas") for size in ("B16 N32768", "B1 N32768"))
    both = _times(rows, "backward", "B16 N32768").get("pallas")
    shares = [r["bound_fraction"] for r in _measured(rows, "decode", "B128") if r["what"] == "pallas loop"]
    batches = {row["batch"] for row in rows if row["section"] == "window" and "batch" in row}
    windows = [_times(rows, "window", f"B{batch}") for batch in batches if batch >= WIDE_WINDOW_BATCH]
    over_ours = [_over(found.get("xla loop"), found.get("pallas loop")) for found in windows]
    at_8k_h64 = "forward, N 8192, B*H 64"
    peer = _over(min(peers, default=None), at_8k.get("pallas"))
    backward = _over(both - large if both and large else None, large)
    return [
        Target(f"{at_8k_h64}: best of flash-linear-attention over ours", peer, least=2),
        Target("forward, B 16, H 16, N 32768", large and 1e3 * large, most=2.5, unit="ms"),
        Target("forward, B 1, H 16, N 32768", alone and 1e3 * alone, most=0.3, unit="ms"),
        Target("backward over forward, B 16, H 16, N 32768", backward, most=3.5),
        Target("decode, B 128: share of the copy bandwidth", next(iter(shares), None), least=0.8),
        Target(
            "window decode, B 32 and more: xla over ours", min(filter(None, over_ours), default=None), least=2
        ),
    ]


def _measured(rows: Rows, section: str, step: str) -> list[dict[str, Any]]:
    """Return the rows of a step that have a time."""
    wanted = (section, step, "measured")
    return [r for r in rows if (r["section"], r.get("step"), r["status"]) == wanted and r["seconds"]]


def _times(rows: Rows, section: str, step: str) -> dict[str, float]:
    """Return the seconds of a step by candidate."""
    return {row["what"]: row["seconds"] for row in _measured(rows, section, step)}


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
