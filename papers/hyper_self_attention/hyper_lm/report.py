"""Write the results: tables of perplexities next to the paper's, loss curves as a figure, and a page."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from based_jax import markdown, plot
from based_jax.experiments.results import FAILED, Rows
from based_jax.models import param_count
from based_jax.plot import Line, Panel
from based_jax.profile import training_operations
from papers.hyper_self_attention.hyper_lm.contenders import BASELINE, BENCHMARKS, Benchmark, Contender, swept
from papers.hyper_self_attention.hyper_lm.jobs import SCALES, models

TITLE = "Self-attention, HyperFeatureAttention and HyperAttention as language models"
SOURCE = "Ustaomeroglu and Qu, Tables 1 and 2"

Runs = Mapping[int, Mapping[str, Any]]
"""Records by seed."""


def write(scale: str, rows: Rows, out: Path) -> list[Path]:
    """Write README.md and figure.png; without matplotlib there is no figure, and README.md says so."""
    parts = [f"# {TITLE}", f"{SOURCE}. {SCALES[scale].about}; {_facts(rows)}."]
    command = f"python -m papers.hyper_self_attention.hyper_lm --scale {scale} --out {out}"
    parts.append(f"```\n{command}\n```")
    figure = out / "figure.png"
    if reason := plot.missing():
        parts.append(reason)
    else:
        facts = f"{SOURCE}. {SCALES[scale].about}. {_FAMILIES}"
        plot.draw(TITLE, facts, panels(scale, rows), figure, columns=2)
        parts.append(f"![Loss curves and their distances from self-attention's]({figure.name})")
    parts += [
        f"## Benchmark {part.name} ({part.source})\n\n{table(scale, part, rows)}"
        for part in BENCHMARKS
        if any(of(rows, one) for one in part.contenders)
    ]
    parts.append(_LEGEND)
    if SCALES[scale].times:
        parts.append(f"## The scale of each factor's scores\n\n{_SCALES}\n\n{sweep(scale, rows)}")
    page = out / "README.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return [figure, page] if reason is None else [page]


_FAMILIES = (
    "SA: self-attention; HFA A=n: HyperFeatureAttention, n factors in a score; HFAv2: half of its heads are "
    "SA's; HA: HyperAttention over pairs of keys, its slots shared or not. Linear: a state of constant size."
)

_SCALES = """The paper prints no scale for the product of A scores q^a . k^a; ours divides each by the square
root of its channels. The columns multiply that, for every factor, by 1 (as above) and more, and thus the
product by the A-th power. Perplexity over that of SA with its own scale and the same seed, in benchmark A:
the mean over the seeds, whose number is in parentheses."""


_LEGEND = """Perplexity is per token of the held-out text, the mean over the seeds with their range. "over
SA" is by how much it lies above (+) or below (-) self-attention's in the same benchmark: the paper's, and
ours as the mean over the seeds of the ratio within a seed, with its range. A step's seconds are the median
over the runs of each run's median, on a machine that may have had other work; its operations are those of
the traced matrix products, forward and backward, with what is recomputed (`based_jax.profile`). A is the
number of factors of a score."""


def table(scale: str, benchmark: Benchmark, rows: Rows) -> str:
    """Return every trained contender of a benchmark with its mixer's own scale, as Markdown."""
    theirs = ("the paper's order", "parameters", "the paper's perplexity", "over SA")
    ours = ("perplexity", "over SA, same seed", "seeds", "seconds a step", "GFLOP a step")
    lines = []
    for one, runs, ratios, above in _compared(scale, benchmark, rows):
        parameters, gflop = _size(scale, one.key)
        published = f"{one.perplexity:.2f}" if one.perplexity else ""
        line = [one.family, one.order, f"{parameters:,d}", published, above]
        line += [_perplexity(runs, "{:.3f}"), _range(ratios, "{:+.2%}".format), str(len(runs))]
        seconds = median(run["seconds_per_step"] for run in runs.values())
        lines.append([*line, f"{seconds:.3f}", f"{gflop:.3g}"])
    return "\n".join(markdown.table(("model", *theirs, *ours), lines))


def summary(scale: str, rows: Rows) -> str:
    """Return perplexities of both benchmarks beside the paper's: the table of hyper_lm/README.md."""
    heads = ("", "perplexity per byte", "against SA, same seed", "seeds", "the paper's, against SA")
    lines = []
    for part in BENCHMARKS:
        for one, runs, ratios, above in _compared(scale, part, rows):
            more = _range(ratios, "{:+.1%}".format)
            theirs = above or ("" if one is part.contenders[0] else "not in it")
            name = f"{part.name}: {one.family}"
            lines.append([name, _perplexity(runs, "{:.2f}"), more, str(len(runs)), theirs])
    return "\n".join(markdown.table(heads, lines))


def _compared(
    scale: str, benchmark: Benchmark, rows: Rows
) -> Iterator[tuple[Contender, Runs, list[float], str]]:
    """Yield each trained contender, its runs, by how much they lie over SA's, and the paper's over SA."""
    baseline, *_ = benchmark.contenders
    for one in own_scale(scale, benchmark):
        runs, ratios, above = of(rows, one), [], ""
        if one is not baseline:
            ratios = [ratio - 1 for ratio in over(rows, one, baseline)]
            if one.perplexity and baseline.perplexity:
                above = f"{one.perplexity / baseline.perplexity - 1:+.1%}"
        if runs:
            yield one, runs, ratios, above


