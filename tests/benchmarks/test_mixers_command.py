"""`python -m benchmarks mixers` on tiny sizes: JSON, table, states, skipping."""

import json

import jax
import numpy as np
import pytest

from based_jax import mixers
from based_jax.ops.core.stream import Stream
from benchmarks.__main__ import main
from benchmarks.ops.mixers import DECODE, PASSES, measured

NAMES = ["short_conv", "long_conv"]
LENGTHS = [8, 16, 32]


@pytest.mark.slow
def test_every_case_has_its_row(tmp_path):
    flags = ["--d-model", "8", "--lengths", "32,8,16", "--fit-from", "8", "--samples", "2"]
    outputs = ["--json", str(tmp_path / "mixers.json"), "--mixers", ",".join(NAMES)]
    assert main(["mixers", *flags, *outputs]) == 0
    result = json.loads((tmp_path / "mixers.json").read_text())
    assert (result["benchmark"], result["schema"], result["complete"]) == ("mixers", 2, True)
    options = {candidate["name"]: candidate["options"] for candidate in result["candidates"]}
    assert options == {"short_conv": {}, "long_conv": {"l_max": 32}}
    cases = [(row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [(n, name, direction) for n in LENGTHS for name in NAMES for direction in PASSES]
    for row in result["rows"]:
        assert (row["status"], row["samples"]) == ("measured", 2)
        tokens = 1 if row["pass"] == DECODE else row["length"]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"])
        mixer = measured(row["candidate"], 8, 32).mixer
        leaves = jax.tree.leaves(mixer.init_state(1, row["length"]))
        assert row["state_bytes"] == sum(leaf.nbytes for leaf in leaves)
        assert row["state_floats"] == mixer.state_size(row["length"])


def test_a_mixer_without_a_state_makes_no_steps(monkeypatch):
    registered = mixers.info("short_conv")
    monkeypatch.setattr(
        mixers, "info", lambda name: mixers.MixerInfo(**vars(registered) | {"stateful": False})
    )
    mixer = measured("short_conv", 8, 8)
    assert mixer.candidate().lacks == {DECODE: "keeps no state"}
    assert mixer.state_size(8) == {"state_bytes": None, "state_floats": None}


@pytest.mark.slow
@pytest.mark.parametrize("name", mixers.names())
def test_every_mixer_can_be_traced(name):
    """Also those that read token ids."""
    case, x = measured(name, 16, 8), jax.ShapeDtypeStruct((1, 8, 16), np.float32)
    params = jax.eval_shape(case.mixer.init, jax.random.key(0), x)
    y, _ = jax.eval_shape(lambda params, x: case.mixer.apply(params, x, **case.ids(x)), params, x)
    assert y.shape == x.shape


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_that_of_the_last_position_however_often_it_is_timed(name):
    program = measured(name, 8, 4).prepare(4, DECODE)
    (first, _), (second, state) = program.call(), program.call()
    assert np.isfinite(first).all()
    streams = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Stream))
    assert [int(s.length[0]) for s in streams if isinstance(s, Stream)] == [3]
    if name == "long_conv":  # writes the same slot of its ring anew
        np.testing.assert_array_equal(first, second)
