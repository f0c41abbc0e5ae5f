"""`startup`: measure how long a new process waits for imports, initial parameters and compiled programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from based_jax.validate import expect, expect_choice
from benchmarks import report, tables
from benchmarks.flags import comma_list, expect_writable
from benchmarks.models.startup_run import STAGES, measure

CASES = {
    "import": ("`based_jax.LanguageModel`, beyond jax's own import", 1.0),
    "init based-360m": ("`jax.jit(model.init)` of `based-360m`", 3.0),
    "init based-tiny": ("`jax.jit(model.init)` of `based-tiny`", 1.0),
    "init attn-tiny": ("`jax.jit(model.init)` of `attn-tiny`", 1.0),
    "step based-tiny": ("first training step of `based-tiny`", 4.0),
}
"""Case -> what it measures, and the target in seconds on two cores."""

COLUMNS = ("case", "time, s", "target", "processors, s", *(f"{stage}, s" for stage in STAGES[1:]))


@dataclass(frozen=True)
class Startup:
    """Time until a new process can work: imports, initial parameters, the first training step.

    Each measurement has a process of its own, without the persistent compilation cache. Processor seconds
    are those of all threads.
    """

    cases: Annotated[tuple[str, ...], comma_list(str, "CASE,CASE,...")] = tuple(CASES)
    """What to measure."""
    samples: int = 3
    """Processes per case; the table shows the median."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self._check()
        settings = {"cases": list(self.cases), "samples": self.samples}
        results = report.new_report("startup", command, settings, [], [])
        report.note_load(results)
        return report.make(results, lambda: self._measure(results), "Startup", text, self.json)

    def _measure(self, results: dict[str, Any]) -> bool:
        for case in self.cases:
            samples = [measure(case) for _ in range(self.samples)]
            stages = {stage: _median(samples, stage) for stage in STAGES if stage in samples[0]}
            walls = [sum(wall for wall, _ in sample.values()) for sample in samples]
            processors = [sum(processor for _, processor in sample.values()) for sample in samples]
            total = {"seconds": float(np.median(walls)), "cpu_seconds": float(np.median(processors))}
            spread = {"min_seconds": min(walls), "max_seconds": max(walls)}
            results["rows"].append({"case": case, **total, **spread, "stages": stages})
            report.say(f"{case}: {total['seconds']:.2f} s")
        return True

    def _check(self) -> None:
        expect(self.samples >= 1, "--samples", self.samples, "at least 1")
        for case in self.cases:
            expect_choice("--cases", case, tuple(CASES))
        expect(len(self.cases) > 0, "--cases", "", "one or more")
        expect_writable("--json", self.json)


def _median(samples: list[dict[str, tuple[float, float]]], stage: str) -> float:
    """Return the median of a stage's wall time."""
    return float(np.median([sample[stage][0] for sample in samples]))


def text(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    facts = f"{tables.ran_on(results)}, medians of {results['settings']['samples']} processes:"
    return tables.blocks(facts, tables.table(COLUMNS, map(_cells, results["rows"])))


def _cells(row: dict[str, Any]) -> list[str]:
    label, target = CASES[row["case"]]
    times = f"{row['seconds']:.2f}", f"{target:g}", f"{row['cpu_seconds']:.2f}"
    stages = row["stages"]
    return [
        label,
        *times,
        *(f"{stages[stage]:.2f}" if stage in stages else tables.MISSING for stage in STAGES[1:]),
    ]