def _perplexity(runs: Runs, form: str) -> str:
    return _range([run["perplexity"] for run in runs.values()], form.format)


@functools.cache
def _size(scale: str, key: str) -> tuple[int, float]:
    """Return a model's parameters and the operations of a training step's matrix products, in 10^9.

    All are counted by tracing: `profile.model_flops` uses the papers' formula for some attention models.
    """
    settings = SCALES[scale]
    config = models(settings)[key]
    sequences = settings.tokens_per_step // config.max_length
    products = training_operations(config, config.max_length).products
    return param_count(config), sequences * products / 1e9


def own_scale(scale: str, benchmark: Benchmark) -> list[Contender]:
    """Return the contenders whose scores have their mixer's default scale."""
    return [one for one in SCALES[scale].contenders(benchmark) if one.times == 1]


def by_times(scale: str, rows: Rows) -> dict[str, dict[float, list[float]]]:
    """Return perplexities over SA's with its own scale and the same seed, by family and multiple."""
    benchmark, *_ = BENCHMARKS
    baseline, *_ = benchmark.contenders
    found: dict[str, dict[float, list[float]]] = {}
    for one in benchmark.contenders:
        others = swept(replace(benchmark, contenders=[one]), SCALES[scale].times)
        for contender in [one, *others] if others else []:
            if ratios := over(rows, contender, baseline):
                found.setdefault(one.family, {})[contender.times] = ratios
    return found


def sweep(scale: str, rows: Rows) -> str:
    """Return `by_times` as the Markdown table of hyper_lm/README.md."""
    times = [1.0, *SCALES[scale].times]

    def cell(ratios: Sequence[float]) -> str:
        return f"{fmean(ratios) - 1:+.1%} ({len(ratios)})" if ratios else ""

    lines = [
        [family, *(cell(ratios.get(many, [])) for many in times)]
        for family, ratios in by_times(scale, rows).items()
    ]
    return "\n".join(markdown.table(("model", *(f"x {many:g}" for many in times)), lines))


def of(rows: Rows, contender: Contender) -> Runs:
    """Return a contender's runs by seed."""
    return {row["seed"]: row for row in rows if row["status"] != FAILED and row["model"] == contender.key}


def over(rows: Rows, contender: Contender, baseline: Contender) -> list[float]:
    """Return the perplexities of one contender divided by another's, seed by seed."""
    theirs, ours = of(rows, baseline), of(rows, contender)
    return [run["perplexity"] / theirs[seed]["perplexity"] for seed, run in ours.items() if seed in theirs]


def panels(scale: str, rows: Rows) -> list[Panel]:
    """Return the panels, means over seeds.

    There are two per benchmark, training losses and their difference from SA's, and one of the sweep.
    """
    settings, drawn = SCALES[scale], []

    def panel(title: str, curves: Mapping[str, Mapping[int, float]], y_label: str) -> Panel:
        lines = [
            Line(family, [(step * settings.tokens_per_step, loss) for step, loss in curve.items()])
            for family, curve in curves.items()
        ]
        return Panel(title, "training tokens", lines, y_label=y_label, y_limits=None)

    for benchmark in BENCHMARKS:
        runs = {part.family: of(rows, part) for part in own_scale(scale, benchmark)}
        losses = {family: _curve(of_family) for family, of_family in runs.items() if of_family}
        beside = {family: _above(runs[family], runs[BASELINE]) for family in losses}
        name = f"benchmark {benchmark.name}"
        layers = f"{benchmark.layers} layer{'s' * (benchmark.layers > 1)}"
        about = f"{name}: {layers}, {settings.lengths[benchmark.name]} tokens"
        drawn.append(panel(about, losses, "training loss (nats per token)"))
        difference = f"{name}: difference from self-attention"
        drawn.append(panel(difference, beside, "loss minus SA's (nats per token)"))
    if settings.times:
        found = by_times(scale, rows)
        lines = [
            Line(family, [(many, fmean(values)) for many, values in points.items()])
            for family, points in found.items()
        ]
        look: dict[str, Any] = {"y_label": "perplexity / SA's with its own scale", "y_limits": None}
        title = "benchmark A: scale of each factor's scores"
        drawn.append(Panel(title, "multiple of the default scale", lines, ticks=(1, *settings.times), **look))
    return drawn


def _above(runs: Runs, others: Runs) -> dict[int, float]:
    """Return the mean loss by step minus that of others, over the seeds that both have."""
    seeds = runs.keys() & others.keys()
    ours, theirs = (_curve({seed: part[seed] for seed in seeds}) for part in (runs, others))
    return {step: loss - theirs[step] for step, loss in ours.items()}


def _curve(runs: Runs) -> dict[int, float]:
    """Return the mean loss by step over the seeds, which all have the same steps."""
    by_step: dict[int, list[float]] = {}
    for run in runs.values():
        for step, loss in run["curve"]:
            by_step.setdefault(step, []).append(loss)
    return {step: fmean(losses) for step, losses in by_step.items()}


def _range(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Format the mean, and the range if there are several values."""
    if not values:
        return ""  # self-attention failed for these seeds
    mean = form(fmean(values))
    return mean if len(values) == 1 else f"{mean} ({form(min(values))} to {form(max(values))})"


def _facts(rows: Rows) -> str:
    hours = sum(row.get("steps", 0) * row.get("seconds_per_step", 0.0) for row in rows) / 3600
    failed = sum(row["status"] == FAILED for row in rows)
    return f"{len(rows)} models, {failed} of them failed, {hours:.2f} hours of training steps"
