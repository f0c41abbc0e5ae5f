"""The tables of the `decode` report."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks import tables
from benchmarks.analysis import series
from benchmarks.decode.parts import BATCHES, CONTEXTS, FIRST, GENERATE, PREFILL
from benchmarks.memory import MIB
from benchmarks.tables import MISSING, exponent, milliseconds, significant


def _labels(report: dict[str, Any]) -> dict[str, str]:
    """Return model -> its name in the tables."""
    return {candidate["name"]: candidate["label"] for candidate in report["candidates"]}


def text(report: dict[str, Any]) -> str:
    """Return every table with numbers, and the cases that were not run, with the reason."""
    labels = _labels(report)
    return tables.blocks(
        _facts(report),
        *_contexts(report),
        *_prefill(report),
        *_batches(report),
        tables.not_measured(
            report["rows"],
            lambda row: f"{labels[row['candidate']]}, {row['part']}, {row['pass']} at {row['length']:,}",
        ),
    )


def _facts(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    models = "; ".join(
        f"{c['label']} of {c['parameters'] / 1e6:.4g} M parameters, {len(c['schedule'])} layers of width "
        f"{c['d_model']}"
        for c in report["candidates"]
    )
    where = f"{machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}"
    return (
        f"{models}. Random weights, {settings['dtype']}, greedy. {where}; "
        f"{machine['date'][:10]}. Medians of up to {settings['samples']} samples, in turns."
    )


def _counts(values: Iterable[int]) -> list[str]:
    return [f"{value:,}" for value in values]


def _cells(found: Mapping[Any, float], values: Iterable[Any], show: Callable[[float], str]) -> list[str]:
    return [show(found[value]) if value in found else MISSING for value in values]


def _part(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["part"] == name]


def _growing(
    report: dict[str, Any], part: str, direction: str, title: str, key: str, show: Callable[[float], str]
) -> str:
    """Format `key` by model and length, with the fitted exponent: of the state if that is the key."""
    rows = _part(report, part)
    lengths = sorted({row["length"] for row in rows})
    fitted = "state_exponent" if key == "state_bytes" else "time_exponent"
    powers = {
        entry["candidate"]: entry[fitted]
        for entry in report["summary"]["growth"]
        if (entry["part"], entry["pass"]) == (part, direction)
    }
    body = [
        [label, *_cells(series(rows, name, direction, key), lengths, show), _power(powers[name])]
        for name, label in _labels(report).items()
    ]
    return tables.table([title, *_counts(lengths), "growth"], body)


def _power(value: float | None) -> str:
    return exponent(value) if value is None else f"N^{exponent(value)}"


def _overtakes(report: dict[str, Any], part: str) -> str:
    """Describe from which length on Based is faster."""
    sentences = []
    for entry in report["summary"]["crossover"]:
        if entry["part"] != part:
            continue
        length = entry["length"]
        since = f"faster from {length:,} tokens on" if length else "not faster at the longest that both have"
        label = f"{entry['pass']}, " if part == CONTEXTS else ""
        sentences.append(f"{label}against {_labels(report)[entry['other']]}: {since}")
    start = report["summary"]["growth_from_length"]
    overtakes = [f"Based, {'; '.join(sentences)}."] if sentences else []
    return " ".join([*overtakes, f"Growth: fitted from {start:,} tokens on."])


def _contexts(report: dict[str, Any]) -> Iterable[str]:
    rows = _part(report, CONTEXTS)
    if not rows:
        return
    steps = report["settings"]["steps"]
    yield f"**Time per token after a context**, the last {steps} tokens of it, milliseconds by tokens:"
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    for direction in passes:
        yield _growing(report, CONTEXTS, direction, direction, "seconds_per_token", milliseconds)
    yield _growing(report, CONTEXTS, passes[0], "state of a sequence, MiB", "state_bytes", _mebibytes)
    yield _overtakes(report, CONTEXTS)


def _prefill(report: dict[str, Any]) -> Iterable[str]:
    rows = _part(report, PREFILL)
    if not rows:
        return
    title = f"batch {report['settings']['prefill_batch']}"
    yield "**Prefill**, milliseconds by tokens of each prompt:"
    yield _growing(report, PREFILL, rows[0]["pass"], title, "seconds", milliseconds)
    yield _overtakes(report, PREFILL)


def _batches(report: dict[str, Any]) -> Iterable[str]:
    rows, settings = _part(report, BATCHES), report["settings"]
    if not rows:
        return
    batches = sorted({row["length"] for row in rows})
    states = {row["candidate"]: row["state_bytes"] for row in rows}
    yield (
        f"**Generation by batch**: {settings['tokens']:,} new tokens per row after a prompt of "
        f"{settings['prompt']:,}:"
    )
    speeds = [
        [
            label,
            *_cells(series(rows, name, GENERATE, "tokens_per_second"), batches, lambda x: f"{x:,.0f}"),
            _mebibytes(states[name]),
        ]
        for name, label in _labels(report).items()
    ]
    yield tables.table(["tokens per second", *_counts(batches), "state of a sequence, MiB"], speeds)
    firsts = [
        [label, *_cells(series(rows, name, FIRST), batches, milliseconds)]
        for name, label in _labels(report).items()
    ]
    yield tables.table(["time to the first token, ms", *_counts(batches)], firsts)


def _mebibytes(size: float) -> str:
    return significant(size / MIB)
