"""`startup`: measure how long a new process waits for imports, initial parameters and compiled programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from based_jax.validate import expect, expect_choice
from benchmarks.beside_torch import make_report
from benchmarks.flags import comma_list, expect_writable
from benchmarks.models import startup_tables as startup_tables
from benchmarks.models.startup_run import STAGES, measure

CASES = (
    "import",
    "init based-360m",
    "init based-tiny",
    "init attn-tiny",
    "step based-tiny",
    "hyper_feature_attention",
)
"""Import based_jax after jax; call `jax.jit(model.init)` of a preset; take its first training step; compile
the training step of three layers of HyperFeatureAttention."""


@dataclass(frozen=True)
class Startup:
    """Time until a new process can work: imports, initial parameters, the first training step.

    Each measurement has a process of its own, without the persistent compilation cache. Processor seconds
    are those of all threads.
    """

    cases: Annotated[tuple[str, ...], comma_list(str, "CASE,CASE,...")] = CASES
    """What to measure."""
    samples: int = 3
    """Processes per case; the table shows the median."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put the table into this file, between the lines `<!-- startup -->` and `<!-- /startup -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value.
        """
        self._check()
        settings = {"cases": list(self.cases), "samples": self.samples}
        files = {"json": self.json, "markdown": self.markdown}
        return make_report("startup", command, settings, [], self._measured, startup_tables, **files)

    def _measured(self, results: dict[str, Any], progress: Console) -> bool:
        try:
            for case in self.cases:
                samples = [measure(case) for _ in range(self.samples)]
                stages = {stage: _median(samples, stage) for stage in STAGES if stage in samples[0]}
                walls = [sum(wall for wall, _ in sample.values()) for sample in samples]
                processors = [sum(processor for _, processor in sample.values()) for sample in samples]
                total = {"seconds": float(np.median(walls)), "cpu_seconds": float(np.median(processors))}
                spread = {"min_seconds": min(walls), "max_seconds": max(walls)}
                results["rows"].append({"case": case, **total, **spread, "stages": stages})
                progress.print(f"{case}: {total['seconds']:.2f} s")
        except KeyboardInterrupt:
            return False
        return True

    def _check(self) -> None:
        expect(self.samples >= 1, "--samples", self.samples, "at least 1")
        for case in self.cases:
            expect_choice("--cases", case, CASES)
        expect(len(self.cases) > 0, "--cases", "", "one or more")
        expect_writable("--json", self.json)
        if self.markdown:
            startup_tables.insert(self.markdown.read_text(), None)


def _median(samples: list[dict[str, tuple[float, float]]], stage: str) -> float:
    """Return the median of a stage's wall time."""
    return float(np.median([sample[stage][0] for sample in samples]))
