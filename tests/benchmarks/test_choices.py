"""The table of the faster backends, from made reports of `benchmarks gpu`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import choices
from pallas_kernels import tuning

HOPPER_GPUS = "9.0"
OP, PORTABLE, HOPPER = "taylor_attention", "pallas", "mosaic"
ROWS_AND_HEADS, LENGTHS = (16, 64, 256, 1024), (1024, 4096, 16384)
SIZES = [(rows, length) for rows in ROWS_AND_HEADS for length in LENGTHS]
FASTER, EQUAL, SLOWER = 1.0, 1.97, 2.1


def made(seconds, sizes=SIZES, section="forward", **facts):
    """A report with these times of the Hopper kernels (else 2 s), and 2 s of the portable ones."""
    rows = []
    for size in sizes:
        numbers = {"batch": size[0] // 16, "heads": 16, "length": size[1], **facts}
        for name, time in ((PORTABLE, 2.0), (HOPPER, seconds.get(size, 2.0))):
            status = {"status": "measured", "seconds": time} if time else {"status": "failed"}
            rows.append({"section": section, "step": str(size), "what": name, **numbers, **status})
    return {"benchmark": "gpu", "rows": rows}


def table_of(*reports) -> list[dict]:
    found = [one for report in reports for one in choices.compared(report)]
    return choices.backend_rows(found, HOPPER_GPUS).get(OP, [])


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
        chosen = tuning.fastest(OP, capability=HOPPER_GPUS, **facts, value_size=64)
        assert chosen == (HOPPER if length >= min(since, default=10**9) else PORTABLE)
        assert tuning.fastest(OP, capability=HOPPER_GPUS, **facts, value_size=112) == PORTABLE
        assert tuning.fastest(OP, capability="10.0", **facts, value_size=64) == PORTABLE


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


def test_a_backend_that_does_not_run_wins_nothing():
    assert table_of(made(dict.fromkeys(SIZES, None))) == []


def test_the_later_of_two_reports_counts():
    faster = dict.fromkeys(SIZES, FASTER)
    later = table_of(made(faster), made({}, SIZES[:1]), made(faster, section="wide", value_size=112))
    assert [x["when"]["value_size"] for x in later] == [64, 64, 112]
    assert [x["when"]["length"] for x in later if x["when"]["value_size"] == 64] == [
        [4096, 10**9],
        [1024, 10**9],
    ]
