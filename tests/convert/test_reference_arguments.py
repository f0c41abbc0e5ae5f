"""Arguments of the authors' classes: accepted or refused as the tables say, and others are errors."""

import math
import re
from typing import Any

import pytest

from based_jax import mixers
from based_jax.convert import from_torch
from based_jax.convert.options import default_of, tables
from based_jax.convert.reference_modules import REFERENCES
from based_jax.convert.references.mixers import (
    ALIASES,
    FEATURE_MAPS,
    MIXERS,
    SHORT_NAMES,
    expect_arguments,
    feature_map,
)
from tests.convert.random_models import changed

NO_CLASS = ("op ", "checkpoint", "training trace", "zoology.model.LanguageModel")
"""References that are no class, or that have a check of their own."""
CLASSES = [name for name in REFERENCES if not name.startswith(NO_CLASS)]
WIDTH = 64
REQUIRED = {"num_heads": 2, "l_max": 16, "kernel_size": 3, "window_size": 4}
CAUSAL = "mha.MHA"
"""End of paths of classes that are only taken with `causal`."""


def rows(path: str) -> dict[str, Any]:
    return dict(tables()[ALIASES.get(path, path)])


def built_with(path: str, **given: Any) -> dict[str, Any]:
    """A meta with the arguments that have no default, and these."""
    table = rows(path)
    needed = {name: value for name, value in REQUIRED.items() if name in table and not table[name].default}
    if path.endswith("SBLocalAttention"):  # whose default fails there
        needed["window_size"] = 4
    if path.endswith(CAUSAL):
        needed["causal"] = True
    return {"module": path, "d_model": WIDTH, **needed, **given}


def build(path: str, **given: Any) -> mixers.Mixer:
    """Our mixer for a class that was built with these arguments."""
    spec = MIXERS[path].spec(built_with(path, **given))
    return mixers.make(spec.mixer, d_model=WIDTH, **spec.options)


def test_unknown_arguments_are_errors():
    for path in CLASSES:
        name = path.rpartition(".")[2]
        with pytest.raises(ValueError, match=rf"argument of {name} = 'no_such_argument': expected one of"):
            from_torch(built_with(path, no_such_argument=1), {})


