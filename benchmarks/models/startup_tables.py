"""Format the `startup` report as a table, on a terminal and in Markdown."""

from typing import Any

from benchmarks import pages
from benchmarks.models.startup_run import STAGES
from benchmarks.pages import MISSING
from benchmarks.tables import show_rows

_COLUMNS = ("case", "time, s", "target", "processors, s", *(f"{stage}, s" for stage in STAGES[1:]))

LABELS = {
    "import": "`import based_jax`, beyond jax's own",
    "hyper_feature_attention": "compile a training step of three layers of HyperFeatureAttention",
}
"""Case -> what it measures; the others name their preset."""

TARGETS = {
    "import": 1.0,
    "init based-360m": 3.0,
    "init based-tiny": 1.0,
    "init attn-tiny": 1.0,
    "step based-tiny": 4.0,
    "hyper_feature_attention": 10.0,
}
"""Case -> seconds on two cores."""


def show(report: dict[str, Any]) -> None:
    """Print a whole report."""
    show_rows("Waiting", _facts(report), [(_COLUMNS, map(_cells, report["rows"]))], report["notes"])


def insert(page: str, report: dict[str, Any] | None) -> str:
    """Insert the table of a report; with None only check for its comments (ValueError: there are none)."""
    if report is None:
        return pages.insert(page, "startup", None)
    table = pages.table(_COLUMNS, map(_cells, report["rows"]))
    facts = f"{_facts(report)}, medians of {report['settings']['samples']} processes:"
    return pages.insert(page, "startup", "\n\n".join(["", facts, table, *report["notes"], ""]))


def _cells(row: dict[str, Any]) -> list[str]:
    case, stages = row["case"], row["stages"]
    kind, _, preset = case.partition(" ")
    calls = {"init": "`jax.jit(model.init)`", "step": "first training step"}
    label = LABELS.get(case) or f"{calls[kind]} of `{preset}`"
    return [
        label,
        f"{row['seconds']:.2f}",
        f"{TARGETS[case]:g}",
        f"{row['cpu_seconds']:.2f}",
        *(f"{stages[stage]:.2f}" if stage in stages else MISSING for stage in STAGES[1:]),
    ]


def _facts(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date'][:10]}"
