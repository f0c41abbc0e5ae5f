"""Plot the slices: loss against a bigram's frequency (Zoology, Figure 1), and distances of repeats."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from based_jax import plot
from based_jax.files import read_json
from based_jax.plot import Line, Panel
from based_jax.validate import expect

_MAX_BYTES = 64 << 20  # size limit of a results file, which has many slices

Result = Mapping[str, Any]

SUFFIXES = (".png", ".pdf", ".svg")


def expect_figure(path: Path | None, beside: Sequence[Path], key: str) -> None:
    """Check early that a figure can be written, and that the results in `beside` have an entry `key`."""
    if path is None:
        expect(not beside, "beside", beside, "a figure to draw")
        return
    good = path.suffix in SUFFIXES and path.parent.is_dir()
    expect(good, "figure", str(path), f"a {', '.join(SUFFIXES)} file in an existing directory")
    if reason := plot.missing():
        raise ImportError(reason)
    read_results(beside, key)


def read_results(paths: Sequence[Path], key: str) -> list[Result]:
    """Read results that were written with --json.

    Args:
        key: a required entry.
    """
    results = []
    for path in paths:
        try:
            result = read_json(path, max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ValueError(f"beside = {str(path)!r}: expected a file of --json ({error})") from error
        good = isinstance(result, dict) and isinstance(result.get(key), list)
        expect(good, "beside", str(path), "a file written with --json of the same command")
        results.append(result)
    return results


def draw_perplexity(path: Path, results: Sequence[Result]) -> None:
    """Plot loss against the bigram's training count, by model, and the repeat distances of the first result.

    Grey bars show the number of the first result's tokens in each bin.

    Args:
        results: of `slices.report`; their references are drawn as models too. Without counts only the
            distances are drawn.
    """
    models = [model for result in results for model in (result, result.get("reference")) if model]
    named = short_names([(str(model["info"].get("checkpoint")), model) for model in models])
    panels: list[Panel] = []
    counted = results[0].get("frequency") or []
    for which, title in (("all", "all tokens"), ("repeats", "tokens that end a repeated bigram")):
        lines = [
            Line(name, [(bin_["low"] + 1, bin_[which]["loss"]) for bin_ in bins if bin_[which]["tokens"]])
            for name, model in named.items()
            if (bins := model.get("frequency"))
        ]
        counts = [(bin_["low"] + 1, bin_[which]["tokens"]) for bin_ in counted]
        labels = ("occurrences of the bigram in training", lines, "loss (nats per token)")
        bars = {"ticks": _ticks(counts), "counts": counts, "counts_label": "tokens in the bin"}
        panels.append(Panel(title, *labels, None, x_tick=lambda x: plot.count(x - 1), **bars))
    distances = results[0]["distances"]
    kinds = (("repeats", "all repeats"), ("hits", "AR hits"))
    drawn = [Line(label, density(distances, kind)) for kind, label in kinds]
    counts = [(bin_["low"], bin_["repeats"]) for bin_ in distances["bins"]]
    panels.append(distances_panel(drawn, "repeats", counts))
    facts = (
        f"{results[0]['info'].get('data')}. {BINS} Grey bars: how many tokens are in each bin. "
        "AR hits: repeats of bigrams that are rare in training."
    )
    title = "Loss by how often a bigram was trained on, and how far back repeats reach"
    plot.draw(title, facts, panels, path)


BINS = "Bins of doubling width (1, 2-3, 4-7, ...), drawn at their low end."


def distances_panel(lines: Sequence[Line], kind: str, counts: Sequence[tuple[float, float]] = ()) -> Panel:
    labels = ("distance to the last occurrence (tokens)", lines, f"share of {kind} per token of distance")
    bars = {"counts": counts, "counts_label": f"{kind} in the bin"}
    return Panel(f"distances of {kind}", *labels, None, y_log=True, **bars)


def _ticks(counts: Sequence[tuple[float, float]]) -> list[float]:
    """Return the low ends of at most 8 bins, including the first."""
    return [x for x, _ in counts][:: -(-len(counts) // 8) or 1]


def density(distances: Result, kind: str) -> list[tuple[float, float]]:
    """Return the share per token of distance, as bins differ in width."""
    total = sum(bin_[kind] for bin_ in distances["bins"])
    filled = [(bin_["low"], bin_["high"], bin_[kind]) for bin_ in distances["bins"] if bin_[kind]]
    return [(low, count / total / (high - low + 1)) for low, high, count in filled]


def short_names(results: Sequence[tuple[str, Result]]) -> dict[str, Result]:
    """Key results by the last two parts of their paths, for the legend; equal names are numbered."""
    named: dict[str, Result] = {}
    for source, result in results:
        name = "/".join(Path(source).parts[-2:])
        same = sum(other.partition(" (")[0] == name for other in named)
        named[f"{name} ({same + 1})" if same else name] = result
    return named
