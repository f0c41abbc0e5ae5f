"""Compute perplexity overall, on AR hits and on other tokens, loss by frequency and position, and distances.

    l, l_H      mean log-probability over all tokens, over the AR hits
    p_H         share of the hits among the tokens
    gap share   min((l_H^m - l_H^ref) p_H / (l^m - l^ref), 1)       (Zoology C.1)

The gap share is the share of model m's overall gap to a reference (attention) that is due to the hits.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from based_jax.evals.perplexity.records import MAX_COUNT, Records, is_hit
from based_jax.validate import expect

NEAR = 100
"""In Zoology most repeats are within this many tokens of the previous occurrence."""


def report(records: Records, max_count: int = MAX_COUNT, reference: Records | None = None) -> dict[str, Any]:
    """Summarize records in all slices, as JSON values.

    Args:
        max_count: largest training count of an AR hit.
        reference: records of another model on the same tokens.

    Returns:
        info; max_count; slices (all, hits and other); frequency, positions and distances in bins 0, 1, 2-3,
        4-7 and so on, with `low` and `high` (inclusive); and with a reference gap_explained and reference,
        its info, slices, frequency and positions. See the functions of these names.

    Raises:
        ValueError: a reference on other tokens.
    """
    hits = is_hit(records.distance, records.count, max_count)
    found = {"max_count": max_count, **_losses(records, hits)}
    num_bytes = records.info.get("num_bytes")
    if num_bytes:
        found["bits_per_byte"] = float(records.loss.sum(dtype=np.float64)) / math.log(2) / num_bytes
    if reference is not None:
        expect_same_tokens(records, reference)
        found["reference"] = _losses(dataclasses.replace(reference, count=records.count), hits)
        found["gap_explained"] = gap_explained(records.loss, reference.loss, hits)
    found["distances"] = distances(records.distance, hits)
    return found


def expect_same_tokens(records: Records, reference: Records) -> None:
    """Check that the records of two models are of the same tokens in the same sequences."""
    pairs = ((getattr(reference, x), getattr(records, x)) for x in ("position", "sequence", "target"))
    same = all(np.array_equal(*pair) for pair in pairs)
    wanted = f"the model's {len(records)} tokens in the same sequences"
    expect(same, "reference", f"records of {len(reference)} tokens", wanted)


def _losses(records: Records, hits: np.ndarray) -> dict[str, Any]:
    curves = {"frequency": frequency(records), "positions": positions(records, hits)}
    return {"info": records.info, "slices": slices(records.loss, hits), **curves}


def slices(loss: np.ndarray, hits: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return tokens, share of tokens, mean loss (nats) and perplexity by slice; None if it is empty."""
    chosen = {"all": np.ones(hits.shape, bool), "hits": hits, "other": ~hits}
    return {name: _summary(loss[mask], loss.size) for name, mask in chosen.items()}


def gap_explained(loss: np.ndarray, reference: np.ndarray, hits: np.ndarray) -> float | None:
    """Compute Zoology's gap share, at most 1; negative if the model is worse overall but better on the hits.

    Without an overall gap, return 1 if the model is worse on the hits, as in the paper, else None.
    """
    gap = float(np.mean(loss, dtype=np.float64) - np.mean(reference, dtype=np.float64))
    on_hits = float((loss[hits].astype(np.float64) - reference[hits]).sum()) / loss.size
    if gap <= 0:
        return 1.0 if on_hits > 0 else None
    return min(on_hits / gap, 1.0)


def frequency(records: Records) -> list[dict[str, Any]]:
    """Return the loss by the bigram's training count (Zoology, Figure 1), of all tokens and of the repeats.

    Empty without counts.
    """
    if records.count is None:
        return []
    return _by(records.count, records.loss, "repeats", records.distance > 0)


def positions(records: Records, hits: np.ndarray) -> list[dict[str, Any]]:
    """Return the loss by the target's position in its window or document, from 0, of all and of the hits."""
    return _by(records.sequence_positions(), records.loss, "hits", hits)


def _by(values: np.ndarray, loss: np.ndarray, name: str, mask: np.ndarray) -> list[dict[str, Any]]:
    """Summarize the tokens in each bin of `values`, `all` of them and those in the mask."""
    bins = []
    for low, high, inside in _bins(values):
        every, chosen = (_summary(loss[x], loss.size) for x in (inside, inside & mask))
        bins.append({"low": low, "high": high, "all": every, name: chosen})
    return bins


