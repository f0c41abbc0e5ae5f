"""Arguments of the authors' classes: accepted or refused as the tables say, and others are errors."""

import ast
import math
from typing import Any

import pytest

from based_jax import mixers
from based_jax.convert import from_torch
from based_jax.convert.options.check import tables
from based_jax.convert.references.arguments import ALIASES
from based_jax.convert.references.linear_attention import FEATURE_MAPS, SHORT_NAMES, feature_map
from based_jax.convert.references.table import MIXERS, REFERENCES

NO_CLASS = ("op ", "checkpoint", "training trace", "zoology.model.LanguageModel")
"""References that are no class, or that have a check of their own."""
CLASSES = [name for name in REFERENCES if not name.startswith(NO_CLASS)]
WIDTH = 64
REQUIRED = {"num_heads": 2, "l_max": 16, "kernel_size": 3, "window_size": 4}
WHEN_GIVEN = {"window_size": (3, -1), "l_max": 16, "d_ssm": 64, "num_kv_heads": 1, "num_heads": 2}
"""Values of arguments whose default does not work there, or is None."""


def rows(path: str) -> dict[str, Any]:
    return dict(tables()[ALIASES.get(path, path)])


def built_with(path: str, **given: Any) -> dict[str, Any]:
    """A meta with the arguments that have no default, and these."""
    table = rows(path)
    needed = {name: value for name, value in REQUIRED.items() if name in table and not table[name].default}
    if path.endswith("SBLocalAttention"):  # whose default fails there
        needed["window_size"] = 4
    return {"module": path, "d_model": WIDTH, **needed, **given}


def build(path: str, **given: Any) -> mixers.Mixer:
    """Our mixer for a class that was built with these arguments."""
    spec = MIXERS[path].spec(built_with(path, **given))
    return mixers.make(spec.mixer, d_model=WIDTH, **spec.options)


@pytest.mark.parametrize("path", CLASSES)
def test_unknown_arguments_are_errors(path):
    name = path.rpartition(".")[2]
    with pytest.raises(ValueError, match=rf"argument of {name} = 'no_such_argument': expected one of"):
        from_torch(built_with(path, no_such_argument=1), {})


@pytest.mark.parametrize("path", MIXERS)
def test_arguments_that_we_have_are_accepted(path):
    """Each by itself, with its default or with the value that it needs."""
    for name, option in rows(path).items():
        if option.status not in ("same", "renamed") or not option.default or name == "feature_map":
            continue
        default = option.default.replace("inf", "1e999")
        value = ast.literal_eval(default)
        if value is None or value == (-1, -1):
            value = WHEN_GIVEN.get(name)
        if path.endswith("SBLocalAttention") and name == "window_size":
            value = 4
        if value is None:
            continue
        given = {name: value}
        if path.endswith("RWKV7Attention") and name == "num_heads":
            given["head_dim"] = None
        build(path, **given)


@pytest.mark.parametrize("path", MIXERS)
def test_our_names_are_options_of_the_mixer(path):
    spec = MIXERS[path].spec(built_with(path))
    known = {*mixers.options(spec.mixer), "d_model"}
    if spec.mixer == "attention":  # with a window
        known |= {*mixers.options("sliding_window")}
    for option in rows(path).values():
        assert set(filter(None, option.ours.split(", "))) <= known, option


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("zoology.mixers.based.Based", {"num_key_value_heads": 1}, "num_key_value_heads = 1: expected 12"),
        ("zoology.mixers.based.Based", {"causal": False}, "causal = False: expected true"),
        ("zoology.mixers.hyena.Hyena", {"num_blocks": 2}, "num_blocks = 2: expected 1"),
        ("zoology.mixers.hyena.Hyena", {"num_heads": 2}, "num_heads = 2: expected 1"),
        ("zoology.mixers.hyena.Hyena", {"bidirectional": True}, "bidirectional = True: expected False"),
        ("zoology.mixers.h3.h3.H3", {"use_fast_fftconv": True}, "use_fast_fftconv = True: expected False"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"disc": "dss"}}, "'disc'.* = 'dss': expected one of"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"lr": 0.0}}, "'lr'.* = 0.0: expected no 0"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"mod": 1}}, "key of kernel_args = 'mod'"),
        ("zoology.mixers.delta_net.DeltaNet", {"use_short_conv": False}, "use_short_conv = False"),
        (
            "zoology.mixers.gated_delta_net.GatedDeltaNet",
            {"expand_v": 1.5},
            "expand_v = 1.5: expected",
        ),
        ("zoology.mixers.gla.GatedLinearAttention", {"gate_fn": "tanh"}, "gate_fn = 'tanh': expected one of"),
        (
            "zoology.mixers.nystromformer.NystromAttention",
            {"conv_kernel_size": 3},
            "num_heads = 16",
        ),
        ("zoology.mixers.scatterbrain.attn.SBLocalAttention", {"num_heads_kv": 1}, "num_heads_kv = 1"),
        ("zoology.mixers.base_conv.BaseConv", {"kernel_size": [3, -1]}, "layer_idx = None: expected 0 to 1"),
        ("based.models.mixers.mha.MHA", {"use_alibi": True}, "use_alibi = True: expected False"),
        (
            "based.models.mixers.linear_attention.LinearAttention",
            {"parallel_implementation": "tk"},
            "parallel_implementation = 'tk'",
        ),
    ],
)
def test_what_cannot_be_is_refused(path, given, message):
    with pytest.raises(ValueError, match=message):
        from_torch(built_with(path, **given), {})


def test_every_feature_map_has_a_table():
    paths = [path for path in tables() if path.startswith("zoology.mixers.feature_maps.")]
    assert {path.rpartition(".")[2] for path in paths} == set(FEATURE_MAPS) >= set(SHORT_NAMES.values())


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_options_of_feature_maps(name):
    """A map accepts the arguments of all, and ours follow from those that its table says it reads."""
    table = next(table for path, table in tables().items() if path.endswith(f".{name}"))
    given = {"temp": 2.0, "eps": 0.1, "fullspace": True, "head_dim_idx": -1, "input_dim": 8}
    options = feature_map(name, given, 8)
    ours = {option.ours for option in table.values() if option.status == "renamed"}
    assert ("feature_scale" in options) == (table["temp"].ours == "feature_scale")
    assert ("feature_floor" in options) == ("feature_floor" in ours)
    mixers.make("linear_attention", d_model=8, feature_dim=8, **options)
    with pytest.raises(ValueError, match=r"head_dim_idx'.* = -2: expected -1 or 3"):
        feature_map(name, {"head_dim_idx": -2}, 8)


def test_taylor_maps_of_another_width_are_scaled():
    options = feature_map("taylor_exp", {"input_dim": 16}, 8)
    assert math.isclose(options["feature_scale"] ** 4, 0.5)
    assert feature_map("taylor_exp", {"input_dim": 8, "temp": 3.0}, 8) == {}
