"""Figures of the kept results, drawn again: every panel and axis has a name, and ticks are short."""

import pytest

from based_jax import plot
from benchmarks.__main__ import main
from benchmarks.gpu import adopt

FIGURES = ("ops.png", "decoding.png", "overview.png")


def test_kept_results_are_drawn_with_names(monkeypatch):
    drawn = {}
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.setdefault(path.name, figure))
    monkeypatch.setattr(adopt, "adopt", lambda reports, tree: None)
    assert main(["adopt"]) == 0
    assert tuple(drawn) == FIGURES
    for figure in drawn.values():
        check(figure)


def check(figure):
    assert figure.get_suptitle().strip()
    panels = [ax for ax in figure.axes if ax.axison]
    for ax in panels:
        assert ax.get_title(loc="left") or len(panels) == 1
        assert ax.get_xlabel()
        assert any(other.get_ylabel() for other in ax.get_shared_y_axes().get_siblings(ax))
        assert ax.lines or ax.patches
        ticks = [tick.get_text() for tick in ax.get_xticklabels()]
        assert "16384" not in ticks
        assert max(map(len, ticks)) <= len("128 KB")


@pytest.mark.parametrize(
    ("tick", "labels"),
    [
        (plot.count, {0: "0", 0.25: "0.25", 512: "512", 1536: "1.5k", 3000: "3,000", 2**20: "1M"}),
        (plot.byte_size, {1: "1 B", 16384: "16 KB", 2**21: "2 MB"}),
        (plot.duration, {1e-7: "100 ns", 1e-5: "10 µs", 0.1: "100 ms", 10.0: "10 s"}),
    ],
)
def test_ticks_are_short(tick, labels):
    assert {value: tick(value) for value in labels} == labels
