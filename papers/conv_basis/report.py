"""Write the study's page: tables of all records, and the figures that exist."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from based_jax import markdown
from based_jax.experiments.results import Rows, read
from papers.conv_basis.approximations import WINDOW
from papers.conv_basis.heads import FIGURE_TOKENS, TOLERANCES
from papers.conv_basis.recovered import SEARCHES
from papers.conv_basis.settings import SETTINGS

TITLE = "How few convolutions attention scores are"
SOURCE = "Gu et al., Conv-Basis"
RECOVER = SEARCHES["binary"]


def error_curves(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the records whose points are (segments, output error, score error)."""
    return [row for row in rows if "line" in row and len(row["points"][0]) == 3]


def write(scale: str, out: Path) -> Path:
    """Write README.md from the files in the directory."""
    parts = [f"# {TITLE}", f"{SOURCE}. {SETTINGS[scale].about}."]
    parts.append(f"```\npython -m papers.conv_basis --scale {scale} --out {out}\n```")
    names = ("structured", "trained", "recovered")
    structured, trained, recovered = (read(out / f"{name}.jsonl") for name in names)
    if structured:
        parts += ["## Inputs with a known basis", _STRUCTURED, _structured(structured)]
    if trained:
        (model, *_), heads = read(out / "training.jsonl"), [row for row in trained if "terms" in row]
        about = _TRAINED.format(tokens=FIGURE_TOKENS, perplexity=model["perplexity"], **heads[0])
        parts += ["## Heads of a trained model", about, _heads(heads)]
    if recovered:
        parts += ["## The model with other attention", _REPLACED.format(**recovered[0]), replaced(recovered)]
        parts += ["Relative errors of the outputs:", replaced(recovered, ERROR)]
        parts += ["### Recover, by T and delta", _RECOVERED, grid(recovered)]
    shown = [(out / name, about) for name, about in FIGURES.items()]
    parts += [f"![{about}]({path.name})" for path, about in shown if path.exists()]
    page = out / "README.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


FIGURES = {
    "curves.png": "Errors against the number of segments, drawn inputs",
    "trained.png": "Errors against the number of segments, a trained model's heads",
    "recovered.png": "Loss and errors of outputs by k, with fixed and with recovered starts",
    "heads.png": "Heat maps of q k^T, and their diagonals' means",
}
"""Captions by file"""

_STRUCTURED = f"""Segments are found by binary search with T = {WINDOW} lags and half the separation as its
threshold. Errors of outputs are the largest, over the largest value, against exact attention in float64;
bounds are of exact arithmetic: 2 tanh(e / 2), and the paper's 2 (exp(e) - 1), for the largest error e of a
score. The minimal k is that of scores that are equal to rounding: with noise it is N."""


_TRAINED = """The paper's figure 1b is one q k^T of Llama 3 for a sentence (SST-2) of {tokens} tokens. This is
not that: it is a model of two layers, trained here on bytes of Python's standard library (perplexity
{perplexity:.2f} per byte of held-out text), on {texts} held-out texts of {length} bytes. Toeplitz share: of
the variance of the scores that the means of the diagonals explain, mean and range over the texts. k at e:
segments so that no score is off by more than e, greedily; the mean over the texts, and in parentheses for
{tokens} bytes of the first text."""

_REPLACED = """Bits per byte of {texts} held-out texts of {length} bytes, with other attention in both layers
and the weights as they were trained with softmax attention: through k segments with equally spaced or
geometric starts, through the first k segments that the paper's Recover finds in each text and head, or over
the last k keys only, which takes as many scores. Recover has the T and delta, of all that were tried, with
the lowest loss for this k on these texts; "best per head" those with the smallest error of the outputs of
this head and text, which takes attention itself to find. "By scan" compares all columns in place of the
binary search. Where starts would coincide there are fewer than asked for, in parentheses."""

_RECOVERED = """Epsilon = delta / (5 T) is the largest that the paper's definition allows. Bases: found before
the end of the search's range, of at most N + 1 - T, mean and range over the texts and heads. Score error: the
largest of a text and head, mean. Within 2 epsilon: share of the texts and heads without a larger one, the
error that theorem 4.4 starts from. Bits per byte and output error: with all bases."""


