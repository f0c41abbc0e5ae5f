"""The tables of `train` and `mqar`."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import tables
from benchmarks.memory import MIB
from benchmarks.tables import MISSING, milliseconds, significant

Report = dict[str, Any]
Row = dict[str, Any]


class Kind(NamedTuple):
    """What differs between the two benchmarks."""

    benchmark: str
    title: str
    subject: str
    """key of a row's model or mixer"""
    speed: str
    """key of a row's speed, of which the ratios are made"""
    bases: dict[str, str]
    """baselines for the other candidates, and their headings; the first has the losses of JAX"""

    @property
    def first(self) -> str:
        """The first baseline."""
        return next(iter(self.bases))


TRAIN = Kind(
    "train",
    "Training, CPU",
    "model",
    "tokens_per_second",
    {
        "jax": "based_jax",
        "torch": "torch",
        "torch_compile": "torch.compile",
        "torch_chunks": "torch, chunks",
        "torch_compile_chunks": "torch.compile, chunks",
    },
)
MQAR = Kind(
    "mqar",
    "Training on MQAR, CPU",
    "mixer",
    "examples_per_second",
    {"jax_1": "one by one", "torch_labels": "torch, labels", "torch_all": "torch, all"},
)

EXPLAINED = (
    "±: quartile range over median. x: tokens per second over those of that row, with the quartile ranges of "
    "both put together. scratch: temporary memory that XLA planned. peak: rise of the process's resident "
    "memory at the first call, parameters not counted."
)


def ratios(kind: Kind, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each candidate's speed over that of each baseline, and the relative spread."""
    found = {(row[kind.subject], row["candidate"]): row for row in rows if row[kind.speed]}
    return [
        {
            kind.subject: subject,
            "candidate": name,
            "other": base,
            "ratio": row[kind.speed] / other[kind.speed],
            "spread": math.hypot(row["spread"], other["spread"]),
        }
        for (subject, name), row in found.items()
        for base in kind.bases
        if base != name and (other := found.get((subject, base)))
    ]


def text(report: Report) -> str:
    """Return the report in Markdown."""
    kind = TRAIN if report["benchmark"] == "train" else MQAR
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    bases = [name for name in kind.bases if name in labels]
    own, cells = (_train, _train_cells) if kind is TRAIN else (_mqar, _mqar_cells)
    first, last = own
    columns = [kind.subject, "candidate", *first, *(f"x {kind.bases[name]}" for name in bases), *last]
    body = []
    for row in report["rows"]:
        found = [MISSING] * (len(columns) - 2)
        if row["seconds"] is not None:
            before, after = cells(row)
            found = [*before, *_ratios(kind, row, report, bases), *after]
        body.append([row[kind.subject], labels[row["candidate"]], *found])
    return tables.blocks(
        f"float32: {_facts(report)}; {tables.ran_on(report, 'jax', 'torch')}.",
        tables.table(columns, body, left=2),
        EXPLAINED if kind is TRAIN else "",
        tables.not_measured(report["rows"], lambda row: f"{row[kind.subject]} {row['candidate']}"),
        tables.sentence(list(_agreement(kind, report))),
    )


def _facts(report: Report) -> str:
    settings = report["settings"]
    if report["benchmark"] == "mqar":
        return (
            f"d_model {settings['d_model']}, vocabulary {settings['vocab_size']:,}, {settings['length']} "
            f"tokens with {settings['pairs']} pairs, batch {settings['batch_size']}"
        )
    models = ", ".join(
        f"{name} {facts['schedule']} of {facts['parameters'] / 1e6:.2f} M parameters"
        for name, facts in settings["models"].items()
    )
    return (
        f"{models}; width {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"batch {settings['batch_size']} x {settings['length']} tokens"
    )


_train = ("compile, s", "step, ms", "±", "tokens/s"), ("scratch, MiB", "peak, MiB")
_mqar = ("compile, s", "per model", "step, ms", "examples/s per model", "examples/s"), ()


def _train_cells(row: Row) -> tuple[Iterable[str], Iterable[str]]:
    times = _seconds(row["compile_seconds"]), milliseconds(row["step_seconds"]), f"{100 * row['spread']:.0f}%"
    sizes = row["temp_bytes"], row["peak_rss_bytes"]
    memory = [MISSING if size is None else significant(size / MIB) for size in sizes]
    return (*times, f"{row['tokens_per_second']:,.0f}"), memory


def _mqar_cells(row: Row) -> tuple[Iterable[str], Iterable[str]]:
    compiling = row["compile_seconds"]
    compiled = _seconds(compiling), _seconds(compiling and compiling / row["models"])
    speeds = (f"{row[key]:,.0f}" for key in ("examples_per_second_per_model", "examples_per_second"))
    return (*compiled, milliseconds(row["step_seconds"]), *speeds), ()


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


def _ratios(kind: Kind, row: Row, report: Report, bases: Sequence[str]) -> Iterator[str]:
    found = {
        entry["other"]: f"{entry['ratio']:.2f}"
        + (f" ± {entry['ratio'] * entry['spread']:.2f}" if kind is TRAIN else "")
        for entry in report["summary"]["ratios"]
        if (entry[kind.subject], entry["candidate"]) == (row[kind.subject], row["candidate"])
    }
    return (found.get(base, "1" if base == row["candidate"] else MISSING) for base in bases)


def _agreement(kind: Kind, report: Report) -> Iterator[str]:
    """Write a sentence for each torch row."""
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        yield (
            f"{entry[kind.subject]}: {entry['candidate']} {'agrees' if entry['agrees'] else 'DISAGREES'} "
            f"with {kind.first}: losses from the same parameters differ by at most {error} of the "
            f"largest (steps: {len(entry['losses'])})"
        )
