"""The results in the pages: `python docs/studies.py` writes them, with `--check` compares them.

Text that depends on results is between two marks in a page, and this command replaces it:

    <!-- mqar_window -->
    <!-- /mqar_window -->

To add one, write the two marks into a page, and add an entry to `BLOCKS`: the page, the study's directory
below results/, and a function from the study's rows to Markdown. The rows are those of results.jsonl, each
job with its best learning rate only (`based_jax.experiments.results.best`). `grid` makes such functions, and
`ranges` is one:

    "mqar_window": Block("papers/zoology/recall.md", "mqar/window", grid("family", "window")),
    "mqar_width": Block("papers/zoology/recall.md", "mqar/width", grid("family", "d_model")),
    "mqar_pairs": Block("papers/zoology/recall.md", "mqar/pairs", grid("family", "pairs")),
    "mqar_feature_maps": Block("papers/zoology/recall.md", "mqar/feature_maps", states("64")),

A function of your own can also write sentences with numbers. tests/docs/test_pages.py runs the check.
"""

import argparse
import posixpath
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.evals.card.page import KEYS
from based_jax.experiments.job import TEXTS
from based_jax.experiments.results import Rows, best, read
from based_jax.files import read_json
from based_jax.html_page import results_in
from based_jax.markdown import between_markers, table
from based_jax.validate import expect

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
_WIDTH = 120
_EVERY = 576
"""Steps between the columns of `gates`."""


@dataclass(frozen=True)
class Block:
    """Text of a page that is made from a study's results."""

    page: str  # from the root of the repository
    results: str  # directory below results/
    text: Callable[[Rows], str]  # from each job with its best learning rate to Markdown
    slice_: tuple[str, str] | None = None  # slice whose accuracy counts, such as ("num_pairs", "64")

    def write(self) -> str:
        """Return the text with a caption: the command, and how much was trained."""
        folder = RESULTS / self.results
        rows, facts = read(folder / "results.jsonl"), read_json(folder / "study.json")
        expect(bool(rows), "results", self.results, "a directory with results.jsonl")
        jobs: dict[str, float] = {}
        for row in rows:  # the models of a job are trained at the same time
            jobs[row["job"]] = max(jobs.get(row["job"], 0.0), row.get("seconds") or 0.0)
        minutes = sum(jobs.values()) / 60
        typed = f"based-jax experiments {facts['study'].replace('_', '-')} --scale {facts['scale']}"
        link = posixpath.relpath(f"results/{self.results}/results.jsonl", posixpath.dirname(self.page))
        devices = sorted({row["device"] for row in rows if "device" in row})
        where = f" on {' and '.join(devices)}" if devices else ""
        caption = (
            f"`{typed}` made it{where}: {len(jobs)} jobs with {len(rows)} models, {minutes:.0f} minutes "
            f"added up over the jobs ([results]({link}))."
        )
        lines = textwrap.wrap(caption, _WIDTH, break_long_words=False, break_on_hyphens=False)
        return "\n".join([self.text(best(rows, self.slice_)), "", *lines])


@dataclass(frozen=True)
class Cards:
    """A table of the recall cards in a directory below results/, a row per card."""

    page: str
    results: str

    def write(self) -> str:
        """Return the table."""
        lines = []
        for card in results_in(RESULTS / self.results, KEYS):
            parts = card["parts"]
            off = [f"{part['part']} {part['accuracy']:.3f}" for part in parts["without"]]
            state, probe = card["state"][-1]["bytes"], card["probe"][-1]["accuracy"]
            cells = [card["name"], f"{state:,}", f"{parts['accuracy']:.3f}", f"{probe:.3f}"]
            lines.append([*cells, f"{card['hits']['hits']['perplexity']:.2f}", ", ".join(off)])
        heads = ["model", "state, bytes", "accuracy", "probe", "AR hits, perplexity", "accuracy without"]
        return "\n".join(table(heads, lines))