def _structured(rows: Rows) -> str:
    heads = ["input", "K", "largest score", "segments", "minimal k", "starts found, float64 / float32"]
    heads += ["score error", "bound", "the paper's", "output error, float64", "float32"]
    lines = []
    for row in rows:
        double, single = row["float64"], row["float32"]
        found = " / ".join("all" if part["right"] else "not all" for part in (double, single))
        numbers = [double[name] for name in ("score_error", "output_bound", "paper_bound", "output_error")]
        sizes = [str(row["width"]), f"{row['largest_score']:.1f}", str(row["segments"])]
        errors = [f"{x:.1e}" for x in (*numbers, single["output_error"])]
        lines.append([row["input"], *sizes, str(row["minimal_terms"]), found, *errors])
    return "\n".join(markdown.table(heads, lines))


def _by_count(head: str, lines: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Format a row per line: its points' second numbers, and the first where it is not the column's."""
    counts = [round(point[0]) for point in next(iter(lines.values()))]

    def cell(point: Sequence[float], count: int) -> str:
        return f"{point[1]:.3f}" + ("" if round(point[0]) == count else f" ({point[0]:.3g})")

    cells = [[line, *map(cell, points, counts)] for line, points in lines.items()]
    return "\n".join(markdown.table((head, *(f"k = {count}" for count in counts)), cells))


def _heads(rows: Rows) -> str:
    heads = ("head", "largest score", "Toeplitz share", *(f"k at {e:g}" for e in TOLERANCES))
    lines = []
    for row in rows:
        mean, least, most = row["toeplitz_share"]
        short = row[f"terms_of_{FIGURE_TOKENS}_tokens"]
        counts = [f"{row['terms'][str(e)]:.4g} ({short[str(e)]})" for e in TOLERANCES]
        share = f"{mean:.2f} ({least:.2f} to {most:.2f})"
        lines.append([row["input"], f"{row['largest_score']:.1f}", share, *counts])
    return "\n".join(markdown.table(heads, lines))


BITS, ERROR = 1, 2
"""Index of the numbers in a point of `recovered.jsonl`, after k"""


def best(rows: Rows, line: str) -> list[tuple[Sequence[float], Mapping[str, Any]]]:
    """Return for each k the point of the lowest loss among a search's records, and its record."""
    tried = [row for row in rows if row["line"] == line]
    points = zip(*(row["points"] for row in tried), strict=True)
    return [min(zip(of_k, tried, strict=True), key=lambda pair: pair[0][BITS]) for of_k in points]


def lines(rows: Rows) -> dict[str, list[Sequence[float]]]:
    """Return the points of each kind of attention, for Recover those with the best T and delta for each k."""
    found: dict[str, list[Sequence[float]]] = {}
    for row in rows:
        if "width" not in row:
            found[row["line"]] = row["points"]
        elif row["line"] not in found:
            found[row["line"]] = [point for point, _ in best(rows, row["line"])]
    return found


def replaced(rows: Rows, index: int = BITS) -> str:
    """Return bits per byte, or errors of outputs, by kind of attention and k, as Markdown."""
    found = lines(rows)
    by_k = {line: points for line, points in found.items() if len(points) > 1}
    table = _by_count(
        "attention", {line: [(p[0], p[index]) for p in points] for line, points in by_k.items()}
    )
    alone = [f"{line} {points[0][index]:.3f}" for line, points in found.items() if len(points) == 1]
    return f"{table}\n\nWith {', with '.join(alone)}."


def grid(rows: Rows) -> str:
    """Return what Recover finds by T and delta, as Markdown."""
    heads = (
        "T",
        "delta",
        "epsilon",
        "bases",
        "score error",
        "within 2 epsilon",
        "bits per byte",
        "output error",
    )
    cells = []
    for row in rows:
        if row["line"] == RECOVER:
            mean, least, most = row["bases"]
            _, bits, error = row["points"][-1]
            bounds = [str(row["width"]), f"{row['delta']:g}", f"{row['epsilon']:g}"]
            numbers = [f"{mean:.1f} ({least} to {most})", f"{row['score_error']:.1f}", f"{row['within']:.0%}"]
            cells.append([*bounds, *numbers, f"{bits:.3f}", f"{error:.3f}"])
    return "\n".join(markdown.table(heads, cells, words=()))
