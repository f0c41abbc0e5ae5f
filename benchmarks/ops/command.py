"""`ops`: measure how time and memory of causal attention grow with the length, on this machine's CPU."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import tables
from benchmarks.analysis import growth_exponent, series
from benchmarks.flags import Counts, Names
from benchmarks.machine import MIB
from benchmarks.ops.candidates import (
    BATCH,
    CANDIDATES,
    HEADS,
    KEYS,
    PASSES,
    TAYLOR,
    VALUES,
    bytes_at,
    family_of,
)
from benchmarks.report import Report
from benchmarks.study import Flags
from benchmarks.tables import MISSING, PASS_TITLES, milliseconds, power, significant

NAMES = tuple(candidate.name for candidate in CANDIDATES)


@dataclass(frozen=True)
class Ops(Flags):
    """Time and memory of causal attention against length, on CPU in float32.

    Taylor attention (ours, chunked, and its quadratic form) and softmax attention, forward and
    forward+backward (gradients of q, k and v), in one interleaved run. Softmax queries and keys have 64
    channels per head, as in a Transformer; Taylor ones have 16. Cases that would not fit in memory or in the
    time budget are skipped, and the table lists them. Ctrl-C keeps the measurements so far.
    """

    lengths: Counts = tuple(512 * 2**i for i in range(7))
    """Tokens per row."""
    candidates: Names = NAMES
    """Rows to measure."""
    fit_from: int = 2048
    """Shortest length, in tokens, that enters the fitted growth exponents."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self.check("lengths", "fit_from", candidates=NAMES)
        chosen = [candidate for candidate in CANDIDATES if candidate.name in self.candidates]
        lengths = sorted(set(self.lengths))
        self.expect_inputs_fit(lengths[-1], bytes_at(lengths[-1]))
        settings = {
            "batch": BATCH,
            "heads": HEADS,
            "key_size": KEYS[TAYLOR],
            "value_size": VALUES,
            "lengths": lengths,
        }
        described = [
            {
                "name": c.name,
                "label": c.label,
                "framework": c.framework,
                "query_key_channels": KEYS[family_of(c.name)],
            }
            for c in chosen
        ]
        results = self.new_report("ops", command, settings, described)
        results["summary"] = {"growth_from_length": self.fit_from}
        study = self.study(results, chosen, PASSES)
        return self.measure(results, [(study, lengths)], study.rows, "Causal attention on CPU", text)


def text(report: Report) -> str:
    """Return the report in Markdown: time, growth and scratch memory by length."""
    settings = report["settings"]
    facts = (
        f"{settings['dtype']}: batch {settings['batch']}, {settings['heads']} heads, Taylor q and k "
        f"{settings['key_size']}, values {settings['value_size']} channels per head; "
        f"{tables.ran_on(report, 'jax', 'torch')}. Medians of up to {settings['samples']} samples, in turns; "
        f"growth: N^p, from {report['summary']['growth_from_length']} tokens up."
    )
    return tables.blocks(
        facts,
        *(_times(report, direction) for direction in PASS_TITLES),
        _by_length(report, ["scratch memory, MiB", "pass"], _memory(report)),
        tables.not_measured(
            report["rows"],
            lambda row: f"{row['candidate']} {PASS_TITLES[row['pass']]} at {row['length']:,} tokens",
        ),
    )


Line = tuple[list[str], dict[int, str]]
"""First cells of a line, and those by length."""


def _by_length(report: Report, head: list[str], lines: Iterator[Line]) -> str:
    """Return a table with a column for each length; empty without lines."""
    lengths = report["settings"]["lengths"]
    body = [[*first, *(found.get(length, MISSING) for length in lengths)] for first, found in lines]
    return tables.table([*head, *(f"{n:,}" for n in lengths)], body, left=2) if body else ""


def _times(report: Report, direction: str) -> str:
    start = report["summary"]["growth_from_length"]

    def lines() -> Iterator[Line]:
        for candidate in report["candidates"]:
            times = series(report["rows"], candidate["name"], direction)
            growth = power(growth_exponent(times, start))
            yield [candidate["label"], growth], {n: milliseconds(x) for n, x in times.items()}

    return _by_length(report, [f"{PASS_TITLES[direction]}, ms", "growth"], lines())


def _memory(report: Report) -> Iterator[Line]:
    for candidate in report["candidates"]:
        for direction, title in PASS_TITLES.items():
            found = series(report["rows"], candidate["name"], direction, "temp_bytes")
            if found:
                yield [candidate["label"], title], {n: significant(x / MIB) for n, x in found.items()}
