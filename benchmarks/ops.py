"""`ops`: how time and memory of causal attention grow with the length, on this machine's CPU, in one run."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
from rich.console import Console

from based_jax.validate import expect, expect_choice
from benchmarks import figure, report, tables
from benchmarks.analysis import summarize
from benchmarks.contestants import JAX_CONTESTANTS, PASSES, Contestant, Inputs
from benchmarks.flags import comma_list, expect_writable
from benchmarks.memory import GIB, available_bytes
from benchmarks.shapes import LENGTHS, SHAPES, OpShape
from benchmarks.study import Study
from benchmarks.torch_ops import NAMES as TORCH_NAMES
from benchmarks.torch_ops import missing as missing_torch
from benchmarks.torch_ops import torch_contestants

OURS = "taylor_xla"
"""The contestant that the summary compares with the others."""


@dataclass(frozen=True)
class Ops:
    """Time and memory of causal attention against length, on CPU in float32.

    Taylor attention (ours, chunked, and its quadratic form) beside softmax attention, forward and
    forward+backward (gradients of q, k and v), in one interleaved run. Softmax queries and keys have V
    channels per head, as in a Transformer; Taylor ones have K. What would not fit in memory or in the time
    budget is skipped, and the table says so. Ctrl-C keeps what was measured.
    """

    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    plot: Path | None = None
    """Draw time against length here (.png, .svg or .pdf; needs matplotlib)."""
    shape: str = "cpu"
    """Sizes of the layer by name: cpu (B=1 H=4 K=16 V=64), 360m (H=16), 1.3b (H=16 V=112), mqar (H=1)."""
    batch: int | None = None
    """Rows, instead of the shape's."""
    heads: int | None = None
    """Heads, instead of the shape's."""
    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = LENGTHS
    """Tokens per row."""
    contestants: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ()
    """Rows to measure: taylor_xla, taylor_reference, dot_product_attention, softmax_xla, torch_taylor,
    torch_sdpa; all that can run here if none is named."""
    repeats: int = 7
    """Samples per case; the table shows their median and quartile range."""
    seconds: float = 60.0
    """Time budget per case, in seconds: fewer samples, or a skipped case, where it would be exceeded."""
    memory_limit: float | None = None
    """Skip cases that need more than this, in GiB; half of the available RAM by default."""
    fit_from: int = 2048
    """Shortest length, in tokens, that enters the fitted growth exponents."""

    def run(self, command: str) -> int:
        """Measure, show, write; 0, or 130 after Ctrl-C. Raises ValueError for a senseless flag."""
        shape = self._check()
        contestants, notes = self._contestants()
        limit = available_bytes() / 2 if self.memory_limit is None else self.memory_limit * GIB
        lengths = sorted(set(self.lengths))
        inputs = Inputs.bytes_at(shape, lengths[-1]) / GIB
        expect(
            inputs < limit / GIB, "--lengths", lengths[-1],
            f"a length whose inputs alone ({inputs:.1f} GiB) fit into the memory limit",
        )  # fmt: skip
        settings = {
            "shape": self.shape, "batch": shape.batch, "heads": shape.heads, "key_size": shape.key_size,
            "value_size": shape.value_size, "dtype": "float32", "lengths": lengths, "repeats": self.repeats,
            "seconds_budget": self.seconds, "memory_limit_gib": round(limit / GIB, 3),
        }  # fmt: skip
        rows = [
            {"name": c.name, "label": c.label, "framework": c.framework, "family": c.family,
             "query_key_channels": c.key_size(shape), "value_channels": shape.value_size}
            for c in contestants
        ]  # fmt: skip
        results = report.new_report("ops", command, settings, rows, notes)
        progress = Console(stderr=True, highlight=False)
        study = Study(shape, contestants, self.repeats, self.seconds, limit, progress.print)
        try:
            with jax.default_device(jax.devices("cpu")[0]):
                for length in lengths:
                    study.measure_length(length)
                    self._collect(results, study)
            results["complete"] = True
        except KeyboardInterrupt:
            notes.append("Interrupted by Ctrl-C: this is what was measured until then.")
        self._collect(results, study)
        tables.show(results)
        if self.plot:
            figure.draw(results, self.plot)
        for path in filter(None, (self.json, self.plot)):
            progress.print(f"wrote {path}")
        return 0 if results["complete"] else 130

    def _collect(self, results: dict[str, Any], study: Study) -> None:
        """Bring the report up to date and write it: even a killed run leaves its numbers behind."""
        names = [contestant.name for contestant in study.contestants]
        rows = study.rows()
        results |= {
            "rows": rows,
            "agreement": study.agreement,
            "summary": summarize(rows, names, PASSES, OURS, self.fit_from),
        }
        if self.json:
            report.save(results, self.json)

    def _check(self) -> OpShape:
        """The sizes, once every flag makes sense."""
        expect_choice("--shape", self.shape, tuple(SHAPES))
        expect(len(self.lengths) > 0, "--lengths", "", "at least one length")
        for flag, value in [("--lengths", n) for n in self.lengths] + [
            ("--batch", self.batch), ("--heads", self.heads), ("--repeats", self.repeats),
            ("--fit-from", self.fit_from),
        ]:  # fmt: skip
            expect(value is None or value >= 1, flag, value, "at least 1")
        for flag, value, unit in (
            ("--seconds", self.seconds, "seconds"), ("--memory-limit", self.memory_limit, "GiB"),
        ):  # fmt: skip
            expect(value is None or 0 < value < math.inf, flag, value, f"more than 0 {unit}")
        expect_writable("--json", self.json)
        expect_writable("--plot", self.plot, figure.SUFFIXES)
        if self.plot and (reason := figure.missing()):
            raise ValueError(f"--plot {reason}")
        given = {name: value for name in ("batch", "heads") if (value := getattr(self, name)) is not None}
        return replace(SHAPES[self.shape], **given)

    def _contestants(self) -> tuple[list[Contestant], list[str]]:
        """Those asked for, in the table's order, and what there is to say about the others."""
        known = (*(contestant.name for contestant in JAX_CONTESTANTS), *TORCH_NAMES)
        for name in self.contestants:
            expect_choice("--contestants", name, known)
        wanted = self.contestants or known
        chosen = [contestant for contestant in JAX_CONTESTANTS if contestant.name in wanted]
        if not set(wanted) & set(TORCH_NAMES):
            return chosen, []
        reason = missing_torch()
        if reason and self.contestants:
            raise ValueError(f"--contestants {','.join(self.contestants)}: {reason}")
        if reason:
            return chosen, [f"Torch rows ({', '.join(TORCH_NAMES)}) are left out: {reason}."]
        return [*chosen, *(contestant for contestant in torch_contestants() if contestant.name in wanted)], []
