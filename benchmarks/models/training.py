"""The study that `train` and `mqar` make: training steps in JAX and in torch, from the same parameters."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from based_jax.validate import expect, expect_choice
from benchmarks import report
from benchmarks.flags import expect_writable
from benchmarks.memory import GIB, available_bytes
from benchmarks.models import training_tables
from benchmarks.ops.candidates import Candidate, Program
from benchmarks.ops.torch_ops import missing as missing_torch
from benchmarks.study import Study, relative_error

STEP = "train"
"""The only pass: a whole training step."""

AGREEMENT = 1e-5
"""Allowed difference of losses that JAX and torch compute from the same parameters, relative to the loss."""

Ways = Mapping[str, tuple[str, Any]]
"""Name of a candidate -> its label, and the argument of its `program`."""


@dataclass(frozen=True)
class Flags:
    """Flags of both benchmarks."""

    samples: int = 5
    """Timed calls per candidate; the table shows their median and quartile range."""
    seconds: float = 30.0
    """Time budget per candidate, in seconds: one that would exceed it has fewer samples."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""

    def check(
        self, counts: Mapping[str, int], lists: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]
    ) -> None:
        """Check these flags, counts, and lists of values (with the known ones), before anything is compiled.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        for flag, value in {**counts, "samples": self.samples}.items():
            expect(value >= 1, f"--{flag.replace('_', '-')}", value, "at least 1")
        expect(0 < self.seconds < math.inf, "--seconds", self.seconds, "more than 0 seconds")
        for flag, (values, known) in lists.items():
            for value in values:
                expect_choice(flag, value, tuple(known or values))
            shown = ",".join(map(str, values))
            expect(0 < len(set(values)) == len(values), flag, shown, "one or more, each once")
        expect_writable("--json", self.json)
        devices = [device.platform for device in jax.devices()]
        expect(devices == ["cpu"], "JAX devices", ",".join(devices), "one CPU, as with JAX_PLATFORMS=cpu")


@dataclass(frozen=True)
class Plan:
    """What one benchmark trains: all candidates of a subject (a model, or a mixer in one) take turns."""

    kind: training_tables.Kind
    settings: dict[str, Any]
    subjects: Sequence[str]
    length: int
    workload: Callable[[str], Any]
    """subject -> the training of its candidates: `program(way)`, and the first `losses`"""
    ways: Ways
    """candidates in JAX"""
    row: Callable[[dict[str, Any]], dict[str, Any]]
    """adds the quantities of training to a case of the study"""
    torch: Mapping[str, Ways] = field(default_factory=dict)
    """subject -> candidates in torch, see `train_torch`"""

    def candidates(self, subject: str) -> list[Candidate]:
        """List JAX in each way, then torch in each form."""

        def in_jax(way: Any, workload: Any, _: str) -> Program:
            return workload.program(way)

        def in_torch(form: Any, workload: Any, _: str) -> Program:
            from benchmarks.models import train_torch

            return train_torch.program(workload, form)

        reason = missing_torch()
        lacks = {STEP: reason} if reason else {}
        ours, theirs = self.ways.items(), self.torch.get(subject, {}).items()
        return [
            *(Candidate(name, label, "jax", None, partial(in_jax, way)) for name, (label, way) in ours),
            *(
                Candidate(name, label, "torch", None, partial(in_torch, form), lacks)
                for name, (label, form) in theirs
            ),
        ]


def run(plan: Plan, flags: Flags, command: str) -> int:
    """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C."""
    limit = available_bytes() / 2
    settings = plan.settings | {
        "dtype": "float32",
        "samples": flags.samples,
        "seconds_budget": flags.seconds,
        "memory_limit_gib": round(limit / GIB, 3),
    }
    every = {c.name: c for subject in plan.subjects for c in plan.candidates(subject)}.values()
    described = [{"name": c.name, "label": c.label, "framework": c.framework} for c in every]
    results = report.new_report(plan.kind.benchmark, command, settings, described, [])
    report.note_load(results)
    measured = partial(measure, plan, flags, results, limit)
    return report.make(results, measured, plan.kind.title, training_tables.text, flags.json)


def measure(plan: Plan, flags: Flags, results: report.Report, limit: float) -> bool:
    """Measure one subject after another, updating the report after each; return False after Ctrl-C."""
    studies: list[tuple[str, Study]] = []

    def collect() -> None:
        results["rows"] = [
            {plan.kind.subject: subject} | plan.row(row) for subject, study in studies for row in study.rows()
        ]
        results["summary"] = {"ratios": training_tables.ratios(plan.kind, results["rows"])}
        if flags.json:
            report.save(results, flags.json)

    for subject in plan.subjects:
        workload = plan.workload(subject)
        study = Study(
            lambda _, workload=workload: workload,
            plan.candidates(subject),
            (STEP,),
            flags.samples,
            flags.seconds,
            limit,
            lambda line, subject=subject: report.say(f"{subject} {line}"),
            compilers=1,
        )
        studies.append((subject, study))
        if not study.measure([plan.length], collect):
            return False
        ran = {row["candidate"] for row in study.rows() if row["seconds"] is not None}
        for name, (_, form) in plan.torch.get(subject, {}).items():
            if name in ran:
                from benchmarks.models import train_torch

                theirs = train_torch.losses(workload, form)
                found = agreement(name, workload.losses, theirs)
                results["agreement"].append({plan.kind.subject: subject, "other": plan.kind.first} | found)
    collect()
    return True


def agreement(candidate: str, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Compare the losses of the first steps from the same parameters, in JAX and in a candidate."""
    error = relative_error([np.array(ours)], [np.array(theirs)])
    return {
        "candidate": candidate,
        "losses": theirs,
        "other_losses": ours,
        "relative_error": error,
        "agrees": error is not None and error <= AGREEMENT,
    }
