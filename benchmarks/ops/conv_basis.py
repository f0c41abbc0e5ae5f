"""`conv_basis`: compare attention through convolutions with exact attention, by length."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from based_jax.validate import expect
from benchmarks import report, tables
from benchmarks.analysis import break_even, growth, series
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.ops import conv_basis_figure, conv_basis_tables
from benchmarks.ops.candidates import PASSES
from benchmarks.ops.conv_basis_candidates import (
    EXACT,
    GRADIENTS,
    ConvInputs,
    always_by_fft,
    candidates,
    terms_of,
)
from benchmarks.ops.shapes import SHAPES
from benchmarks.study import Study


@dataclass(frozen=True)
class ConvBasis(StudyFlags):
    """Time of attention through k convolutions, and of exact softmax attention, against length, on CPU.

    Forward, and forward+backward (gradients of q, k and v), float32, batch 1, in one interleaved run; the k
    from which exact attention is faster, by length; and one product with a convolution matrix, dense and by
    FFT (Gu et al., "Conv-Basis", Figure 1a). The starts of the k convolutions are equally spaced: finding
    them is not timed. Ctrl-C keeps the measurements so far.
    """

    terms: Annotated[tuple[int, ...], comma_list(int, "K,K,...")] = (1, 4, 16, 64)
    """Numbers of convolutions k."""
    heads: int = 1
    """Heads."""
    head_dim: int = 64
    """Channels of a head's queries, keys and values."""
    repeats: int = 7
    """Samples per case; the table shows their median and quartile range."""
    markdown: Path | None = None
    """Put tables into this file, between the lines `<!-- conv_basis -->` and `<!-- /conv_basis -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self._check()
        shape = replace(
            SHAPES["cpu"],
            heads=self.heads,
            key_size=self.head_dim,
            value_size=self.head_dim,
            d_model=self.heads * self.head_dim,
        )
        lengths = sorted(set(self.lengths))
        limit = self.memory_bytes(ConvInputs.bytes_at(shape, lengths[-1]))
        settings = {
            "batch": shape.batch,
            "heads": shape.heads,
            "head_dim": shape.value_size,
            "dtype": "float32",
            "terms": sorted(set(self.terms)),
            "lengths": lengths,
            "repeats": self.repeats,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        entries = candidates(settings["terms"])
        described = [{"name": c.name, "label": c.label, "terms": terms_of(c.name)} for c in entries]
        results = report.new_report("conv_basis", command, settings, described, [])
        study = Study(
            lambda length: ConvInputs(shape, length),
            entries,
            PASSES,
            self.repeats,
            self.seconds,
            limit,
            report.say,
        )
        files = report.Files(
            json=self.json, markdown=self.markdown, plot=self.plot, draw=conv_basis_figure.draw
        )
        measure = partial(study.measure, lengths, lambda: self._collect(results, study))
        title, text = "Attention through convolutions on CPU", conv_basis_tables.text
        with always_by_fft():
            return report.make(results, measure, title, text, files)

    def _collect(self, results: dict[str, Any], study: Study) -> None:
        """Update the report and write it, so that a killed run keeps its numbers."""
        rows, names = study.rows(), [candidate.name for candidate in study.candidates]
        exact = {direction: series(rows, EXACT, direction) for direction in PASSES}
        by_terms = {
            (kind, direction): {
                terms: series(rows, name, direction)
                for name in names
                if (terms := terms_of(name)) and name.startswith(kind)
            }
            for kind in GRADIENTS
            for direction in PASSES
        }
        results |= {
            "rows": rows,
            "agreement": study.agreement,
            "summary": {
                **growth(rows, names, PASSES, self.fit_from),
                "break_even": [
                    {
                        "gradient": GRADIENTS[kind],
                        "pass": direction,
                        "length": length,
                        "terms": break_even(times, length, time),
                    }
                    for (kind, direction), times in by_terms.items()
                    if any(times.values())
                    for length, time in exact[direction].items()
                ],
            },
        }
        if self.json:
            report.save(results, self.json)

    def _check(self) -> None:
        self.check(heads=self.heads, head_dim=self.head_dim, repeats=self.repeats)
        expect(len(self.terms) > 0, "--terms", "", "at least one number")
        for terms in self.terms:
            expect(1 <= terms <= min(self.lengths), "--terms", terms, f"1 to {min(self.lengths)}, the tokens")
        if self.markdown:
            tables.insert(self.markdown.read_text(), "conv_basis", None)
