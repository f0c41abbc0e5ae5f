"""What `train` and `mqar` share: studies of training steps in JAX and in torch, and their tables."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from based_jax.validate import expect
from benchmarks import report, tables
from benchmarks.machine import MIB
from benchmarks.report import Report
from benchmarks.study import Flags, Study
from benchmarks.tables import MISSING, milliseconds, significant

STEP = "train"
"""The only pass: a whole training step."""

AGREEMENT = 1e-5
"""Allowed difference of losses that JAX and torch compute from the same parameters, relative to the loss."""

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Heading -> the cell of a row."""


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
    facts: Callable[[dict[str, Any]], str]
    """returns what the settings say of the models"""
    columns: Columns
    """before the ratios"""
    memory: Columns
    """after them"""
    explained: str = ""


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


def _scratch(row: Row) -> str:
    return MISSING if row["temp_bytes"] is None else significant(row["temp_bytes"] / MIB)


def _whole(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:,.0f}"


def _of_train(settings: dict[str, Any]) -> str:
    models = ", ".join(
        f"{name} {facts['schedule']} of {facts['parameters'] / 1e6:.2f} M parameters"
        for name, facts in settings["models"].items()
    )
    return (
        f"{models}; width {settings['d_model']}, vocabulary {settings['vocab_size']:,}, "
        f"batch {settings['batch_size']} x {settings['length']} tokens"
    )


def _of_mqar(settings: dict[str, Any]) -> str:
    return (
        f"d_model {settings['d_model']}, vocabulary {settings['vocab_size']:,}, {settings['length']} "
        f"tokens with {settings['pairs']} pairs, batch {settings['batch_size']}"
    )


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
    _of_train,
    {
        "compile, s": lambda row: _seconds(row["compile_seconds"]),
        "step, ms": lambda row: milliseconds(row["step_seconds"]),
        "±": lambda row: f"{100 * row['spread']:.0f}%",
        "tokens/s": _whole("tokens_per_second"),
    },
    {"scratch, MiB": _scratch},
    "±: quartile range over median. x: tokens per second over those of that row, with the quartile ranges of "
    "both put together. scratch: temporary memory that XLA planned.",
)
MQAR = Kind(
    "mqar",
    "Training on MQAR, CPU",
    "mixer",
    "examples_per_second",
    {"jax_1": "one by one", "torch_labels": "torch, labels", "torch_all": "torch, all"},
    _of_mqar,
    {
        "compile, s": lambda row: _seconds(row["compile_seconds"]),
        "per model": lambda row: _seconds(row["compile_seconds"] and row["compile_seconds"] / row["models"]),
        "step, ms": lambda row: milliseconds(row["step_seconds"]),
        "examples/s per model": _whole("examples_per_second_per_model"),
        "examples/s": _whole("examples_per_second"),
    },
    {},
)


def expect_one_cpu() -> None:
    """Raise ValueError unless JAX computes on one CPU."""
    devices = [device.platform for device in jax.devices()]
    expect(devices == ["cpu"], "JAX devices", ",".join(devices), "one CPU, as with JAX_PLATFORMS=cpu")


