"""The section `tune` and the choice of block sizes, without a GPU: toy functions."""

from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import choices
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.journal import MARKS
from benchmarks.gpu.sections import stopwatch, tune
from benchmarks.gpu.sections.session import Step
from pallas_kernels import tuning
from tests.benchmarks.test_gpu_command import session
from tests.kernels.toy import Variant

DEFAULT, WIDE, NARROW = Variant(), Variant(warps=8), Variant(warps=2)
ANY = {"device": "any", "when": {"size": [1, 64]}, "variant": {"chunk": 64, "warps": 4}}
AMPERE = {"device": "8.0", "when": {"size": 4}, "variant": {"chunk": 32, "warps": 4}}

FUNCTIONS = {
    DEFAULT: lambda x, n: (x + n, x),
    WIDE: lambda x, n: (n + x, x),
    NARROW: lambda x, n: (x * 1.1 + n, x),  # wrong
    Variant(warps=1): lambda x, n: (x / 0 + n, x),  # not finite
}


def make(shape: str, variant: Variant = DEFAULT) -> Case:
    arguments = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.int32)
    given = "toy", "gram", shape, variant, FUNCTIONS[variant], arguments
    return Case(*given, fill={1: 1}, facts={"size": 4}, carried={0: 0})


def test_candidates_take_turns_with_the_current_choice_and_wrong_ones_are_refused():
    case = replace(make("N4"), others=lambda: (make("N4", variant) for variant in FUNCTIONS))
    s = session()
    steps = [
        Step(name, candidates=lambda s, c=cases: tune._rows(c, s))
        for name, cases in tune.batches([case.candidates()])
    ]
    stopwatch.run(s, steps)
    rows = {row["what"]: row for row in s.rows if row["status"] not in MARKS}
    assert [row["status"] for row in rows.values()].count("measured") == 2
    assert rows[str(NARROW)]["reason"].startswith("ValueError: results differ by 0.0")
    assert rows[str(Variant(warps=1))]["reason"] == "ValueError: results differ by inf of the largest"
    assert (rows[str(WIDE)]["op"], rows[str(WIDE)]["when"]) == ("toy", {"size": 4})
    assert rows[str(WIDE)]["variant"] == asdict(WIDE)
    assert rows[str(DEFAULT)]["ratio_to_first"] == 1


def test_arguments_that_the_call_overwrites_are_carried_on():
    start = jnp.zeros(3)
    prepared = stopwatch.jitted(lambda x, y: (y, x + y), [start, jnp.ones(3)], {0: 1})
    prepared.compile()
    for expected in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(prepared.call()[1], np.full(3, expected))
    np.testing.assert_array_equal(start, np.zeros(3))


def test_kernels_are_measured_on_full_windows_and_whole_rows():
    """With the zeros that whole numbers are otherwise they would have nothing to read."""
    (window,) = catalog.cases("window_step/step W64 H16 G16 K64 bfloat16")
    assert {i for i, x in enumerate(window.arguments) if x.dtype == jnp.int32} == set(window.fill)
    assert min(window.fill.values()) >= 64
    (packed,) = catalog.cases("taylor_attention/outputs K16 V64 bfloat16 packed")
    starts, counts = (packed.arguments[i] for i in packed.fill)
    assert list(packed.fill.values()) == [-1, starts.shape[1]]
    assert (starts.dtype, counts.shape) == (jnp.int32, starts.shape[:1])
    x, n = tune.example(make("N4"))
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert n.tolist() == [1] * 4


def test_the_headline_comes_first_and_what_runs_on_request_last():
    cases = sorted(catalog.cases(), key=tune.rank)
    assert {case.shape for case in cases[:12]} == {"K16 V64 bfloat16", "K16 V64 bfloat16 packed"}
    others = {case.op for case in cases[12:62]}
    assert others == {"taylor_step", "window_attention", "window_step", "conv_step", "row_products"}
    on_request = [case.on_request for case in cases]
    assert on_request == sorted(on_request)


