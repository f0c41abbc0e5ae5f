"""The table of the faster backends, without a GPU: made times, and toys in the place of the kernels."""

import json
import time

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import backends, choices, comparison, tuning
from pallas_kernels.backends import HOPPER, LENGTHS, PORTABLE, ROWS_AND_HEADS, Backends, Size
from pallas_kernels.taylor_attention import mosaic_support
from tests.commands import run_here

HOPPER_GPUS = "9.0"
NEVER = 1e12
"""as the end of the process that watches this one: without it the command starts another, which measures"""
SIZES = [(rows, length) for rows in ROWS_AND_HEADS for length in LENGTHS]


def row(size: tuple[int, int], backend: str, seconds: float | None, value_size=64) -> dict:
    when = backends.trial(Size(*size, value_size), backend).columns["when"]
    found = {"when": when, "candidate": backend}
    if seconds is None:
        return found | {"status": "refused", "reason": "results differ by 1"}
    return found | {"status": "measured", "seconds": seconds, "reference_seconds": 2.0}


FASTER, EQUAL, SLOWER = 1.0, 1.97, 2.1


def made(seconds, sizes=SIZES, **changes):
    """A report with these times of the Hopper kernels, or of other sizes the portable ones' 2 s."""
    found = [row(size, PORTABLE, 2.0, **changes) for size in sizes]
    found += [row(size, HOPPER, seconds.get(size, 2.0), **changes) for size in sizes]
    return {"benchmark": "backends", "rows": found}


def table_of(*reports) -> list[dict]:
    found = [one for report in reports for one in choices.compared(report)]
    return choices.backend_rows(found, HOPPER_GPUS).get(backends.OP, [])


@given(
    st.fixed_dictionaries({size: st.sampled_from([FASTER, EQUAL, SLOWER]) for size in SIZES}),
    st.integers(1, 3000),
    st.integers(1, 60_000),
)
def test_it_is_taken_where_it_wins_and_does_not_lose_further_up(seconds, rows, length):
    """Of the most measured rows and heads that are no more than the call's."""
    table = table_of(made(seconds))
    below = max((n for n in ROWS_AND_HEADS if n <= rows), default=0)
    times = {n: seconds[below, n] for n in LENGTHS if below}
    since = [
        n for n, time in times.items() if time == FASTER and SLOWER not in [times[m] for m in times if m > n]
    ]
    facts = {"rows_and_heads": rows, "length": length}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "backends", lambda op: table)
        chosen = tuning.fastest(backends.OP, capability=HOPPER_GPUS, **facts, value_size=64)
        assert chosen == (HOPPER if length >= min(since, default=10**9) else PORTABLE)
        assert tuning.fastest(backends.OP, capability=HOPPER_GPUS, **facts, value_size=112) == PORTABLE
        assert tuning.fastest(backends.OP, capability="10.0", **facts, value_size=64) == PORTABLE


def test_equal_intervals_share_a_row():
    faster = dict.fromkeys(SIZES, FASTER)
    (found,) = table_of(made(faster))
    assert found == {
        "device": HOPPER_GPUS,
        "when": {"value_size": 64, "rows_and_heads": [16, 10**9], "length": [1024, 10**9]},
        "backend": HOPPER,
    }
    one, other = table_of(made({size: FASTER for size in SIZES if size[0] != 256}))
    assert [x["when"]["rows_and_heads"] for x in (one, other)] == [[16, 255], [1024, 10**9]]


def test_a_backend_that_does_not_run_or_differs_wins_nothing():
    refused = [row(size, HOPPER, None) for size in SIZES]
    assert table_of({"benchmark": "backends", "rows": refused}) == []


def test_the_later_of_two_reports_counts():
    faster = dict.fromkeys(SIZES, FASTER)
    later = table_of(made(faster), made({}, SIZES[:1]), made(faster, value_size=112))
    assert [x["when"]["value_size"] for x in later] == [64, 64, 112]
    assert [x["when"]["length"] for x in later if x["when"]["value_size"] == 64] == [
        [4096, 10**9],
        [1024, 10**9],
    ]


def test_the_table_is_found_and_its_format_is_ours():
    text = tuning.path(backends.OP, "backends.json").read_text()
    assert tuning.as_json(json.loads(text)) == text


def test_the_headline_and_its_neighbours_are_measured_first():
    found = backends.trials(Backends(out=None))  # type: ignore[arg-type]
    assert len(found) == 3 * len(SIZES)
    assert all([trial.candidate for trial in trials] == [PORTABLE, HOPPER] for trials in found)
    names = [trials[0].case.removeprefix("taylor_attention ") for trials in found]
    assert names[0] == "R256 N16384 V64"
    assert set(names[1:4]) == {"R64 N16384 V64", "R1024 N16384 V64", "R256 N4096 V64"}
    assert all(name.endswith("V64") for name in names[: len(SIZES)])


@pytest.fixture
def on_hopper(monkeypatch):
    """The command believes in a GPU; the backends are toys, sizes small."""
    monkeypatch.setattr(mosaic_support, "cannot_run", lambda: None)
    monkeypatch.setattr(backends, "ROWS_AND_HEADS", (2,))
    monkeypatch.setattr(backends, "LENGTHS", (8, 16))
    monkeypatch.setattr(
        backends, "function", lambda backend: lambda q, k, v: v if backend == PORTABLE else 1 + v
    )


def command(path, *flags: str) -> int:
    """Measure in this process, as the one that is watched does."""
    return backends.main(
        ["--out", str(path), "--value-sizes", "4", f"--until={time.time() + 600:.0f}", *flags]
    )


def test_the_command_measures_into_a_report(on_hopper, monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "disagreement", lambda *_: 0.0)
    monkeypatch.setattr(comparison, "measure", lambda calls, seconds: [2.0, 1.0][: len(calls)])
    assert command(tmp_path) == 0
    (found,) = table_of(json.loads((tmp_path / "backends.json").read_text()))
    assert found["when"]["length"] == [8, 10**9]


def test_the_command_compares_results(on_hopper, tmp_path):
    assert command(tmp_path, "--seconds", "0.001") == 0
    found = json.loads((tmp_path / "backends.json").read_text())
    assert all(x["reason"].startswith("results differ") for x in found["rows"] if x["candidate"] == HOPPER)
    assert table_of(found) == []


def test_flags_that_make_no_sense(on_hopper, tmp_path):
    with pytest.raises(ValueError, match=r"--value-sizes = \(0,\): expected positive numbers"):
        command(tmp_path, "--value-sizes", "0")


def test_arguments_are_what_the_kernels_take():
    q, k, v = backends.trial(Size(64, 1024, 112), HOPPER).arguments
    assert q.shape == k.shape == (4, 1024, 16, 16)
    assert v.shape == (4, 1024, 16, 112)
    assert {x.dtype for x in (q, k, v)} == {jnp.dtype("bfloat16")}


def test_elsewhere_one_line_and_status_2(tmp_path, capsys):
    done = run_here(backends.PROGRAM, backends.main, ["--out", tmp_path, "--until", NEVER], capsys)
    assert done.status == 2
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("python -m pallas_kernels.backends: ")
    assert "runs on Hopper GPUs only" in last or "needs jax 0.11 or newer" in last
