"""`ops`: measure how time and memory of causal attention grow with the length, on this machine's CPU."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

from based_jax.validate import expect_choice
from benchmarks import report
from benchmarks.analysis import summarize
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.ops import tables, torch_ops
from benchmarks.ops.candidates import JAX_CANDIDATES, PASSES, Candidate, Inputs
from benchmarks.ops.shapes import SHAPES
from benchmarks.study import Study

OURS = "taylor_xla"
"""The candidate that the summary compares with the others."""


@dataclass(frozen=True)
class Ops(StudyFlags):
    """Time and memory of causal attention against length, on CPU in float32.

    Taylor attention (ours, chunked, and its quadratic form) and softmax attention, forward and
    forward+backward (gradients of q, k and v), in one interleaved run. Softmax queries and keys have V
    channels per head, as in a Transformer; Taylor ones have K. Cases that would not fit in memory or in the
    time budget are skipped, and the table lists them. Ctrl-C keeps the measurements so far.
    """

    shape: str = "cpu"
    """Sizes of the layer by name: cpu (B=1 H=4 K=16 V=64), 360m (H=16), 1.3b (H=16 V=112), mqar (H=1)."""
    candidates: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ()
    """Rows to measure: taylor_xla, taylor_reference, dot_product_attention, softmax_xla, softmax_tiled,
    softmax_prefill, torch_sdpa; by default all that can run here."""
    repeats: int = 7
    """Samples per case; the table shows their median and quartile range."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        expect_choice("--shape", self.shape, tuple(SHAPES))
        self.check(repeats=self.repeats)
        shape = SHAPES[self.shape]
        candidates, notes = self._candidates()
        lengths = sorted(set(self.lengths))
        limit = self.memory_bytes(Inputs.bytes_at(shape, lengths[-1]))
        settings = {
            "shape": self.shape,
            **asdict(shape),
            "dtype": "float32",
            "lengths": lengths,
            "repeats": self.repeats,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        rows = [
            {
                "name": c.name,
                "label": c.label,
                "framework": c.framework,
                "family": c.family,
                "query_key_channels": c.key_size(shape),
                "value_channels": shape.value_size,
            }
            for c in candidates
        ]
        results = report.new_report("ops", command, settings, rows, notes)
        inputs = partial(Inputs, shape)
        study = Study(inputs, candidates, PASSES, self.repeats, self.seconds, limit, report.say)
        measure = partial(study.measure, lengths, lambda: self._collect(results, study))
        return report.make(results, measure, "Causal attention on CPU", tables.text, self.json)

    def _collect(self, results: dict[str, Any], study: Study) -> None:
        """Update the report and write it, so that a killed run keeps its numbers."""
        names = [candidate.name for candidate in study.candidates]
        rows = study.rows()
        results |= {
            "rows": rows,
            "agreement": study.agreement,
            "summary": summarize(rows, names, PASSES, OURS, self.fit_from),
        }
        if self.json:
            report.save(results, self.json)

    def _candidates(self) -> tuple[list[Candidate], list[str]]:
        """Return the requested candidates, in the table's order, and notes about the others."""
        known = (*(candidate.name for candidate in JAX_CANDIDATES), torch_ops.NAME)
        for name in self.candidates:
            expect_choice("--candidates", name, known)
        wanted = self.candidates or known
        chosen = [candidate for candidate in JAX_CANDIDATES if candidate.name in wanted]
        if torch_ops.NAME not in wanted:
            return chosen, []
        reason = torch_ops.missing()
        if reason and self.candidates:
            raise ValueError(f"--candidates {','.join(self.candidates)}: {reason}")
        if reason:
            return chosen, [f"{torch_ops.NAME} is left out: {reason}."]
        return [*chosen, torch_ops.candidate()], []
