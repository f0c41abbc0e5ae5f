"""`python -m benchmarks ops` on lengths of a second: JSON, tables, skipping, interruption."""

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.ops.candidates import CANDIDATES, PASSES
from benchmarks.study import Study

NAMES = ["taylor_xla", "softmax_prefill"]  # the quadratic form compiles slowly
NUMBERS = {"seconds", "spread", "seconds_min", "seconds_max", "compile_seconds"}
BYTES = {"temp_bytes", "needed_bytes"}
OTHERS = {"candidate", "pass", "length", "status", "reason", "samples", "calls_per_sample", "cold"}


def run(path, *flags, status=0):
    """The report of a run, also of one that is interrupted."""
    assert main(["ops", *flags, "--json", str(path / "ops.json")]) == status
    return json.loads((path / "ops.json").read_text())


def test_a_complete_run(tmp_path):
    flags = ["--lengths", "128,64,128", "--fit-from", "64", "--samples", "2"]
    result = run(tmp_path, *flags, "--candidates", ",".join(NAMES))
    envelope = "benchmark schema complete command machine settings candidates rows agreement summary notes"
    assert set(result) == set(envelope.split())
    assert (result["benchmark"], result["schema"], result["complete"]) == ("ops", 2, True)
    assert result["command"].startswith("python -m benchmarks ops --lengths 128,64,128")
    assert {"cpu", "cores", "jax", "python", "date"} <= set(result["machine"])
    assert result["settings"]["lengths"] == [64, 128]  # sorted, once each
    widths = {candidate["name"]: candidate["query_key_channels"] for candidate in result["candidates"]}
    assert widths == dict(zip(NAMES, (16, 64), strict=True))

    cases = [(row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [(n, name, direction) for n in (64, 128) for name in NAMES for direction in PASSES]
    for row in result["rows"]:
        assert set(row) == NUMBERS | BYTES | OTHERS
        if (row["candidate"], row["pass"]) == ("softmax_prefill", "forward_backward"):
            assert (row["status"], row["reason"]) == ("skipped", "a prompt is read forward only")
            continue
        assert (row["status"], row["samples"]) == ("measured", 2)
        assert all(row[key] >= 0 for key in NUMBERS)
        assert all(row[key] > 0 for key in BYTES)


def test_skipped_cases_are_named_with_their_reason(tmp_path, capsys):
    flags = ["--lengths", "64,512", "--samples", "1", "--memory-limit", "0.004"]
    rows = run(tmp_path, *flags, "--candidates", "dot_product_attention")["rows"]
    assert [row["status"] for row in rows] == ["measured"] * 2 + ["skipped"] * 2
    assert rows[-1]["reason"].startswith("needs 0.0")
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
    flags = ["--lengths", "64,128", "--samples", "1", "--candidates", "dot_product_attention"]
    result = run(tmp_path, *flags, status=130)
    assert not result["complete"]
    assert [row["length"] for row in result["rows"]] == [64, 64]
    assert "Interrupted" in capsys.readouterr().out


def test_torch_agrees():
    pytest.importorskip("torch")
    ours, theirs = (c for c in CANDIDATES if c.name in ("softmax_xla", "torch_sdpa"))
    y, *gradients = ours.prepare(96, PASSES[1]).call()
    for got, wanted in zip(theirs.prepare(96, PASSES[1]).call(), (y, *gradients), strict=True):
        np.testing.assert_allclose(got.detach().transpose(1, 2), wanted, rtol=1e-4, atol=1e-4)
