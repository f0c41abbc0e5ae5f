"""Model descriptions: JSON round trip, strictness; the papers' hybrids and ablations among the presets."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.mixers.mixer_options import attribute_docs
from based_jax.models import MixerSpec


def test_json_round_trip():
    for name in bj.presets.names():
        config = bj.presets.get(name)
        assert bj.ModelConfig.from_dict(json.loads(config.to_json())) == config
        assert hash(bj.ModelConfig.from_dict(json.loads(config.to_json()))) == hash(config)


def test_values_that_json_lacks_survive_it():
    options = {"orders": [1, 2], "num_heads": np.int64(2), "scale": np.float32(2), "dtype": jnp.bfloat16}
    config = bj.presets.get("based-tiny").with_mixer("hyper_feature_attention", **options)
    config = config.replace(d_model=np.int64(64), norm_eps=np.float32(1e-5))
    again = bj.ModelConfig.from_dict(json.loads(config.to_json()))
    assert again == config
    assert hash(again) == hash(config)


def test_another_mixer_keeps_the_norms_of_its_blocks():
    """In layers of both arrangements it has two letters."""
    spec = MixerSpec("short_conv")
    config = bj.ModelConfig(9, 8, "XYYX", {"X": spec, "Y": spec}, mlp="none", output_norms="Y")
    for layers, schedule, norms in [(None, "ABBA", "B"), ([1], "XAYX", "YA"), ([0, 3], "AYYA", "Y")]:
        changed = config.with_mixer("retnet", layers)
        assert (changed.schedule, changed.output_norms) == (schedule, norms)
        assert {name for name, spec in changed.mixers.items() if spec.mixer == "retnet"} <= {"A", "B"}
    for layers, message in (
        (0, "layers = 0: expected None, or indices"),
        ("0", "layer = '0': expected 0 to 3"),
    ):
        with pytest.raises(ValueError, match=message):
            config.with_mixer("retnet", layers)


def test_help_explains_every_field():
    for cls in [bj.ModelConfig, MixerSpec]:
        assert list(attribute_docs(cls.__doc__)) == [field.name for field in dataclasses.fields(cls)]


def test_the_vocabulary_is_padded():
    assert bj.presets.get("based-360m").padded_vocab_size == 50264
    assert bj.presets.get("attn-360m").padded_vocab_size == 50272


def change(**fields):
    plain = bj.presets.get("based-tiny").to_dict()
    return {**plain, **fields}


def test_bad_descriptions_are_named():
    for fields, message in [
        (change(no_such=1), r"config = \['no_such'\]: expected only the keys"),
        (change(d_modle=3), r"did you mean 'd_model'\?$"),
        ({"vocab_size": 3}, "the missing keys d_model, mixers, schedule|the missing keys d_model"),
        (change(schedule=""), "schedule = '': expected at least one layer"),
        (change(schedule="CX"), "schedule = 'CX': expected letters among"),
        (change(d_model=0), "d_model = 0: expected at least 1"),
        (change(mlp_hidden=0), "mlp_hidden = 0: expected a positive integer"),
        (change(max_positions=1.5), "max_positions = 1.5: expected at least 0"),
        (change(mlp="big"), "mlp = 'big': expected one of 'gated', 'plain', 'identity', 'none'"),
        (change(norm="batch"), "norm = 'batch': expected one of"),
        (change(dtype="int8"), "dtype = 'int8'"),
        (change(mixers={"C": {"mixer": "gated_conv", "extra": 1}}), r"config mixers\['C'\]"),
        (change(mixers=[]), r"config mixers = \[\]: expected a mapping"),
        (change(norm_eps=float("nan")), "norm_eps = nan: expected at least 0 and at most 1, a number"),
        (change(norm_eps=-1), "norm_eps = -1: expected at least 0"),
        (change(init_std=10**400), "init_std = 1000.*: expected at least 0"),
        (change(tie_embeddings="no"), "tie_embeddings = 'no': expected true or false"),
        (change(d_model=True), "d_model = True: expected at least 1"),
        (change(d_model=64.0), "d_model = 64.0: expected at least 1"),
        (change(vocab_size=1 << 60), "vocab_size = 1152921504606846976: expected .* at most 16777216"),
        (change(schedule=["C"]), r"schedule = \['C'\]: expected a text"),
        (change(schedule="C" * 3000), r"schedule = 'CCC.*\.\.\.C.*: expected at most 1024 layers"),
        (change(mixers={"C": {"mixer": "gated_conv", "options": 5}}), "options = 5: expected a mapping"),
        (change(mixers={"C": {"mixer": ["gated_conv"]}}), r"mixer = \['gated_conv'\]: expected one of"),
        (change(residual_dropout=1.0), "residual_dropout = 1.0: expected from 0 to below 1"),
        (change(drop_path=0.1, block="parallel"), "drop_path = 0.1: expected 0 with block = 'parallel'"),
        (change(residual_dropout=0.1, scan_layers=True), "scan_layers = True: expected False with dropout"),
        (change(mlp="none", block="parallel"), "mlp = 'none': expected gated or plain"),
        (change(final_norm="rms", block="postnorm"), "final_norm = 'rms': expected one of None"),
        (change(freeze_embedding=True), "freeze_embedding = True: expected False with a tied head"),
        (change(output_norms="X"), "output_norms = 'X': expected letters among"),
        (
            change(output_norms="L", block="parallel"),
            "output_norms = 'L': expected '' with block = 'parallel'",
        ),
        (change(positions="rotary"), "positions = 'rotary': expected one of 'learned', 'sinusoidal'"),
    ]:
        with pytest.raises(ValueError, match=message):
            bj.ModelConfig.from_dict(fields)


def test_options_are_checked_where_they_are_given():
    for mixer, option, value, expected in [
        ("sliding_window", "left", 1.5, "at least 0 and at most 16777216, an integer"),
        ("sliding_window", "rotary_base", 0, "above 0 and at most"),
        ("sliding_window", "qkv_bias", "no", "true or false"),
        ("sliding_window", "dtype", "int8", "a floating dtype"),
        ("gated_conv", "kernel_size", 10**12, "at least 1 and at most 256, an integer"),
        ("linear_attention", "feature_dim", 10**6, "at least 1 and at most 1024, an integer"),
        ("conv_basis", "starts", [0, "a"], "None or a list in which each item is at least 0"),
        ("attention", "num_heads", 10**4000, "None or at least 1 and at most 16777216, an integer"),
    ]:
        spec = {"mixer": mixer, "options": {option: value}}
        for build in (
            functools.partial(bj.ModelConfig.from_dict, change(schedule="C", mixers={"C": spec})),
            functools.partial(bj.mixers.make, mixer, d_model=64, **{option: value}),
        ):
            with pytest.raises(ValueError, match=rf"{option} = .*: expected {expected}") as caught:
                build()
            assert len(str(caught.value)) < 1000


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="preset = 'gpt': expected one of 'attn-1b'"):
        bj.presets.get("gpt")


def test_options_are_frozen():
    spec = MixerSpec("gated_conv", {"kernel_size": 3})
    with pytest.raises((TypeError, ValueError)):
        spec.options["kernel_size"] = 4


def test_three_layers_select():
    """k is 256 of 2,048 tokens where it is a number, and everything else is BaseConv's model."""
    for selection in ["full", "learned", "programmatic", "random"]:
        (name,) = [n for n in bj.presets.names() if n.startswith(f"zoology-base-conv-{selection}-16")]
        config, base = bj.presets.get(name), bj.presets.get("zoology-base-conv-168m")
        layers = [i for i in range(30) if config.layer(i) != base.layer(i)]
        assert layers == [7, 15, 22]
        options = bj.mixers.make("selected_attention", d_model=864, **config.layer(7).options)
        assert (options.selection, options.share * 2048) == (selection, 256)
        assert config.replace(schedule=base.schedule, mixers=base.mixers) == base


def test_ablations_differ_in_what_they_say():
    base = bj.presets.get("based-360m")
    row = bj.presets.get("based-360m-taylor8")
    linear = MixerSpec("linear_attention", {"num_heads": 16, "feature_dim": 8, "decay": "gated"})
    assert row == base.replace(mixers={**base.mixers, "L": linear})
    for name, kinds in {"no-window": "CL", "no-conv": "LS", "linear24": "L"}.items():
        config = bj.presets.get(f"based-360m-{name}")
        assert set(config.schedule) == set(config.mixers) == set(kinds)
        assert config.num_layers == 27
