"""`train`: measure tokens per second in training a small Based and a Transformer++, in JAX and in torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from based_jax.models import param_count
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.validate import expect, expect_choice
from benchmarks import report, tables
from benchmarks.flags import comma_list, expect_writable
from benchmarks.memory import GIB, available_bytes
from benchmarks.models import train_tables
from benchmarks.models.train_workload import (
    TORCH,
    VARIANTS,
    WINDOW,
    Sizes,
    TorchForm,
    Variant,
    Workload,
    torch_forms,
)
from benchmarks.ops.candidates import Candidate, Program
from benchmarks.ops.torch_ops import missing as missing_torch
from benchmarks.study import Study, relative_error

STEP = "train"
"""The only pass: a whole training step."""

MODELS = ("based", "transformer")

AGREEMENT = 1e-5
"""Allowed difference of losses that JAX and torch compute from the same parameters, relative to the loss."""


@dataclass(frozen=True)
class Train(Sizes):
    """Training throughput and memory of small language models, on CPU in float32.

    Whole steps of `based-jax train lm` (loss, gradients, clipping, AdamW) on random tokens, with its ways to
    save memory, and the same models in torch, if that is installed. All candidates of a model take turns.
    JAX and torch have to compute the same losses from the same parameters, or the exit status is 1.
    """

    models: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME")] = MODELS
    """based, transformer, or both."""
    variants: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = tuple(VARIANTS)
    """Ways to train in JAX."""
    torch_forms: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = tuple(TORCH)
    """Ways to train in torch; those in chunks are for Based, from 1,024 tokens up."""
    samples: int = 5
    """Timed calls per candidate; the table shows their median and quartile range."""
    seconds: float = 30.0
    """Time budget per candidate, in seconds: one that would exceed it has fewer samples."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put a table into this file, between the lines `<!-- train -->` and `<!-- /train -->`; from 1,024 tokens
    up between `<!-- train_long -->` and `<!-- /train_long -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        keep_freed_memory()
        self._check()
        limit = available_bytes() / 2
        settings = {
            "d_model": self.d_model,
            "vocab_size": self.vocab_size,
            "length": self.length,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "dtype": "float32",
            "models": {
                name: {
                    "schedule": self.architecture(name).schedule,
                    "parameters": param_count(self.architecture(name)),
                }
                for name in self.models
            },
            "samples": self.samples,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        candidates = {c.name: c for model in self.models for c in self._candidates(model)}.values()
        described = [{"name": c.name, "label": c.label, "framework": c.framework} for c in candidates]
        results = report.new_report("train", command, settings, described, [])
        report.note_load(results)
        files = report.Files(json=self.json, markdown=self.markdown, marker=train_tables.marker(self.length))
        measure = partial(self._measure, results, limit)
        return report.make(results, measure, "Training, CPU", train_tables.text, files)

    def _measure(self, results: dict[str, Any], limit: float) -> bool:
        """Measure one model after another, updating the report after each; return False after Ctrl-C."""
        studies: list[tuple[str, Study]] = []

        def collect() -> None:
            results["rows"] = [self._row(model, row) for model, study in studies for row in study.rows()]
            results["summary"] = {"ratios": train_tables.ratios(results["rows"])}
            self._save(results)

        for model in self.models:
            workload = Workload(self, model)
            study = Study(
                lambda _, workload=workload: workload,
                self._candidates(model),
                (STEP,),
                self.samples,
                self.seconds,
                limit,
                lambda line, model=model: report.say(f"{model} {line}"),
                compilers=1,
            )
            studies.append((model, study))
            if not study.measure([self.length], collect):
                return False
            measured = {row["candidate"] for row in study.rows() if row["samples"]}
            forms = self._torch_forms(model).items()
            results["agreement"] += _agreement(
                model, workload, {name: form for name, form in forms if name in measured}
            )
        collect()
        return True

    def _row(self, model: str, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of training to a case of the study: a call is `steps` steps."""
        step = None if row["seconds"] is None else row["seconds"] / self.steps
        tokens = self.batch_size * self.length
        speed = None if step is None else tokens / step
        return {"model": model, **row, "step_seconds": step, "tokens_per_second": speed}

    def _candidates(self, model: str) -> list[Candidate]:
        """List JAX in each variant, then torch in each form."""
        rows = []
        for name in self.variants:

            def prepare(workload: Workload, _: str, variant: Variant = VARIANTS[name]) -> Program:
                return workload.program(variant)

            rows.append(Candidate(name, VARIANTS[name].label, "jax", None, prepare))
        reason = missing_torch()
        for name, form in self._torch_forms(model).items():

            def prepare_torch(workload: Workload, _: str, form: TorchForm = form) -> Program:
                from benchmarks.models import train_torch

                return train_torch.program(workload, form)

            rows.append(
                Candidate(name, form.label, "torch", None, prepare_torch, {STEP: reason} if reason else {})
            )
        return rows

    def _torch_forms(self, model: str) -> dict[str, TorchForm]:
        """Return the forms of torch that a model has, as far as they were asked for."""
        forms = torch_forms(model, self.length).items()
        return {name: form for name, form in forms if name in self.torch_forms}

    def _save(self, results: dict[str, Any]) -> None:
        if self.json:
            report.save(results, self.json)

    def _check(self) -> None:
        """Check every flag before anything is compiled."""
        for name in ("d_model", "vocab_size", "length", "batch_size", "steps", "samples"):
            value = getattr(self, name)
            expect(value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        expect(
            self.length % WINDOW == 0, "--length", self.length, f"a multiple of the window of {WINDOW} keys"
        )
        expect(self.d_model % 64 == 0, "--d-model", self.d_model, "a multiple of the heads' 64 channels")
        expect(0 < self.seconds < math.inf, "--seconds", self.seconds, "more than 0 seconds")
        for flag, values, known in (
            ("--models", self.models, MODELS),
            ("--variants", self.variants, tuple(VARIANTS)),
            ("--torch-forms", self.torch_forms, tuple(TORCH)),
        ):
            for value in values:
                expect_choice(flag, value, known)
            shown = ",".join(values)
            expect(0 < len(set(values)) == len(values), flag, shown, "one or more, each once")
        expect_writable("--json", self.json)
        if self.markdown:
            tables.insert(self.markdown.read_text(), train_tables.marker(self.length), None)
        devices = [device.platform for device in jax.devices()]
        expect(devices == ["cpu"], "JAX devices", ",".join(devices), "one CPU, as with JAX_PLATFORMS=cpu")


def _agreement(model: str, workload: Workload, forms: Mapping[str, TorchForm]) -> list[dict[str, Any]]:
    """Compare the first losses from the same parameters, in JAX and in these forms of torch."""
    if not forms:
        return []
    from benchmarks.models import train_torch

    found = []
    for name, form in forms.items():
        ours, theirs = workload.losses, train_torch.losses(workload, form)
        error = relative_error([np.array(ours)], [np.array(theirs)])
        found.append(
            {
                "model": model,
                "candidate": name,
                "other": "jax",
                "losses": theirs,
                "other_losses": ours,
                "relative_error": error,
                "agrees": error is not None and error <= AGREEMENT,
            }
        )
    return found