@dataclass(frozen=True)
class Needles:
    """A table of summaries of `eval long` in a directory below results/, a row per model and family."""

    page: str
    results: str

    def write(self) -> str:
        """Return two tables by length: whole models, and right first with each kind of layer switched off."""
        folder = RESULTS / self.results
        summaries = {name: read_json(folder / f"{name}.json") for name in read_json(folder / "training.json")}
        lengths = sorted({cell["length"] for summary in summaries.values() for cell in summary["cells"]})
        whole, parts = [], []
        for name, summary in summaries.items():
            state = f"{summary['state'][-1]['bytes']:,} at {summary['state'][-1]['length']:,}"
            found = {(cell["off"], cell["family"], cell["length"]): cell for cell in summary["cells"]}
            for off, family in dict.fromkeys((off, family) for off, family, _ in found):
                row = [found.get((off, family, length)) for length in lengths]
                if off is None:
                    cells = [f"{cell['first']:.2f} / {cell['match']:.2f}" if cell else "" for cell in row]
                    whole.append([name, family, state, *cells])
                else:
                    parts.append(
                        [name, off, family, *(f"{cell['first']:.2f}" if cell else "" for cell in row)]
                    )
        columns = [f"{length:,}" for length in lengths]
        first = table(["model", "question", "state, bytes", *columns], whole, words=(0, 1, 2))
        second = table(["model", "without", "question", *columns], parts, words=(0, 1, 2))
        return "\n".join([*first, "", *second])


@dataclass(frozen=True)
class Versions:
    """A table of the versions that the tests have run on, as `pytest --record` writes them."""

    page: str
    results: str

    def write(self) -> str:
        """Return the table, a row per Python."""
        lines = []
        for path in sorted((RESULTS / self.results).glob("*.json")):
            run = read_json(path)
            which = "all of `make test`" if run["all"] else "a selection"
            lines.append([*run["versions"].values(), which, f"{run['passed']:,}"])
            heads = [*run["versions"], "tests", "passed"]
        expect(bool(lines), "results", self.results, "a directory with records of runs")
        return "\n".join(table(heads, lines, words=(0, 5)))


def grid(row: str, column: str, where: Mapping[str, Any] | None = None) -> Callable[[Rows], str]:
    """Return a function that makes a table of accuracies from rows of results.

    Args:
        row, column: keys of the results, such as "family" and "d_model", whose values are the table's rows
            and columns: numbers ascend, names are in the order of the results. Of several jobs with the same
            two the best counts.
        where: values that other keys must have, such as {"length": 64}.
    """

    def text(rows: Rows) -> str:
        chosen = [each for each in rows if all(each[key] == value for key, value in (where or {}).items())]
        cells: dict[Any, dict[Any, float]] = {}
        for each in chosen:
            of_row = cells.setdefault(each[row], {})
            of_row[each[column]] = max(of_row.get(each[column], 0.0), each["accuracy"])
        columns = list(dict.fromkeys(each[column] for each in chosen))
        if all(isinstance(name, int | float) for name in columns):
            columns.sort()
        lines = [
            [str(name), *(f"{found[key]:.3f}" if key in found else "" for key in columns)]
            for name, found in cells.items()
        ]
        return "\n".join(table([row.replace("_", " "), *map(str, columns)], lines))

    return text


def by_length(rows: Rows) -> str:
    """Return a table of `capabilities`: accuracy by setting, and by length if it has several, and family."""
    shown = []
    for row in rows:
        lengths = row["slices"]["length"]
        for length, accuracy in lengths.items():
            setting = f"{row['setting']}, {length} tokens" if len(lengths) > 1 else row["setting"]
            shown.append({**row, "setting": setting, "accuracy": accuracy})
    settings, families = ([*TEXTS["capabilities"][name]] for name in ("small", "models"))
    shown.sort(
        key=lambda row: (settings.index(row["setting"].partition(",")[0]), families.index(row["family"]))
    )
    return grid("setting", "family")(shown)


