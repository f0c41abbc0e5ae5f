"""Draw the README's figure, recall against state and time against length, from kept results; see `adopt`."""

import json
from pathlib import Path

from based_jax import plot
from based_jax.experiments.mqar_tradeoff import STUDY, published_points
from based_jax.experiments.panels import STATE_AXIS, Panel, lines, state_bytes
from based_jax.experiments.results import best, read
from benchmarks.analysis import series
from benchmarks.figures import panel
from benchmarks.gpu.measured import RESULTS, devices, kept
from benchmarks.ops.candidates import FORWARD_BACKWARD

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


STUDIED = "results/mqar/tradeoff"
"""Folder of a checkout with the results of `based-jax experiments mqar-tradeoff`."""


def draw(tree: Path, path: Path) -> None:
    """Draw a checkout's results into `path`: the best models of a study, timings of a CPU, a panel per GPU.

    The study's families are those of Based, Figure 2.
    """
    scale = json.loads((tree / STUDIED / "study.json").read_text())["scale"]
    shown = published_points()
    study = [row for row in best(read(tree / STUDIED / "results.jsonl")) if row["family"] in shown]
    report = json.loads((tree / RESULTS / "cpu/ops.json").read_text())
    gpus = [device for device in devices(kept({}, tree)) if device.rows("backward")]
    settings, machine = report["settings"], report["machine"]
    times = {family: series(report["rows"], name, FORWARD_BACKWARD) for name, family in OPS.items()}
    panels = [
        Panel(
            "recall against state: models trained on MQAR",
            lines=lines(study, state_bytes, frontier=True),
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