def test_what_cannot_be_is_refused():
    for path, given, message in [
        ("zoology.mixers.based.Based", {"num_key_value_heads": 1}, "num_key_value_heads = 1: expected 12"),
        ("zoology.mixers.based.Based", {"causal": False}, "causal = False: expected true"),
        ("zoology.mixers.hyena.Hyena", {"num_blocks": 2}, "num_blocks = 2: expected 1"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"disc": "dss"}}, "disc = 'dss': expected 'bilinear'"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"lr": 0.0}}, "'lr'.* = 0.0: expected no 0"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"mod": 1}}, "entry of kernel_args = 'mod'"),
        ("zoology.mixers.h3.h3.H3", {"kernel_args": {"l_max": 5}}, "'l_max'.* = 5: expected none with mode"),
        (
            "zoology.mixers.h3.h3.H3",
            {"kernel_args": {"mode": "ema", "disc": "bilinear"}},
            "'disc'.* = 'bilinear': expected none with mode 'ema'",
        ),
        ("zoology.mixers.gated_delta_net.GatedDeltaNet", {"expand_v": 1.5}, "expand_v = 1.5: expected"),
        ("zoology.mixers.gla.GatedLinearAttention", {"gate_fn": "tanh"}, "gate_fn = 'tanh': expected one of"),
        ("zoology.mixers.base_conv.BaseConv", {"kernel_size": [3, -1]}, "layer_idx = None: expected 0 to 1"),
        ("based.models.mixers.mha.MHA", {"causal": None}, "causal = False: expected true"),
        ("zoology.mixers.based.Based", {"feature_kwargs": {"tmp": 2.0}}, "entry of feature_kwargs = 'tmp'"),
        (
            "zoology.mixers.based.Based",
            {"feature_name": "performer", "feature_kwargs": {"input_dim": 8}},
            r"feature_kwargs\['input_dim'\] = 8: expected 16, the",
        ),
        (
            "based.models.mixers.linear_attention.LinearAttention",
            {"parallel_implementation": "tk"},
            "parallel_implementation = 'tk'",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            from_torch(built_with(path, **given), {})


def test_every_feature_map_has_a_table():
    paths = [path for path in tables() if path.startswith("zoology.mixers.feature_maps.")]
    assert {path.rpartition(".")[2] for path in paths} == set(FEATURE_MAPS) >= set(SHORT_NAMES.values())


def test_options_of_feature_maps():
    """Ours follow from the arguments that a map's table says it reads."""
    for name in FEATURE_MAPS:
        table = next(table for path, table in tables().items() if re.fullmatch(rf"zoology\..*\.{name}", path))
        values = {"temp": 2.0, "eps": 0.1, "fullspace": True, "head_dim_idx": -1, "input_dim": 8}
        options = feature_map(name, {key: value for key, value in values.items() if key in table}, 8)
        ours = {option.ours for option in table.values() if option.status == "renamed"}
        assert ("feature_scale" in options) == (table["temp"].ours == "feature_scale")
        assert ("feature_floor" in options) == ("feature_floor" in ours)
        mixers.make("linear_attention", d_model=8, feature_dim=8, **options)
        with pytest.raises(ValueError, match=r"head_dim_idx'.* = -2: expected -1 or 3"):
            feature_map(name, {"head_dim_idx": -2}, 8)
        with pytest.raises(ValueError, match="entry of feature_kwargs = 'no_such_argument': expected one of"):
            feature_map(name, {"no_such_argument": 1}, 8)


def test_taylor_maps_of_another_width_are_scaled():
    options = feature_map("taylor_exp", {"input_dim": 16}, 8)
    assert math.isclose(options["feature_scale"] ** 4, 0.5)
    assert feature_map("taylor_exp", {"input_dim": 8, "temp": 3.0}, 8) == {"feature_map": "taylor"}


WITH = {
    "base_conv.BaseConv.implicit_long_conv": {"kernel_size": -1},
    "base_conv.BaseConv.layer_idx": {"kernel_size": [3, 4], "layer_idx": 0},
    "base_conv.BaseConv.l_max": {"kernel_size": -1},
    "based.Based.rope_theta": {"apply_rotary": True},
    "gla.GatedLinearAttention.conv_size": {"use_short_conv": True},
    "mamba2.Mamba2.ngroups": {"headdim": 16},
}
"""Arguments that make another one matter, by module, class and argument."""

CHANGED = {
    **{"feature_map": {"_target_": "TaylorExp", "input_dim": 8}, "kernel_args": {"mode": "ema"}},
    **{"feature_name": "performer", "feature_kwargs": {"input_dim": 8}, "train_view": "quadratic"},
    **{"kernel_size": 5, "layer_idx": 1, "lr_pos_emb": 0.0, "window_size": 6, "num_key_value_heads": 3},
    "causal": False,
}
"""Values instead of twice the default."""

OF_FIXTURES = {"d_model", "embed_dim", "groupnorm_eps", "low_rank_dims"}
"""The width, and what fixtures call arguments."""


NOT_THEIRS = {"causal", "chunk_size", "num_key_value_heads", "window_size"}
"""Arguments whose default there is not accepted (it is not causal, or fails there), or does not matter."""


@pytest.mark.parametrize("path", MIXERS)
def test_arguments_do_what_the_tables_say(path):
    """Another value makes another mixer or an error; of an ignored argument it makes the same mixer."""
    for name, option in rows(path).items():
        label = ".".join((*path.split(".")[-2:], name))
        if name in OF_FIXTURES or label == "rwkv7.RWKV7Attention.layer_idx":  # its map is in no mixer
            continue
        given = WITH.get(label, {})
        default = built_with(path, **given).get(name, default_of(option))
        value = CHANGED.get(name, changed(default))
        if default_of(option) is not None and name not in given and name not in NOT_THEIRS:
            assert build(path, **given, **{name: default_of(option)}) == build(path, **given), label
        meta = {**given, name: value}
        try:
            expect_arguments(path, built_with(path, **meta))
            is_same = build(path, **meta) == build(path, **given)
        except ValueError:
            assert option.status != "ignored", label
            continue
        assert option.status != "refused", label
        assert is_same == (option.status == "ignored"), label


def test_values_that_their_code_accepts():
    assert build("zoology.mixers.selective.SMA", alpha=2.0).alpha == 2.0
    assert build("zoology.mixers.mamba.Mamba", expand=1.51).channels == 96  # of 96.64
    hyena = build("zoology.mixers.hyena.Hyena", target=4.0)  # of negative decays absolute values count
    assert math.isclose(hyena.fast_decay, 0.3 * math.log(100) / math.log(4))
    path = "based.models.mixers.linear_attention.LinearAttention"
    assert build(path, num_heads=7).layout() == (7, 9)
