"""What `train` and `mqar` share: studies of training steps in JAX and in torch, from the same parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from based_jax.validate import expect
from benchmarks import report
from benchmarks.models import training_tables
from benchmarks.study import Flags, Study

STEP = "train"
"""The only pass: a whole training step."""

AGREEMENT = 1e-5
"""Allowed difference of losses that JAX and torch compute from the same parameters, relative to the loss."""


def expect_one_cpu() -> None:
    """Raise ValueError unless JAX computes on one CPU."""
    devices = [device.platform for device in jax.devices()]
    expect(devices == ["cpu"], "JAX devices", ",".join(devices), "one CPU, as with JAX_PLATFORMS=cpu")


def run(
    flags: Flags,
    kind: training_tables.Kind,
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

    def sweeps() -> Iterator[tuple[Study, list[int]]]:
        for subject, candidates in listed.items():
            studies[subject] = flags.study(results, candidates, (STEP,), name=subject)
            yield studies[subject], [settings["length"]]
            for case in studies[subject].cases:
                if case.candidate.framework == "torch" and case.timing.samples:
                    workload, name = workloads[subject], case.candidate.name
                    found = agreement(name, workload.losses, workload.torch_losses(name))
                    results["agreement"].append({kind.subject: subject, "other": kind.first} | found)

    def collect() -> report.Report:
        rows = [
            {
                kind.subject: subject,
                **row,
                "step_seconds": row["seconds"] and row["seconds"] / settings["steps"],
            }
            for subject, study in studies.items()
            for row in study.rows()
        ]
        rows = [row | quantities(row) for row in rows]
        return {"rows": rows, "summary": {"ratios": training_tables.ratios(kind, rows)}}

    return flags.measure(results, sweeps(), collect, kind.title, training_tables.text)


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
