"""The pages of the CPU's numbers: each table is made again from the kept results."""

import json
from importlib import import_module

import pytest

from benchmarks import report, tables
from tests.subprocesses import ROOT

PAGES = {
    "decode": ("docs/decoding.md", "decode.tables"),
    "mixers": ("docs/benchmarks.md", "ops.mixer_tables"),
    "mqar": ("docs/benchmarks.md", "models.training_tables"),
    "startup": ("docs/benchmarks.md", "models.startup"),
    "train": ("docs/benchmarks.md", "models.training_tables"),
    "train_long": ("docs/benchmarks.md", "models.training_tables"),
}
"""Name of the results and of the page's comments -> the page, and the module that writes the tables."""


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_the_kept_results(name):
    page, module = PAGES[name]
    text = (ROOT / page).read_text(encoding="utf-8")
    kept = json.loads((ROOT / f"benchmarks/results/cpu/{name}.json").read_text())
    shown = report.on_page(kept, import_module(f"benchmarks.{module}").text)
    assert tables.insert(text, name, shown) == text
    assert all(len({line.count("|") for line in block}) == 1 for block in _tables(shown))


def _tables(text: str) -> list[list[str]]:
    """Return the lines of each table."""
    return [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
