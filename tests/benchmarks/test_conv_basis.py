"""`python -m benchmarks conv_basis` on tiny sizes: JSON, tables, figure, break-even, errors."""

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.analysis import break_even
from benchmarks.ops import conv_basis_tables
from benchmarks.ops.candidates import FORWARD, FORWARD_BACKWARD, PASSES
from benchmarks.ops.conv_basis_candidates import ConvInputs, candidates, equally_spaced
from benchmarks.ops.conv_basis_figure import product_operations
from benchmarks.ops.shapes import SHAPES
from tests.benchmarks.refusals import expect_one_line

NAMES = ["softmax", "conv_1", "conv_4", "anchors_1", "anchors_4", "dense_product", "fft_product"]
LENGTHS = [8, 16]
PAGE = "before\n<!-- conv_basis -->\nold\n<!-- /conv_basis -->\nafter\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One complete run: its exit status and folder."""
    folder = tmp_path_factory.mktemp("conv_basis")
    (folder / "page.md").write_text(PAGE)
    flags = ["--terms", "4,1", "--lengths", "16,8", "--fit-from", "8", "--head-dim", "4", "--repeats", "2"]
    outputs = [
        f"--{flag}={folder / name}"
        for flag, name in (("json", "conv.json"), ("plot", "conv.png"), ("markdown", "page.md"))
    ]
    return main(["conv_basis", *flags, *outputs]), folder


@pytest.fixture(scope="module")
def result(finished):
    return json.loads((finished[1] / "conv.json").read_text())


@pytest.mark.slow
def test_every_case_has_its_row(finished, result):
    assert finished[0] == 0
    assert (result["benchmark"], result["complete"]) == ("conv_basis", True)
    assert [result["settings"][key] for key in ("terms", "lengths", "repeats")] == [[1, 4], LENGTHS, 2]
    cases = [(row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [(n, name, direction) for n in LENGTHS for name in NAMES for direction in PASSES]
    for row in result["rows"]:
        only = {"product": FORWARD, "anchors": FORWARD_BACKWARD}
        kinds = row["candidate"].split("_")
        timed = all(only.get(kind, row["pass"]) == row["pass"] for kind in kinds)
        assert row["status"] == ("measured" if timed else "skipped")


@pytest.mark.slow
def test_the_break_even_is_that_of_the_rows(result):
    times = {(row["candidate"], row["pass"], row["length"]): row["seconds"] for row in result["rows"]}
    assert len(result["summary"]["break_even"]) == (len(PASSES) + 1) * len(LENGTHS)
    for entry in result["summary"]["break_even"]:
        at = entry["pass"], entry["length"]
        kind = {"surrogate": "conv", "anchors": "anchors"}[entry["gradient"]]
        by_terms = {k: {entry["length"]: times[f"{kind}_{k}", *at]} for k in (1, 4)}
        assert entry["terms"] == break_even(by_terms, entry["length"], times["softmax", *at])


@pytest.mark.parametrize(
    ("exact", "terms"), [(0.5, 0), (1.0, 0), (2.0, 2), (4.0, 4), (8.0, 8), (16.0, None), (99.0, None)]
)
def test_break_even_lies_between_two_measured_numbers(exact, terms):
    """Times are proportional to k here, so k is the time; 16 was measured at another length only."""
    times = {k: {100: float(k)} for k in (1, 4, 8.5)} | {16: {200: 16.0}}
    assert (
        break_even(times, 100, exact) == pytest.approx(terms) if terms else not break_even(times, 100, exact)
    )
    assert break_even(times, 300, exact) is None


def test_both_products_are_the_same_numbers():
    *_, dense, fft = candidates([1])
    inputs = ConvInputs(SHAPES["cpu"], 9)
    results = [np.ravel(c.prepare(inputs, FORWARD).call()) for c in (dense, fft)]
    np.testing.assert_allclose(*results, rtol=0, atol=1e-5)  # float32 sums of nine products
    kernel, vector = inputs.product
    np.testing.assert_allclose(results[0], np.convolve(kernel, vector)[:9], rtol=0, atol=1e-5)


def test_operations_of_the_products():
    assert product_operations("dense_product", 3) == 2 * (1 + 2 + 3)
    assert product_operations("fft_product", 4) == 3 * 2.5 * 8 * 3 + 6 * 5


def test_break_even_by_operations():
    """Forward, one channel, 2^10 tokens: F = 5 N log2(2 N)."""
    n, transform = 1024, 5 * 1024 * 11
    terms = conv_basis_tables.even_operations(FORWARD, n, 1)
    conv = (terms * 3 + 2) * transform + terms * (16 + 2) * n
    assert conv == pytest.approx(2 * n**2)
    wide = [conv_basis_tables.even_operations(direction, n, 64) for direction in PASSES]
    assert 29 < wide[0] < 30
    assert 0 < wide[1] < 1  # all pairs of channels
    assert conv_basis_tables.even_operations(FORWARD, 8, 64) == 0


def test_starts_are_equally_spaced():
    assert equally_spaced(1, 7) == (0,)
    assert equally_spaced(4, 8) == (0, 2, 4, 6)
    assert equally_spaced(3, 10) == (0, 3, 6)


@pytest.mark.slow
def test_the_tables_have_every_number(finished, result):
    text = conv_basis_tables.text(result)
    assert all(word in text for word in ("exact softmax", "k = 1", "k = 4", "break-even k", "one product"))
    lines = (finished[1] / "page.md").read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == tuple(np.array(PAGE.splitlines())[[0, 1, 3, 4]])
    assert "old" not in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


@pytest.mark.slow
def test_the_figure_is_a_png(finished):
    assert (finished[1] / "conv.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--terms", ""], "at least one number"),
        (["--terms", "0"], "--terms = 0: expected 1 to 512"),
        (["--lengths", "8", "--terms", "9"], "--terms = 9: expected 1 to 8"),
        (["--heads", "0"], "--heads = 0: expected at least 1"),
        (["--markdown", "README.md"], "a file with the lines <!-- conv_basis --> and <!-- /conv_basis -->"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(flags, message, capsys):
    expect_one_line("conv_basis", flags, message, capsys)