def ranges(rows: Rows) -> str:
    """Return a table of each family's states, by the papers' formulas, and accuracies, from least to most."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(row)
    lines = []
    for family, members in families.items():
        states = [4 * row["state_size"] / 1024 for row in members if row["state_size"]]
        accuracies = [row["accuracy"] for row in members]
        lines.append([family, _range(states, "{:.3g}"), _range(accuracies, "{:.3f}")])
    return "\n".join(table(["family", "state, KiB", "accuracy"], lines))


def states(pairs: str) -> Callable[[Rows], str]:
    """Return a function that makes a table of states, parameters and accuracies, a row per job.

    Args:
        pairs: number of pairs whose accuracy has a column of its own.
    """

    def text(rows: Rows) -> str:
        lines = []
        for row in rows:
            sizes = [f"{4 * row['state_size'] / 1024:.3g}", f"{row['state_bytes'] / 1024:.3g}"]
            hard = row["slices"]["num_pairs"][pairs]
            found = [f"{row['parameters']:,}", f"{row['accuracy']:.3f}", f"{hard:.3f}"]
            lines.append([row["family"], row["setting"], *sizes, *found])
        heads = ["family", "setting", "state, KiB", "held, KiB", "parameters", "accuracy", f"{pairs} pairs"]
        return "\n".join(table(heads, lines, words=(0, 1)))

    return text


def gates(rows: Rows) -> str:
    """Return two tables of `mqar_gates`: its runs, and the accuracy of the longest ones as they go on."""
    heads = ["model", "steps", "examples", "training loss", "test loss"]
    pairs = list(rows[0]["slices"]["num_pairs"])
    runs = []
    for row in rows:
        numbers = [
            f"{row['steps']:,}",
            f"{row['examples']:,}",
            f"{row['loss']:.2f}",
            f"{row['eval_loss']:.2f}",
        ]
        recalled = [f"{row['slices']['num_pairs'][number]:.3f}" for number in pairs]
        runs.append([f"{row['family']}, d {row['d_model']}", *numbers, *recalled])
    longest: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        longest[row["family"]] = max(row, longest.get(row["family"], row), key=lambda each: each["steps"])
    cells: dict[int, dict[str, float]] = {}
    for family, row in longest.items():
        for step, accuracy in row["curve"]:
            if step % _EVERY == 0:
                cells.setdefault(step, {})[family] = accuracy
    lines = [[family, *(f"{cells[step][family]:.2f}" for step in sorted(cells))] for family in longest]
    steps = [f"{step:,} steps" for step in sorted(cells)]
    first = table([*heads, *(f"{number} pairs" for number in pairs)], runs)
    return "\n".join([*first, "", *table(["longest run", *steps], lines)])


def pairs(rows: Rows) -> str:
    """Return two tables of `mqar_pairs`: width 32 by pairs, and Hyena with heads by the size of its state."""
    first = grid("family", "pairs", where={"d_model": 32})(rows)
    found: dict[tuple[int, str, int], dict[int, float]] = {}
    for row in rows:
        if row["family"].startswith("Hyena"):
            model = row["state_size"], row["family"], row["d_model"]
            found.setdefault(model, {})[row["pairs"]] = row["accuracy"]
    numbers = sorted({number for of_model in found.values() for number in of_model})
    lines = [
        [f"{family}, d {width}", f"{4 * state / 1024:g}", *(_cell(of_model, number) for number in numbers)]
        for (state, family, width), of_model in sorted(found.items())
    ]
    heads = ["model", "state, KiB", *(f"{number} pairs" for number in numbers)]
    return "\n".join([first, "", *table(heads, lines)])


def _cell(accuracies: Mapping[int, float], key: int) -> str:
    return f"{accuracies[key]:.3f}" if key in accuracies else ""


def _range(values: Sequence[float], form: str) -> str:
    """Format numbers as "1", "1 and 2" or "1 to 3"."""
    texts = [form.format(value) for value in sorted(values)]
    if len(texts) <= 2:
        return " and ".join(texts)
    return f"{texts[0]} to {texts[-1]}"


BLOCKS: dict[str, Block | Cards | Needles | Versions] = {
    "mqar_tradeoff": Block("papers/zoology/recall.md", "mqar/tradeoff", ranges),
    "mqar_gates": Block("papers/zoology/recall.md", "mqar/gates", gates),
    "mqar_window": Block("papers/zoology/recall.md", "mqar/window", grid("family", "window")),
    "mqar_width": Block("papers/zoology/recall.md", "mqar/width", grid("family", "d_model")),
    "mqar_pairs": Block("papers/zoology/recall.md", "mqar/pairs", pairs),
    "mqar_feature_maps": Block("papers/zoology/recall.md", "mqar/feature_maps", states("64")),
    "recall_card": Cards("papers/zoology/recall.md", "recall_card"),
    "capabilities": Block("docs/recall.md", "capabilities", by_length),
    "long_recall": Needles("docs/recall.md", "long_recall"),
    "tasks": Block("papers/zoology/recall.md", "tasks", grid("setting", "family")),
    "versions": Versions("docs/install.md", "versions"),
}
"""Blocks by the names in their marks."""


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with `text` between the marks of the block `name`."""
    new = between_markers(page, name, f"\n{text}\n")
    expect(new is not None, "block", name, f"its marks in the page: <!-- {name} --> and <!-- /{name} -->")
    return str(new)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the blocks; with `--check`, return 1 if a page is not what would be written."""
    parser = argparse.ArgumentParser(description="Write the studies' results into the documentation.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(argv).check
    stale = 0
    for name, block in BLOCKS.items():
        path = ROOT / block.page
        page = path.read_text(encoding="utf-8")
        new = replaced(page, name, block.write())
        if check and new != page:
            print(f"{block.page}, {name} is not up to date: run python docs/studies.py", file=sys.stderr)
            stale = 1
        elif not check:
            path.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
