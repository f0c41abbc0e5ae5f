"""Summarize the rows of a run: their number, and the kernels' performance targets beside them."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]

WIDE_WINDOW_BATCH = 32


def summary(rows: Rows) -> dict[str, Any]:
    """Return the rows of each status by section, and the targets as a table of [what, wanted, measured]."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["section"], Counter())[row["status"]] += 1
    return {"rows": counts, "tables": {"targets": targets(rows)}}


def targets(rows: Rows) -> list[list[str | None]]:
    """Return what, wanted and measured of each target; the last is None if a candidate did not run."""
    at_8k = _times(rows, "forward", "B4 N8192")
    in_torch = [r for r in _measured(rows, "torch", "forward") if (r["batch"], r["length"]) == (4, 8192)]
    beside = {r["what"]: r["seconds"] for r in in_torch}
    peers = [seconds for what, seconds in beside.items() if what.startswith("fla_")]
    large, alone = (_times(rows, "forward", size).get("pallas") for size in ("B16 N32768", "B1 N32768"))
    both = _times(rows, "backward", "B16 N32768").get("pallas")
    shares = [r["bound_fraction"] for r in _measured(rows, "decode", "B128") if r["what"] == "pallas loop"]
    batches = {row["batch"] for row in rows if row["section"] == "window" and "batch" in row}
    windows = [_times(rows, "window", f"B{batch}") for batch in batches if batch >= WIDE_WINDOW_BATCH]
    over_ours = [_over(found.get("xla loop"), found.get("pallas loop")) for found in windows]
    at_8k_h64 = "forward, N 8192, B*H 64"
    # Ours too with its launches, if both were timed in one process.
    peer = _over(min(peers, default=None), beside.get("pallas", at_8k.get("pallas")))
    backward = _over(both - large if both and large else None, large)
    window = min(filter(None, over_ours), default=None)
    return [
        _row(f"{at_8k_h64}: best of flash-linear-attention over ours", peer, least=2),
        _row("forward, B 16, H 16, N 32768", large and 1e3 * large, most=2.5, unit=" ms"),
        _row("forward, B 1, H 16, N 32768", alone and 1e3 * alone, most=0.3, unit=" ms"),
        _row("backward over forward, B 16, H 16, N 32768", backward, most=3.5),
        _row("decode, B 128: share of the copy bandwidth", next(iter(shares), None), least=0.8),
        _row("window decode, B 32 and more: xla over ours", window, least=2),
    ]


def _row(
    name: str, value: float | None, least: float = 0, most: float = math.inf, unit: str = ""
) -> list[str | None]:
    wanted = f"at least {least:g}{unit}" if least else f"at most {most:g}{unit}"
    if value is None:
        return [name, wanted, None]
    return [name, wanted, f"{value:.3g}{unit}" + ("" if least <= value <= most else ", missed")]


def _measured(rows: Rows, section: str, step: str) -> list[dict[str, Any]]:
    """Return the rows of a step that have a time."""
    wanted = (section, step, "measured")
    return [r for r in rows if (r["section"], r.get("step"), r["status"]) == wanted and r["seconds"]]


def _times(rows: Rows, section: str, step: str) -> dict[str, float]:
    """Return the seconds of a step by candidate."""
    return {row["what"]: row["seconds"] for row in _measured(rows, section, step)}


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
