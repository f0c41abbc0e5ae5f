"""`python -m benchmarks ops` on lengths of a second: JSON, tables, skipping, interruption."""

import importlib.util
import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.ops.candidates import JAX_CANDIDATES, PASSES, Inputs
from benchmarks.ops.shapes import SHAPES
from benchmarks.study import Study, relative_error

NAMES = ["taylor_xla", "dot_product_attention", "softmax_tiled"]  # the quadratic form compiles slowly
NUMBERS = {"seconds", "spread", "seconds_min", "seconds_max", "compile_seconds"}
BYTES = {"temp_bytes", "needed_bytes"}
OTHERS = {"candidate", "pass", "length", "status", "reason", "samples", "calls_per_sample", "cold"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """One complete run's report."""
    path = tmp_path_factory.mktemp("ops") / "ops.json"
    flags = ["--lengths", "128,64,128", "--fit-from", "64", "--repeats", "2", "--shape", "mqar"]
    assert main(["ops", *flags, "--json", str(path), "--candidates", ",".join(NAMES)]) == 0
    return json.loads(path.read_text())


def test_the_envelope(result):
    envelope = "benchmark schema complete command machine settings candidates rows agreement summary notes"
    assert set(result) == set(envelope.split())
    assert (result["benchmark"], result["schema"], result["complete"]) == ("ops", 2, True)
    assert result["command"].startswith("python -m benchmarks ops --lengths 128,64,128")
    assert {"cpu", "cores", "jax", "python", "date"} <= set(result["machine"])
    assert result["settings"]["lengths"] == [64, 128]  # sorted, once each
    assert [result["settings"][key] for key in ("batch", "heads", "key_size", "value_size")] == [1, 1, 16, 64]
    widths = {candidate["name"]: candidate["query_key_channels"] for candidate in result["candidates"]}
    assert widths == {"taylor_xla": 16, "dot_product_attention": 64, "softmax_tiled": 64}


def test_every_case_has_its_row(result):
    cases = [(row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [(n, name, direction) for n in (64, 128) for name in NAMES for direction in PASSES]
    for row in result["rows"]:
        assert set(row) == NUMBERS | BYTES | OTHERS | {"peak_rss_bytes"}
        assert (row["status"], row["samples"]) == ("measured", 2)
        assert all(row[key] >= 0 for key in NUMBERS)
        assert all(row[key] > 0 for key in BYTES)


def test_summary_and_agreement(result):
    assert [entry["candidate"] for entry in result["summary"]["growth"][::2]] == NAMES
    assert all(entry["time_exponent"] is not None for entry in result["summary"]["growth"])
    assert {entry["other"] for entry in result["summary"]["against"]} == set(NAMES) - {"taylor_xla"}
    assert all(entry["relative_error"] < 1e-4 for entry in result["agreement"])
    pairs = {(entry["candidate"], entry["other"]) for entry in result["agreement"]}
    assert pairs == {("softmax_tiled", "dot_product_attention")}


def test_skipped_cases_are_named_with_their_reason(tmp_path, capsys):
    path = tmp_path / "ops.json"
    flags = ["--lengths", "64,512", "--shape", "mqar", "--repeats", "1", "--memory-limit", "0.0015"]
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


def test_torch_agrees():
    pytest.importorskip("torch")
    from benchmarks.ops import torch_ops

    inputs, (ours,) = Inputs(SHAPES["mqar"], 96), [c for c in JAX_CANDIDATES if c.name == "softmax_xla"]
    for direction in PASSES:
        programs = [c.prepare(inputs, direction) for c in (ours, torch_ops.candidate())]
        wanted, got = (program.to_numpy(program.call()) for program in programs)
        assert relative_error(wanted, got) < 1e-4


def test_relative_error():
    one = np.ones((2, 3), np.float32)
    assert relative_error([one, 4 * one], [one, 3 * one]) == 0.25
    assert relative_error([one], [one * np.nan]) is None