def test_every_candidate_is_another_program():
    """Tiles wider than the values are cut to them."""
    for shape, tiles in (("V64", {32, 64}), ("V32", {64}), ("V128", {32, 64, 128})):
        (case,) = catalog.cases(f"outputs K16 {shape} bfloat16 V")
        found = [other.variant for other in case.candidates()]
        assert found[0] == case.variant
        assert {variant.value_tile for variant in found} == tiles
        assert len({str(variant) for variant in found}) == len(found)


def variants(*chunks_and_warps: tuple[int, int]) -> list[Case]:
    found = [Variant(chunk=chunk, warps=warps) for chunk, warps in chunks_and_warps]
    return [Case("toy", "gram", "N4", variant, print, ()) for variant in found]


def test_what_differs_least_from_the_current_choice_comes_first():
    one, two = variants((64, 4), (32, 2), (64, 8), (32, 4)), variants((32, 4), (64, 4), (64, 8))
    assert [cases for _, cases in tune.batches([one, two])] == [
        [one[0], one[2], one[3]],
        two[:2],
        one[:2],
        [two[0], two[2]],
    ]
    many = variants((64, 4), *((chunk, 4) for chunk in range(tune.TOGETHER + 1)))
    assert [len(cases) for _, cases in tune.batches([many])] == [tune.TOGETHER + 1, 2]


# The choice.


def row(shape: str, variant: Variant, ratio: float | None) -> dict[str, Any]:
    found = {"step": f"toy/gram {shape}, 1 changed, from 0", "op": "toy"}
    found |= {"when": {"size": 4}, "variant": asdict(variant)}
    if ratio is None:
        return {**found, "status": "failed", "reason": "no"}
    return {**found, "status": "measured", "seconds": 2.0 * ratio, "ratio_to_first": ratio}


def chosen(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return choices.tuning_rows(rows, "9.0").get("toy", [])


def test_the_fastest_variant_becomes_a_row(monkeypatch):
    first = [row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.9), row("N4", NARROW, 0.5)]
    (found,) = chosen(*first, row("N4", DEFAULT, 1.0))
    assert found == {"device": "9.0", "when": {"size": 4}, "variant": asdict(NARROW)}
    monkeypatch.setattr(tuning, "table", lambda op: choices.with_row([AMPERE, ANY], found))
    assert tuning.choose("toy", Variant, capability="9.0", size=4) == NARROW
    assert tuning.choose("toy", Variant, capability="9.0", size=5) == DEFAULT


def test_a_row_is_best_over_all_shapes_that_share_its_conditions():
    first = [row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.9), row("N4", NARROW, 0.5)]
    second = [row("N8", DEFAULT, 1.0), row("N8", WIDE, 0.8), row("N8", NARROW, None)]
    (found,) = chosen(*first, *second)
    assert found["variant"] == asdict(WIDE)
    assert chosen(*first, row("N8", DEFAULT, 1.0), row("N8", WIDE, 1.3), row("N8", NARROW, 2.1)) == []


def test_a_gain_that_may_be_noise_changes_nothing():
    assert chosen(row("N4", DEFAULT, 1.0), row("N4", WIDE, 0.99)) == []
    assert chosen(row("N4", WIDE, None)) == []


def test_a_row_goes_before_those_that_might_hold_instead():
    new = {"device": "9.0", "when": {"size": 4}, "variant": {"warps": 8}}
    broad = {**new, "when": {"size": [1, 9]}}
    older = {**new, "variant": {"warps": 1}}
    assert choices.with_row([AMPERE, ANY], new) == [AMPERE, new, ANY]
    assert choices.with_row([AMPERE, broad, ANY], new) == [AMPERE, new, broad, ANY]
    assert choices.with_row([broad, older, ANY], new) == [broad, new, ANY]
    assert choices.with_row([], new) == [new]
