"""`python -m benchmarks ops` on lengths of a second: JSON, figure, skipping, interruption, errors."""

import importlib.util
import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.analysis import summarize
from benchmarks.ops import tables
from benchmarks.ops.candidates import JAX_CANDIDATES, PASSES, Inputs
from benchmarks.ops.shapes import SHAPES
from benchmarks.study import Study, relative_error
from tests.benchmarks.refusals import expect_one_line

NAMES = ["taylor_xla", "dot_product_attention", "softmax_tiled"]  # the quadratic form compiles slowly
NUMBERS = {"seconds", "spread", "seconds_min", "seconds_max", "compile_seconds"}
BYTES = {"temp_bytes", "needed_bytes"}
ROW_KEYS = (
    NUMBERS
    | BYTES
    | {
        "candidate",
        "pass",
        "length",
        "status",
        "reason",
        "samples",
        "calls_per_sample",
        "cold",
        "peak_rss_bytes",
    }
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One complete run: its exit status and folder."""
    folder = tmp_path_factory.mktemp("ops")
    flags = ["--lengths", "128,64,128", "--fit-from", "64", "--repeats", "2", "--heads", "2"]
    outputs = ["--json", str(folder / "ops.json"), "--plot", str(folder / "ops.png")]
    return main(["ops", *flags, *outputs, "--candidates", ",".join(NAMES)]), folder


@pytest.fixture(scope="module")
def result(finished):
    return json.loads((finished[1] / "ops.json").read_text())


def test_the_envelope(finished, result):
    assert finished[0] == 0
    assert set(result) == {
        "benchmark",
        "schema",
        "complete",
        "command",
        "machine",
        "settings",
        "candidates",
        "rows",
        "agreement",
        "summary",
        "notes",
    }
    assert (result["benchmark"], result["schema"], result["complete"]) == ("ops", 2, True)
    assert result["command"].startswith("python -m benchmarks ops --lengths 128,64,128")
    assert {"cpu", "cores", "jax", "python", "date"} <= set(result["machine"])
    assert result["settings"]["lengths"] == [64, 128]  # sorted, once each
    assert [result["settings"][key] for key in ("batch", "heads", "key_size", "value_size")] == [1, 2, 16, 64]


def test_candidates_say_their_channels(result):
    widths = {candidate["name"]: candidate["query_key_channels"] for candidate in result["candidates"]}
    assert widths == {"taylor_xla": 16, "dot_product_attention": 64, "softmax_tiled": 64}


def test_every_case_has_its_row(result):
    cases = [(row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [(n, name, direction) for n in (64, 128) for name in NAMES for direction in PASSES]
    for row in result["rows"]:
        assert set(row) == ROW_KEYS
        assert (row["status"], row["samples"]) == ("measured", 2)
        assert all(row[key] >= 0 for key in NUMBERS)
        assert all(row[key] > 0 for key in BYTES)


def test_summary_and_agreement(result):
    assert [entry["candidate"] for entry in result["summary"]["growth"][::2]] == NAMES
    assert all(entry["lengths"] == [64, 128] for entry in result["summary"]["growth"])
    assert {entry["other"] for entry in result["summary"]["against"]} == set(NAMES) - {"taylor_xla"}
    assert all(entry["relative_error"] < 1e-4 for entry in result["agreement"])
    pairs = {(entry["candidate"], entry["other"]) for entry in result["agreement"]}
    assert pairs == {("softmax_tiled", "dot_product_attention")}


def test_the_tables_have_times_growth_and_ratios(result):
    rows = [row for row in result["rows"] if row["length"] == 128]
    short = {**result, "rows": rows, "summary": summarize(rows, NAMES, PASSES, NAMES[0], 64)}
    whole, one = (tables.text(found) for found in (result, short))
    assert "| forward, ms | 64 | 128 | growth |" in whole
    assert whole.count("| N^") == one.count("| - |\n") == 2 * len(NAMES)
    assert f"| time over {NAMES[0]}'s | pass | faster from | 64 | 128 |" in whole
    assert "softmax_tiled agrees with dot_product_attention" in whole
    assert "| softmax, by tiles (based_jax, tiled) | fwd+bwd |" in whole


def test_the_figure_is_a_png(finished):
    assert (finished[1] / "ops.png").read_bytes().startswith(b"\x89PNG")


def test_skipped_cases_are_named_with_their_reason(tmp_path, capsys):
    path = tmp_path / "ops.json"
    flags = ["--lengths", "64,512", "--heads", "1", "--repeats", "1", "--memory-limit", "0.0015"]
    assert main(["ops", *flags, "--candidates", "dot_product_attention", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["status"] for row in rows] == ["measured"] * 2 + ["skipped"] * 2
    assert rows[-1]["reason"].startswith("needs 0.00")
    assert rows[-1]["seconds"] is None
    assert rows[-1]["temp_bytes"] > 0  # known from the compiler all the same
    assert f"skipped: {rows[-1]['reason']}" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_run_keeps_what_it_has(tmp_path, capsys, monkeypatch):
    def interrupted(self, length):
        if length > 64:
            raise KeyboardInterrupt
        measure(self, length)

    measure = Study.measure_length
    monkeypatch.setattr(Study, "measure_length", interrupted)
    path = tmp_path / "ops.json"
    flags = ["--lengths", "64,128", "--repeats", "1", "--candidates", "dot_product_attention"]
    assert main(["ops", *flags, "--json", str(path)]) == 130
    result = json.loads(path.read_text())
    assert not result["complete"]
    assert [row["length"] for row in result["rows"]] == [64, 64]
    assert "Interrupted" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_a_line_says_so(capsys, monkeypatch):
    monkeypatch.setattr(Study, "measure_length", lambda self, length: None)
    assert main(["ops", "--lengths", "64"]) == 0
    assert "left out: torch is not installed" in capsys.readouterr().out


def test_torch_rows_agree():
    pytest.importorskip("torch")
    from benchmarks.ops.torch_ops import torch_candidates

    inputs = Inputs(SHAPES["mqar"], 96)
    ours = {candidate.family: candidate for candidate in JAX_CANDIDATES}
    for candidate in torch_candidates():
        for direction in PASSES:
            programs = [c.prepare(inputs, direction) for c in (ours[candidate.family], candidate)]
            wanted, got = (program.to_numpy(program.call()) for program in programs)
            assert relative_error(wanted, got) < 1e-4


def test_relative_error():
    one = np.ones((2, 3), np.float32)
    assert relative_error([one, 4 * one], [one, 3 * one]) == 0.25
    assert relative_error([one], [one * np.nan]) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths", "0"], "--lengths = 0: expected at least 1"),
        (["--lengths", "12,x"], "expected N,N,..."),
        (["--lengths", ""], "at least one length"),
        (["--lengths", str(10**12)], "inputs alone"),
        (["--heads", "0"], "--heads = 0: expected at least 1"),
        (["--batch", "-1"], "--batch = -1"),
        (["--repeats", "two"], "--repeats"),
        (["--seconds", "nan"], "--seconds = nan: expected more than 0 seconds"),
        (["--memory-limit", "0"], "more than 0 GiB"),
        (["--shape", "7b"], "expected one of 'cpu', '360m'"),
        (["--candidates", "flash"], "--candidates = 'flash': expected one of 'taylor_xla'"),
        (["--json", "/no/such/folder/ops.json"], "cannot be written"),
        (["--plot", "ops.txt"], "ends in .png"),
        (["--unknown", "1"], "--unknown"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(flags, message, capsys):
    expect_one_line("ops", flags, message, capsys)


def test_checking_a_path_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="--plot"):
        main(["ops", "--json", str(tmp_path / "ops.json"), "--plot", "ops.txt"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_command(capsys):
    expect_one_line("opz", [], "opz", capsys)


def test_help_shows_units_and_defaults(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["ops", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("--seconds", "in seconds", "default: 60.0", "GiB", "--lengths"))
