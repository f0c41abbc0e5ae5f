"""`python -m benchmarks layers`: the same numbers in torch, ratios and tables, errors."""

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.models import layer_tables, layers
from benchmarks.models.layers import AGREEMENT, Inputs, Layers
from benchmarks.ops.candidates import FORWARD_BACKWARD
from benchmarks.pages import MISSING
from benchmarks.study import relative_error
from tests.benchmarks.refusals import expect_one_line

SECONDS = {"jax": {64: 0.01, 128: 0.02}, "torch": {64: 0.02}, "torch_compile": {64: 0.015, 128: 0.01}}


@pytest.fixture
def report():
    candidates = Layers(layers=("gated_conv",))._candidates("gated_conv")
    rows = [
        {
            **{"layer": "gated_conv", "candidate": c.name, "pass": FORWARD_BACKWARD, "length": length},
            **{"seconds": SECONDS[c.name.split()[1]].get(length), "status": "skipped", "reason": "too long"},
        }
        for c in candidates
        for length in (64, 128)
    ]
    return {
        "machine": {"cpu": "CPU", "cores": 2, "jax": "1", "torch": None, "date": "2026-01-01T00:00"},
        "settings": {"dtype": "float32", "d_model": 64, "batch": 1, "lengths": [64, 128]},
        "candidates": [{"name": c.name, "label": c.label} for c in candidates],
        "rows": rows,
        "agreement": [],
        "summary": {"ratios": layer_tables.ratios(rows)},
        "notes": [],
    }


def test_the_page_has_times_and_what_torch_takes_over_ours(report):
    page = layer_tables.insert("<!-- layers -->\n<!-- /layers -->", report)
    assert "| gated_conv | based_jax | 10.0 | 20.0 |" in page
    assert f"| gated_conv | torch: time over ours | 2.00 | {MISSING} |" in page
    assert "| gated_conv | torch.compile: time over ours | 1.50 | 0.50 |" in page
    assert "gated_conv torch at 128 tokens skipped: too long" in page


def test_the_page_shows_the_kept_results():
    page = Path("docs/benchmarks.md").read_text()
    kept = json.loads(Path("benchmarks/results/cpu/layers.json").read_text())
    assert layer_tables.insert(page, kept) == page


@pytest.mark.parametrize(
    ("error", "said"), [(2e-7, "differ by at most 2e-07"), (1e-3, "DISAGREES"), (None, "DISA")]
)
def test_disagreements_are_named(report, error, said):
    entry = {"candidate": "gated_conv torch", "length": 64, "relative_error": error}
    report["agreement"] = [{**entry, "agrees": layers._agrees(entry)}]
    assert said in layer_tables.insert("<!-- layers -->\n<!-- /layers -->", report)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
@pytest.mark.parametrize("name", layers.LAYERS)
def test_torch_computes_the_same_outputs_and_gradients(name):
    found = [
        program.to_numpy(program.call())
        for candidate in Layers(d_model=64)._candidates(name)
        if "compile" not in candidate.name
        for program in [candidate.prepare(Inputs(256, 64), FORWARD_BACKWARD)]
    ]
    assert len(found) == (3 if name == "linear_attention" else 2)
    for theirs in found[1:]:
        assert relative_error(found[0], theirs) <= AGREEMENT


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths", "100"], "--lengths = 100: expected multiples of the window of 64 keys"),
        (["--d-model", "96"], "--d-model = 96: expected a multiple"),
        (["--layers", "mamba"], "--layers = 'mamba': expected one of"),
        (["--layers", ""], "--layers = '': expected one or more, each once"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, capsys):
    expect_one_line("layers", flags, message, capsys)