def run(
    flags: Flags,
    kind: Kind,
    settings: Mapping[str, Any],
    workloads: Mapping[str, Any],
    quantities: Callable[[dict[str, Any]], dict[str, Any]],
    command: str,
) -> int:
    """Measure one subject after another, print and write.

    Args:
        settings: of the report, with the length of a row and the steps of a call.
        workloads: subject (a model, or the mixer in one) -> its training, with `candidates()` that take turns
            and, if some are in torch, `losses` of the first steps and `torch_losses(name)`.
        quantities: returns further columns of a row that has `step_seconds`.

    Returns:
        0, 1 if JAX and torch disagree, 130 after Ctrl-C.
    """
    listed = {subject: workload.candidates() for subject, workload in workloads.items()}
    every = {c.name: c for candidates in listed.values() for c in candidates}
    described = [{"name": c.name, "label": c.label, "framework": c.framework} for c in every.values()]
    results = flags.new_report(kind.benchmark, command, {**settings}, described)
    report.note_load(results)
    studies: dict[str, Study] = {}
    first, *_ = kind.bases

    def sweeps() -> Iterator[tuple[Study, list[int]]]:
        for subject, candidates in listed.items():
            studies[subject] = flags.study(results, candidates, (STEP,), name=subject)
            yield studies[subject], [settings["length"]]
            for case in studies[subject].cases:
                if case.candidate.framework == "torch" and case.timing.samples:
                    workload, name = workloads[subject], case.candidate.name
                    found = agreement(name, workload.losses, workload.torch_losses(name))
                    results["agreement"].append({kind.subject: subject, "other": first} | found)

    def rows() -> list[Row]:
        found = [
            {
                kind.subject: subject,
                **row,
                "step_seconds": row["seconds"] and row["seconds"] / settings["steps"],
            }
            for subject, study in studies.items()
            for row in study.rows()
        ]
        return [row | quantities(row) for row in found]

    return flags.measure(results, sweeps(), rows, kind.title, text)


def agreement(candidate: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Compare the losses of the first steps from the same parameters, in JAX and in a candidate."""
    error = float(np.max(np.abs(np.subtract(ours, theirs))) / np.max(np.abs(ours)))
    return {
        "candidate": candidate,
        "losses": theirs,
        "other_losses": ours,
        "relative_error": error if np.isfinite(error) else None,
        "agrees": error <= AGREEMENT,
    }


def text(report: Report) -> str:
    """Return the report in Markdown."""
    kind = TRAIN if report["benchmark"] == "train" else MQAR
    labels = {candidate["name"]: candidate["label"] for candidate in report["candidates"]}
    bases = [name for name in kind.bases if name in labels]
    columns = {
        kind.subject: lambda row: row[kind.subject],
        "candidate": lambda row: labels[row["candidate"]],
        **kind.columns,
        **{f"x {kind.bases[base]}": ratios(kind, report["rows"], base) for base in bases},
        **kind.memory,
    }
    body = [
        [
            write(row) if row["seconds"] is not None or at < 2 else MISSING
            for at, write in enumerate(columns.values())
        ]
        for row in report["rows"]
    ]
    return tables.blocks(
        f"float32: {kind.facts(report['settings'])}; {tables.ran_on(report, 'jax', 'torch')}.",
        tables.table(list(columns), body, left=2),
        kind.explained,
        tables.not_measured(report["rows"], lambda row: f"{row[kind.subject]} {row['candidate']}"),
        tables.sentence(list(_agreement(kind, report))),
    )


def ratios(kind: Kind, rows: Sequence[Row], base: str) -> Callable[[Row], str]:
    """Return the column of speeds over that of a baseline; in `TRAIN` with the spread of both."""
    others = {row[kind.subject]: row for row in rows if row["candidate"] == base and row[kind.speed]}

    def write(row: Row) -> str:
        if row["candidate"] == base:
            return "1"
        if (other := others.get(row[kind.subject])) is None:
            return MISSING
        ratio = row[kind.speed] / other[kind.speed]
        spread = ratio * math.hypot(row["spread"], other["spread"])
        return f"{ratio:.2f}" + (f" ± {spread:.2f}" if kind is TRAIN else "")

    return write


def _agreement(kind: Kind, report: Report) -> Iterator[str]:
    """Write a sentence for each torch row."""
    for entry in report["agreement"]:
        error = "not finite" if entry["relative_error"] is None else f"{entry['relative_error']:.0e}"
        yield (
            f"{entry[kind.subject]}: {entry['candidate']} {'agrees' if entry['agrees'] else 'DISAGREES'} "
            f"with {entry['other']}: losses from the same parameters differ by at most {error} of the "
            f"largest (steps: {len(entry['losses'])})"
        )
