"""`mqar`: measure training examples per second: learning rates one by one, many at once, and in torch."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from based_jax import mixers
from based_jax.models.backbones import ALIASES
from based_jax.validate import expect, expect_choice
from benchmarks import report, tables
from benchmarks.flags import comma_list, expect_writable
from benchmarks.memory import GIB, available_bytes
from benchmarks.models import mqar_tables
from benchmarks.models.mqar_workload import Recipe, Workload
from benchmarks.ops.candidates import Candidate, Program
from benchmarks.ops.torch_ops import missing as missing_torch
from benchmarks.study import Study, relative_error

TRAIN = "train"
"""The only pass: a whole training step."""

TORCH = {
    "torch_labels": ("torch, logits of the labelled positions", False),
    "torch_all": ("torch, logits of all positions, as the authors' code", True),
}
"""Name -> label, and whether all positions have logits."""

TORCH_MIXERS = ("attention", "linear_attention")
"""Mixers that `mqar_torch` has."""

AGREEMENT = 1e-5
"""Allowed difference of losses that JAX and torch compute with the same parameters, relative to the loss."""


@dataclass(frozen=True)
class Mqar(Recipe):
    """Training throughput of the MQAR sweep, on CPU in float32, with AdamW.

    The papers' two-layer models: the sweep's own program with one learning rate, so that models train one
    after another, and with more of them at once; and one model in torch, if that is installed. All candidates
    of a mixer take turns. Compile times are separate: a sweep compiles once for any number of learning rates.
    The losses in JAX and torch without dropout have to agree, or the exit status is 1.
    """

    mixers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ("attention", "based")
    """Mixers of the second layer; only these two have torch rows."""
    vmapped_runs: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (1, 2, 4)
    """Numbers of learning rates trained at once; 1 is one by one."""
    samples: int = 7
    """Timed calls per candidate; the table shows their median and quartile range."""
    seconds: float = 30.0
    """Time budget per candidate, in seconds: one that would exceed it has fewer samples."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put a table into this file, between the lines `<!-- mqar -->` and `<!-- /mqar -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        self._check()
        candidates = self._candidates(self.mixers[0])
        limit = available_bytes() / 2
        settings = {
            "d_model": self.d_model,
            "vocab_size": self.vocab_size,
            "length": self.length,
            "pairs": self.pairs,
            "batch_size": self.batch_size,
            "weight_decay": self.weight_decay,
            "dropout": self.dropout,
            "dtype": "float32",
            "mixers": self.mixers,
            "vmapped_runs": sorted(self.vmapped_runs),
            "steps": self.steps,
            "samples": self.samples,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        described = [{"name": c.name, "label": c.label, "framework": c.framework} for c in candidates]
        results = report.new_report("mqar", command, settings, described, [])
        report.note_load(results)
        files = report.Files(json=self.json, markdown=self.markdown)
        measure = partial(self._measure, results, limit)
        return report.make(results, measure, "Training on MQAR, CPU", mqar_tables.text, files)

    def _measure(self, results: dict[str, Any], limit: float) -> bool:
        """Measure one mixer after another, updating the report after each; return False after Ctrl-C."""
        studies: list[tuple[str, Study]] = []

        def collect() -> None:
            results["rows"] = [self._row(mixer, row) for mixer, study in studies for row in study.rows()]
            results["summary"] = {"ratios": mqar_tables.ratios(results["rows"])}
            self._save(results)

        for mixer in self.mixers:
            workload = Workload(self, mixer)
            study = Study(
                lambda _, workload=workload: workload,
                self._candidates(mixer),
                (TRAIN,),
                self.samples,
                self.seconds,
                limit,
                lambda line, mixer=mixer: report.say(f"{mixer} {line}"),
                compilers=1,
            )
            studies.append((mixer, study))
            if not study.measure([self.length], collect):
                return False
            results["agreement"] += self._compare(workload, mixer, study)
        collect()
        return True

    def _compare(self, workload: Workload, mixer: str, study: Study) -> list[dict[str, Any]]:
        """Compare the losses of the torch rows that ran with JAX's."""
        measured = [row["candidate"] for row in study.rows() if row["seconds"] is not None]
        if not (names := [name for name in TORCH if name in measured]):
            return []
        from benchmarks.models import mqar_torch

        return [
            _agreement(mixer, name, workload.losses, mqar_torch.losses(workload, TORCH[name][1]))
            for name in names
        ]

    def _row(self, mixer: str, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of training to a case of the study: a call is `steps` steps."""
        models = 1 if row["candidate"] in TORCH else int(row["candidate"].removeprefix("jax_"))
        step = None if row["seconds"] is None else row["seconds"] / self.steps
        each = None if step is None else self.batch_size / step
        return {
            "mixer": mixer,
            "models": models,
            **row,
            "step_seconds": step,
            "examples_per_second": None if each is None else models * each,
            "examples_per_second_per_model": each,
        }

    def _candidates(self, mixer: str) -> list[Candidate]:
        """List JAX with each number of vmapped runs, then torch."""
        rows = []
        for count in sorted(self.vmapped_runs):
            label = f"based_jax, {count} learning rates at once" if count > 1 else "based_jax, one by one"

            def prepare(workload: Workload, _: str, count: int = count) -> Program:
                return workload.program(count)

            rows.append(Candidate(f"jax_{count}", label, "jax", None, prepare))
        reason = missing_torch()
        if ALIASES.get(mixer, mixer) not in TORCH_MIXERS:
            reason = f"there is no {mixer} in torch here"
        for name, (label, everywhere) in TORCH.items():

            def prepare_torch(workload: Workload, _: str, everywhere: bool = everywhere) -> Program:
                from benchmarks.models import mqar_torch

                return mqar_torch.program(workload, everywhere)

            lacks = {TRAIN: reason} if reason else {}
            rows.append(Candidate(name, label, "torch", None, prepare_torch, lacks))
        return rows

    def _save(self, results: dict[str, Any]) -> None:
        if self.json:
            report.save(results, self.json)

    def _check(self) -> None:
        """Check every flag before anything is compiled."""
        counts = [(name, getattr(self, name)) for name in ("d_model", "batch_size", "steps", "samples")]
        for name, value in [*counts, *(("vmapped_runs", count) for count in self.vmapped_runs)]:
            expect(value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        expect(0 <= self.dropout < 1, "--dropout", self.dropout, "from 0 to below 1")
        expect(0 <= self.weight_decay < math.inf, "--weight-decay", self.weight_decay, "at least 0")
        expect(0 < self.seconds < math.inf, "--seconds", self.seconds, "more than 0 seconds")
        for name in self.mixers:
            expect_choice("--mixers", name, (*ALIASES, *mixers.names()))
        for flag, values in (("--mixers", self.mixers), ("--vmapped-runs", self.vmapped_runs)):
            shown = ",".join(map(str, values))
            expect(0 < len(set(values)) == len(values), flag, shown, "one or more, each once")
        _ = self.task
        for name in self.mixers:
            self.architecture(name)
        expect_writable("--json", self.json)
        if self.markdown:
            tables.insert(self.markdown.read_text(), "mqar", None)
        devices = [device.platform for device in jax.devices()]
        expect(devices == ["cpu"], "JAX devices", ",".join(devices), "one CPU, as with JAX_PLATFORMS=cpu")


def _agreement(mixer: str, candidate: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Compare the losses of the first steps from the same parameters, in JAX and in a candidate."""
    error = relative_error([np.array(ours)], [np.array(theirs)])
    return {
        "mixer": mixer,
        "candidate": candidate,
        "other": "jax_1",
        "losses": theirs,
        "other_losses": ours,
        "relative_error": error,
        "agrees": error is not None and error <= AGREEMENT,
    }