def distances(distance: np.ndarray, hits: np.ndarray) -> dict[str, Any]:
    """Count repeats by distance (Zoology, Figures 3 to 5).

    Returns:
        Bins with `repeats` and `hits`; and the shares of repeats and hits that are less than `NEAR` tokens
        away, None if there are none.
    """
    repeats = distance > 0
    bins = [
        {"low": low, "high": high, "repeats": int(inside.sum()), "hits": int((inside & hits).sum())}
        for low, high, inside in _bins(distance)
        if low > 0
    ]
    near = distance < NEAR
    shares = {
        f"{name}_within_{NEAR}": float(near[mask].mean()) if mask.any() else None
        for name, mask in (("repeats", repeats), ("hits", hits))
    }
    return {"bins": bins, **shares}


def _bins(values: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield low, high and a mask of each of the bins 0, 1, 2-3, 4-7, ... up to the largest value."""
    number = np.frexp(values.astype(np.float64))[1]  # 0 for 0, else the value's number of bits
    last = int(number.max(initial=0))
    bounds = [(0, 0), *[(1 << bit, (2 << bit) - 1) for bit in range(last)]]
    for index, (low, high) in enumerate(bounds):
        yield low, high, number == index


def _summary(loss: np.ndarray, total: int) -> dict[str, Any]:
    mean = float(loss.mean(dtype=np.float64)) if loss.size else None
    return {"tokens": loss.size, "share": loss.size / total, "loss": mean, "perplexity": perplexity(loss)}


def perplexity(loss: np.ndarray) -> float | None:
    """Return the exponential of the mean loss in nats, at most e^700; None without losses."""
    return math.exp(min(float(loss.mean(dtype=np.float64)), 700.0)) if loss.size else None


def report_lines(result: dict[str, Any]) -> list[str]:
    """Format the result of `slices.report`."""
    rows = [f"{'slice':<22}{'tokens':>14}{'share':>9}{'loss':>9}{'perplexity':>12}"]
    for title in ("", "reference"):
        source = result.get(title) if title else result
        for name, values in (source["slices"] if source else {}).items():
            label = f"{title} {name}".strip()
            rows.append(f"{label:<22}{_row(values)}")
    if "bits_per_byte" in result:
        rows.append(f"bits per byte {result['bits_per_byte']:.4f}")
    counts = result["info"].get("counts")
    rare = "any count"
    if counts:
        rare = f"at most {result['max_count']:,} times in training ({counts['source']})"
    rows.append(f"hits: bigrams that came before in the sequence, {rare}")
    if "gap_explained" in result:
        share = result["gap_explained"]
        said = "no gap: the model is not worse" if share is None else f"{share:.1%}"
        rows.append(f"gap to the reference explained by hits: {said}")
    tables = ("count in training", "frequency", "repeats"), ("position", "positions", "hits")
    for label, key, other in tables:
        if result[key]:
            rows += ["", f"{label:<22}{'tokens':>14}{'loss':>9}{other:>14}{'loss':>9}"]
        for entry in result[key]:
            cells = (f"{entry[name]['tokens']:>14,}{_loss(entry[name])}" for name in ("all", other))
            rows.append(f"{_span(entry):<22}{''.join(cells)}")
    return [*rows, "", *distance_lines(result["distances"])]


def distance_lines(values: dict[str, Any]) -> list[str]:
    """Format the result of `slices.distances` as a table."""
    rows = [f"{'tokens since':<22}{'repeats':>14}{'hits':>14}"]
    for entry in values["bins"]:
        rows.append(f"{_span(entry):<22}{entry['repeats']:>14,}{entry['hits']:>14,}")
    near = values[f"hits_within_{NEAR}"]
    return [*rows, *([] if near is None else [f"hits less than {NEAR} tokens away: {near:.1%}"])]


def _row(values: dict[str, Any]) -> str:
    perplexity = "-" if values["perplexity"] is None else f"{values['perplexity']:,.4g}"
    return f"{values['tokens']:>14,}{values['share']:>9.2%}{_loss(values)}{perplexity:>12}"


def _loss(values: dict[str, Any]) -> str:
    return f"{'-':>9}" if values["loss"] is None else f"{values['loss']:>9.4f}"


def _span(entry: dict[str, Any]) -> str:
    return f"{entry['low']:,}" if entry["low"] == entry["high"] else f"{entry['low']:,} to {entry['high']:,}"
