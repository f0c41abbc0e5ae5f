"""Figures have one style: based_jax/plot.py makes them, sets their texts' sizes, and writes them."""

import re

import pytest

from based_jax import plot
from tests.floors import ROOT

STYLE = ROOT / "based_jax" / "plot.py"
DRAWING = [
    path
    for top in ("based_jax", "benchmarks", "docs", "pallas_kernels", "papers", "train")
    for path in sorted((ROOT / top).rglob("*.py"))
    if path != STYLE and re.search(r"\bplot\.(?:empty|draw)\(|matplotlib", path.read_text(encoding="utf-8"))
]

OTHERWISE = {
    r"matplotlib\.figure|pyplot": "plot.empty or plot.draw",
    r"savefig": "plot.save",
    r"(?:font|label)size['\"]?\s*[=:]\s*\d": "plot.HEADING, TITLE, LABEL or SMALL",
    r"(?<!plot)\.legend\(": "plot.legend",
    r"\.set_[xy]label\([^)]*\bfontsize=\d": "plot.frame",
}
"""Pattern -> what to use instead."""


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_figures_take_their_style_from_one_place(path):
    text = path.read_text(encoding="utf-8")
    found = {pattern: instead for pattern, instead in OTHERWISE.items() if re.search(pattern, text)}
    assert found == {}


def test_texts_can_be_read_at_half_the_width_of_a_page(monkeypatch):
    """With two panels side by side: more than 5 pixels high on a screen where a page is 735 wide."""
    pytest.importorskip("matplotlib")
    figures = []
    panel = plot.Panel("title", "x", [plot.Line("Based", [(1, 0.5), (2, 1)])])
    monkeypatch.setattr(plot, "save", lambda figure, path: figures.append(figure))
    plot.draw("heading", "facts", [panel, panel], STYLE)
    width = figures[0].get_size_inches()[0]
    assert plot.SMALL / 72 / width * 735 / 2 > 5
