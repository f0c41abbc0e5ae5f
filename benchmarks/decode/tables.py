"""The tables of the `decode` report."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import tables
from benchmarks.analysis import crossover, growth_exponent, series
from benchmarks.decode.models import BASED
from benchmarks.decode.programs import BATCHES, CONTEXTS, FIRST, GENERATE, PREFILL
from benchmarks.machine import MIB
from benchmarks.report import Report
from benchmarks.tables import MISSING, milliseconds, power, significant

Show = Callable[[float], str]

NEVER = "not faster at the longest that both have"


def _labels(report: Report) -> dict[str, str]:
    """Return model -> its name in the tables."""
    return {candidate["name"]: candidate["label"] for candidate in report["candidates"]}


def text(report: Report) -> str:
    """Return every table with numbers, and the cases that were not run, with the reason."""
    labels = _labels(report)
    parts = ((CONTEXTS, _contexts), (PREFILL, _prefill), (BATCHES, _batches))
    rows = {name: [row for row in report["rows"] if row["part"] == name] for name, _ in parts}
    return tables.blocks(
        _facts(report),
        *(block for name, write in parts if rows[name] for block in write(report, rows[name])),
        tables.not_measured(
            report["rows"],
            lambda row: f"{labels[row['candidate']]}, {row['part']}, {row['pass']} at {row['length']:,}",
        ),
    )


def _facts(report: Report) -> str:
    settings = report["settings"]
    models = "; ".join(
        f"{c['label']} of {c['parameters'] / 1e6:.4g} M parameters, {len(c['schedule'])} layers of width "
        f"{c['d_model']}"
        for c in report["candidates"]
    )
    return (
        f"{models}. Random weights, {settings['dtype']}, greedy. {tables.ran_on(report, 'jax')}. "
        f"Medians of up to {settings['samples']} samples, in turns."
    )


def _by_value(
    report: Report,
    title: str,
    rows: Sequence[dict[str, Any]],
    direction: str,
    key: str,
    show: Show,
    **last: dict[str, str],
) -> str:
    """Format `key` by model and swept value; `last` has further columns, heading -> model -> text."""
    values = sorted({row["length"] for row in rows})
    body = []
    for name, label in _labels(report).items():
        found = series(rows, name, direction, key)
        cells = (show(found[value]) if value in found else MISSING for value in values)
        body.append([label, *cells, *(column[name] for column in last.values())])
    return tables.table([title, *(f"{value:,}" for value in values), *last], body)


def _growing(
    report: Report, rows: Sequence[dict[str, Any]], direction: str, title: str, key: str, show: Show
) -> str:
    """Format `key` with the exponent of the state if that is the key, else of the time."""
    start, grows = report["summary"]["growth_from_length"], key if key == "state_bytes" else "seconds"
    growth = {
        name: power(growth_exponent(series(rows, name, direction, grows), start)) for name in _labels(report)
    }
    return _by_value(report, title, rows, direction, key, show, growth=growth)


def _overtakes(report: Report, rows: Sequence[dict[str, Any]]) -> str:
    """Describe from which length on Based is faster."""
    sentences = []
    for direction in dict.fromkeys(row["pass"] for row in rows):
        for name, label in _labels(report).items():
            if name != BASED:
                length = crossover(*(series(rows, each, direction) for each in (BASED, name)))
                when = f"{direction}, " if rows[0]["part"] == CONTEXTS else ""
                since = f"faster from {length:,} tokens on" if length else NEVER
                sentences.append(f"{when}against {label}: {since}")
    start = report["summary"]["growth_from_length"]
    overtakes = [f"Based, {'; '.join(sentences)}."] if sentences else []
    return " ".join([*overtakes, f"Growth: fitted from {start:,} tokens on."])


def _contexts(report: Report, rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    steps = report["settings"]["steps"]
    yield f"**Time per token after a context**, the last {steps} tokens of it, milliseconds by tokens:"
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    for direction in passes:
        yield _growing(report, rows, direction, direction, "seconds_per_token", milliseconds)
    yield _growing(report, rows, passes[0], "state of a sequence, MiB", "state_bytes", _mebibytes)
    yield _overtakes(report, rows)


def _prefill(report: Report, rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    title = f"batch {report['settings']['prefill_batch']}"
    yield "**Prefill**, milliseconds by tokens of each prompt:"
    yield _growing(report, rows, rows[0]["pass"], title, "seconds", milliseconds)
    yield _overtakes(report, rows)


def _batches(report: Report, rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    settings = report["settings"]
    states = {"state of a sequence, MiB": {row["candidate"]: _mebibytes(row["state_bytes"]) for row in rows}}
    yield (
        f"**Generation by batch**: {settings['tokens']:,} new tokens per row after a prompt of "
        f"{settings['prompt']:,}:"
    )
    title, key = "tokens per second", "tokens_per_second"
    yield _by_value(report, title, rows, GENERATE, key, lambda x: f"{x:,.0f}", **states)
    yield _by_value(report, "time to the first token, ms", rows, FIRST, "seconds", milliseconds)


def _mebibytes(size: float) -> str:
    return significant(size / MIB)
