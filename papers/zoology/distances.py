"""Measure the distances between repeated bigrams: ``python -m papers.zoology.distances --data PATH``.

Reproduces Zoology's Figures 3 (Pile) and 4, 5 (subsets of RedPajama: one call each, the last draws them all).
"""

import dataclasses
import string
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from jaxtyping import Bool

from based_jax import command, plot
from based_jax.data import PackedTokens, Tokenizer
from based_jax.data.shards.reader import load_data_tokenizer
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.options import write_json
from based_jax.evals.perplexity.records import MAX_COUNT, is_hit, stream_distances
from based_jax.evals.perplexity.slices import distance_lines, distances
from based_jax.evals.text import TextOptions, pack_text
from based_jax.files import read_json
from based_jax.plot import Bars, Line, Panel
from based_jax.validate import expect, expect_ranges, expect_writable

PROG = "python -m papers.zoology.distances"
_MAX_BYTES = 64 << 20  # size limit of a results file
_SUFFIXES = (".png", ".pdf", ".svg")
_BINS = "Bins of doubling width (1, 2-3, 4-7, ...), drawn at their low end."
Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure distances between a repeated bigram and its last occurrence in the same sequence."""

    text: Annotated[TextOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TextOptions)
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory;
    default: tokens:DIR's, else byte"""
    length: int = 2048
    """tokens per sequence"""
    cross_documents: bool = False
    """count repeats across document boundaries, as the authors did"""
    max_tokens: int = 16_000_000
    """number of tokens of the data to use, from the start"""
    counts: Path | None = None
    """count file of the training data (eval bigrams); without it every repeat is an AR hit"""
    max_count: int = MAX_COUNT
    """largest training count of an AR hit's bigram"""
    stop_words: Path | None = None
    """file with a word per line: bigrams with one of them, or with punctuation, do not count (as in Zoology's
    Figures 4 and 5). Tokens are compared in lower case, without surrounding spaces"""
    json: Path | None = None
    """write the results to this file"""
    figure: Path | None = None
    """draw the results into this .png, .pdf or .svg file"""
    beside: tuple[Path, ...] = ()
    """files written with --json for other texts, to show in the figure as well"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "length", "max_tokens")
        expect(self.max_count >= 0, "max_count", self.max_count, "at least 0")
        expect_writable(self, "json")
        expect_figure(self.figure, self.beside)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    table = None if options.counts is None else BigramTable.load(options.counts)
    tokenizer = load_data_tokenizer([options.text.data or ""], options.tokenizer)
    left_out = None if options.stop_words is None else stop_tokens(tokenizer, read_words(options.stop_words))
    packed, _ = pack_text(options.text, tokenizer, options.max_tokens)
    settings = options.length, options.cross_documents, table, options.max_count, left_out
    result = {"data": str(options.text), **histogram(packed, *settings)}
    print(f"{result['tokens']:,} tokens in {result['sequences']:,} sequences")
    for name in ("repeats", "hits"):
        print(f"{name:<8}{result[f'{name}_per_sequence']:>10.1f} per sequence")
    print("\n".join(distance_lines(result)))
    write_json(options.json, result)
    if options.figure is not None:
        draw_distances(options.figure, [result, *read_results(options.beside)])
    return 0


def histogram(
    packed: PackedTokens,
    length: int,
    cross_documents: bool = False,
    table: BigramTable | None = None,
    max_count: int = MAX_COUNT,
    left_out: Bool[np.ndarray, " V"] | None = None,
) -> dict[str, Any]:
    """Count tokens, sequences, repeats and hits (Figure 4), and `slices.distances` (Figures 3 and 5).

    Bigrams with a token that is `left_out` do not count as repeats.
    """
    sequence, distance = stream_distances(packed, length, cross_documents)
    if left_out is not None:
        is_out = left_out[packed.tokens]
        distance = np.where(is_out[:-1] | is_out[1:], 0, distance)
    counts = None if table is None else table.lookup(packed.tokens[:-1], packed.tokens[1:])
    hits = is_hit(distance, counts, max_count)
    sequences = int(sequence[-1]) + 1
    return {
        "tokens": len(packed) - 1,
        "sequences": sequences,
        "repeats_per_sequence": int(np.count_nonzero(distance)) / sequences,
        "hits_per_sequence": int(hits.sum()) / sequences,
        **distances(distance, hits),
    }


def draw_distances(path: Path, results: Sequence[Result]) -> None:
    """Plot repeats and hits per sequence (Figure 4) and their distances (Figures 3 and 5), by source."""
    named = short_names([(str(result.get("data")), result) for result in results])
    panels: list[Panel | Bars] = []
    counted = any(result["hits_per_sequence"] < result["repeats_per_sequence"] for result in results)
    kinds = ("repeats", "hits") if counted else ("repeats",)
    if len(named) > 1:
        for kind in kinds:
            values = {name: result[f"{kind}_per_sequence"] for name, result in named.items()}
            panels.append(Bars(f"{kind} by source", f"{kind} per sequence", values, "source"))
    for kind in kinds:
        panels.append(distances_panel([Line(n, density(r, kind)) for n, r in named.items()], kind))
    facts = f"Bigrams that occur again in their sequence. {_BINS}"
    plot.draw("Repeated bigrams and how far back they reach", facts, panels, path, columns=2)


def distances_panel(lines: Sequence[Line], kind: str) -> Panel:
    labels = ("distance to the last occurrence (tokens)", lines, f"share of {kind} per token of distance")
    return Panel(f"distances of {kind}", *labels, None, y_log=True)


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


def expect_figure(path: Path | None, beside: Sequence[Path]) -> None:
    """Check early that a figure can be written, and that the results in `beside` can be read."""
    if path is None:
        expect(not beside, "beside", beside, "a figure to draw")
        return
    good = path.suffix in _SUFFIXES and path.parent.is_dir()
    expect(good, "figure", str(path), f"a {', '.join(_SUFFIXES)} file in an existing directory")
    if reason := plot.missing():
        raise ImportError(reason)
    read_results(beside)


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read results that were written with --json."""
    results = []
    for path in paths:
        try:
            result = read_json(path, max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ValueError(f"beside = {str(path)!r}: expected a file of --json ({error})") from error
        good = isinstance(result, dict) and isinstance(result.get("bins"), list)
        expect(good, "beside", str(path), "a file written with --json of the same command")
        results.append(result)
    return results


def read_words(path: Path) -> frozenset[str]:
    """Read a file with one word per line, in lower case; empty lines are skipped."""
    if not path.is_file():
        raise FileNotFoundError(f"stop_words = {str(path)!r}: expected a file with a word per line")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"stop_words = {str(path)!r}: expected UTF-8 text ({error})") from error
    words = frozenset(line.strip().lower() for line in lines) - {""}
    expect(bool(words), "stop_words", str(path), "at least one word")
    return words


def stop_tokens(tokenizer: Tokenizer, words: Collection[str]) -> Bool[np.ndarray, " V"]:
    """Return a mask over token ids, True if a token's text is one of `words`, or punctuation.

    Surrounding spaces and case are ignored, so that " The" of a byte-pair vocabulary is "the". Subwords are
    treated like words. The document separator has no text and is neither.
    """
    texts = (tokenizer.decode([token]).strip().lower() for token in range(tokenizer.vocab_size))
    return np.array([text in words or _is_punctuation(text) for text in texts])


def _is_punctuation(text: str) -> bool:
    """Return whether a nonempty text consists of ASCII or Unicode punctuation."""
    return text != "" and all(
        letter in string.punctuation or unicodedata.category(letter).startswith("P") for letter in text
    )


if __name__ == "__main__":
    command.run(PROG, main)
