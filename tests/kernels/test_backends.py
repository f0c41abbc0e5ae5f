"""The table of the faster backends, without a GPU: made times, and toys in the place of the kernels."""

import json

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import backends, tuning
from pallas_kernels.backends import HOPPER, LENGTHS, PORTABLE, ROWS_AND_HEADS, Result, Size
from pallas_kernels.taylor_attention import mosaic_support
from tests.subprocesses import run_module

H200 = "NVIDIA H200"
SIZES = [(rows, length) for rows in ROWS_AND_HEADS for length in LENGTHS]


def made(wins, value_size=64):
    """Results where the Hopper kernels are twice as fast at `wins`, and hardly faster elsewhere."""
    return [
        Result(Size(*size, value_size), {PORTABLE: 2.0, HOPPER: 1.0 if size in wins else 1.97}, {})
        for size in SIZES
    ]


@given(st.sets(st.sampled_from(SIZES)), st.integers(1, 3000), st.integers(1, 60_000))
def test_a_size_goes_with_the_largest_measured_one_below_it(wins, rows, length):
    table = backends.rows(made(wins), H200)
    below = [max((n for n in sizes if n <= value), default=0) for sizes, value in
             ((ROWS_AND_HEADS, rows), (LENGTHS, length))]  # fmt: skip
    facts = {"rows_and_heads": rows, "length": length}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "backends", lambda op: table)
        chosen = tuning.fastest(backends.OP, device=H200, **facts, value_size=64)
        assert chosen == (HOPPER if tuple(below) in wins else PORTABLE)
        assert tuning.fastest(backends.OP, device=H200, **facts, value_size=112) == PORTABLE
        assert tuning.fastest(backends.OP, device="NVIDIA H100", **facts, value_size=64) == PORTABLE


def test_a_row():
    (row,) = backends.rows(made({(ROWS_AND_HEADS[0], LENGTHS[-1])}), H200)
    assert row == {
        "device": H200,
        "when": {"rows_and_heads": [16, ROWS_AND_HEADS[1] - 1], "length": [16384, 10**9], "value_size": 64},
        "backend": HOPPER,
    }


def test_a_backend_that_does_not_run_or_differs_wins_nothing():
    results = [Result(Size(*size, 64), {PORTABLE: 2.0}, {HOPPER: "results differ by 1"}) for size in SIZES]
    assert backends.rows(results, H200) == []
    assert backends.describe(results[0]) == (
        "taylor_attention R16 N1024 V64: pallas 2000000.0 us, mosaic: results differ by 1"
    )


def test_what_was_not_measured_stays():
    def row(device, **when):
        return {"device": device, "when": when, "backend": HOPPER}

    others = [row("NVIDIA H100", value_size=64), row(H200, value_size=128)]
    old = [row(H200, value_size=64), others[0], row(H200, length=[1, 9]), others[1]]
    results = made(SIZES[:1])
    assert backends.replaced(old, results, H200) == [*others, *backends.rows(results, H200)]


def test_the_table_is_found_and_its_format_is_ours():
    text = tuning.path(backends.OP, "backends.json").read_text()
    assert tuning.as_json(json.loads(text)) == text


@pytest.fixture
def on_hopper(tmp_path, monkeypatch):
    """The command believes in a GPU; contestants are toys, sizes small, the table a file of its own."""
    path = tmp_path / "backends.json"
    path.write_text("[]\n")
    monkeypatch.setattr(tuning, "path", lambda op, name: path)
    monkeypatch.setattr(tuning, "device_kind", lambda: H200)
    monkeypatch.setattr(mosaic_support, "cannot_run", lambda: None)
    monkeypatch.setattr(backends, "ROWS_AND_HEADS", (2,))
    monkeypatch.setattr(backends, "LENGTHS", (8, 16))
    functions = {PORTABLE: lambda q, k, v: v, HOPPER: lambda q, k, v: 1 + v}
    monkeypatch.setattr(backends, "functions", lambda: functions)
    return path


def test_the_command_measures_and_writes(on_hopper, monkeypatch, capsys):
    monkeypatch.setattr(backends, "contest", lambda *_: ({PORTABLE: 2.0, HOPPER: 1.0}, {}))
    assert backends.main(["--seconds", "0.001", "--value-sizes", "4", "--write"]) == 0
    assert [row["when"]["length"] for row in json.loads(on_hopper.read_text())] == [[8, 15], [16, 10**9]]
    printed = capsys.readouterr().out
    assert printed.count("taylor_attention R2 N") == 2
    assert f"wrote {on_hopper}" in printed


def test_the_command_compares_results_and_writes_only_on_request(on_hopper, capsys):
    assert backends.main(["--seconds", "0.001", "--value-sizes", "4"]) == 0
    assert on_hopper.read_text() == "[]\n"
    assert "mosaic: results differ by" in capsys.readouterr().out


def test_what_was_measured_before_a_crash_is_written(on_hopper, monkeypatch):
    found = [({PORTABLE: 2.0, HOPPER: 1.0}, {})]
    monkeypatch.setattr(backends, "contest", lambda *_: found.pop())
    with pytest.raises(IndexError):
        backends.main(["--value-sizes", "4", "--write"])
    assert [row["when"]["length"] for row in json.loads(on_hopper.read_text())] == [[8, 15]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seconds", "0"], "--seconds 0.0: expected a positive number"),
        (["--value-sizes", "0"], r"--value-sizes \(0,\): expected positive numbers"),
    ],
)
def test_flags_that_make_no_sense(on_hopper, flags, message):
    with pytest.raises(ValueError, match=message):
        backends.main(flags)


def test_arguments_are_what_the_kernels_take():
    q, k, v = backends.arguments(Size(64, 1024, 112))
    assert q.shape == k.shape == (4, 1024, 16, 16)
    assert v.shape == (4, 1024, 16, 112)
    assert {x.dtype for x in (q, k, v)} == {jnp.dtype("bfloat16")}
    assert set(backends.functions()) == {PORTABLE, HOPPER}


def test_elsewhere_one_line_and_status_2():
    done = run_module("pallas_kernels.backends")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("python -m pallas_kernels.backends: ")
    assert "runs on Hopper GPUs only" in last or "needs jax 0.11 or newer" in last
