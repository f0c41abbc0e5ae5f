"""`overview`: draw the README's figure, recall against state and time against length, from kept results."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax import plot
from based_jax.experiments.mqar_tradeoff import STUDY, of_figure_2
from based_jax.experiments.panels import STATE_AXIS, Panel, lines, state_bytes
from based_jax.experiments.results import Results, best
from benchmarks.analysis import series
from benchmarks.figures import panel, read
from benchmarks.flags import expect_figure
from benchmarks.gpu.measured import Device, devices, kept
from benchmarks.ops.candidates import FORWARD_BACKWARD
from pallas_kernels.checks import expect

OPS = {
    "taylor_xla": "Based",
    "dot_product_attention": "Attention",
    "torch_sdpa": "Attention (torch's fused)",
}
"""Candidates of `ops` in the figure -> families, so that all panels have one legend."""

ON_GPU = {
    "pallas": "Based",
    "mosaic": "Based",
    "xla": "Based (without kernels)",
    "softmax_cudnn": "Attention (cuDNN)",
}
"""Candidates of `gpu` in the figure -> families; of two for one length the later one."""


PANEL_BATCH = 4
"""Rows of the GPUs' panel: Based, Figure 5, has its lengths at this batch."""


@dataclass(frozen=True)
class Overview:
    """Draw recall against the size of the state and time against length, from results; measure nothing."""

    study: Path = Path("results/mqar/tradeoff")
    """Directory of `based-jax experiments mqar-tradeoff`."""
    json: Path = Path("benchmarks/results/cpu/ops.json")
    """A report of `python -m benchmarks ops`."""
    results: Path = Path()
    """A checkout: the reports of GPUs in its benchmarks/results are drawn, one panel per GPU."""
    plot: Path = Path("docs/figures/overview.png")
    """File of the figure (.png, .svg or .pdf; needs matplotlib)."""

    def run(self, command: str) -> int:
        """Draw; return 0. Raises ValueError for files that cannot be read or written."""
        expect_figure("--plot", self.plot)
        about = self.study / "study.json"
        expect(about.is_file(), "--study", str(self.study), "a directory with study.json")
        study = json.loads(about.read_text(encoding="utf-8"))
        expect(study["study"] == STUDY.name, "--study", str(self.study), f"a directory of {STUDY.name}")
        rows = best(Results(self.study / "results.jsonl").rows)
        gpus = devices(kept({}, self.results))
        draw(study["scale"], rows, read(self.json, ("ops",)), gpus, self.plot)
        print(self.plot)
        return 0


def draw(
    scale: str, study: list[dict[str, Any]], report: dict[str, Any], gpus: Sequence[Device], path: Path
) -> None:
    """Draw the panels into `path`: the best rows of the study at a scale, and timings of a CPU and of GPUs.

    The study's families are those of the paper's figure.
    """
    settings, machine = report["settings"], report["machine"]
    times = {family: series(report["rows"], name, FORWARD_BACKWARD) for name, family in OPS.items()}
    panels = [
        Panel(
            "recall against state: models trained on MQAR",
            lines=lines(of_figure_2(study), state_bytes, frontier=True),
            **STATE_AXIS,
        ),
        panel("time against length, CPU: forward + backward", times, "time per call", plot.duration),
    ]
    for device in gpus:
        rows = [row for row in device.rows("backward").values() if row["batch"] == PANEL_BATCH]
        found: dict[str, dict[int, float]] = {}
        for name, family in ON_GPU.items():
            times = {row["length"]: row["seconds"] for row in rows if row["what"] == name}
            found.setdefault(family, {}).update(sorted(times.items()))
        if any(found.values()):
            panels.append(panel("the same on a GPU", found, "time per call", plot.duration))
    on_gpus = (
        f"one op on {device.source('gpu')}, bfloat16, {PANEL_BATCH} rows of 16 heads" for device in gpus
    )
    limits = f"{settings['memory_limit_gib']:.2g} GiB or {settings['seconds_budget']:g} s"
    facts = (
        f"Left, the families of Based, Figure 2, trained here. {STUDY.about[scale]}; lines join what beats "
        "every smaller state. Middle: Based's Taylor attention beside softmax attention "
        f"(jax.nn.dot_product_attention and torch's), {machine['cpu']}, {machine['cores']} cores, "
        f"{settings['dtype']}; a line ends at the limit of {limits}. Right: {'; '.join(on_gpus)}."
    )
    plot.draw("Recall against state, and time against length", facts, panels, path)
