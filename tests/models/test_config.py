"""Model descriptions: JSON round trip, strictness."""

import dataclasses
import json

import pytest

import based_jax as bj
from based_jax.mixers.option_docs import attribute_docs
from based_jax.models import MixerSpec


@pytest.mark.parametrize("name", bj.presets.names())
def test_json_round_trip(name):
    config = bj.presets.get(name)
    assert bj.ModelConfig.from_dict(json.loads(config.to_json())) == config
    assert hash(bj.ModelConfig.from_dict(json.loads(config.to_json()))) == hash(config)


def test_options_that_are_sequences_survive_json():
    config = bj.presets.get("based-tiny").with_mixer("hyper_feature_attention", orders=(1, 2))
    again = bj.ModelConfig.from_dict(json.loads(config.to_json()))
    assert again == config
    assert hash(again) == hash(config)


@pytest.mark.parametrize("cls", [bj.ModelConfig, MixerSpec])
def test_help_explains_every_field(cls):
    assert list(attribute_docs(cls.__doc__)) == [field.name for field in dataclasses.fields(cls)]


def test_an_unknown_key_names_the_nearest():
    fields = {**bj.presets.get("based-tiny").to_dict(), "d_modle": 3}
    with pytest.raises(ValueError, match=r"did you mean 'd_model'\?$"):
        bj.ModelConfig.from_dict(fields)


def test_the_vocabulary_is_padded():
    assert bj.presets.get("based-360m").padded_vocab_size == 50264
    assert bj.presets.get("attn-360m").padded_vocab_size == 50272


def change(**fields):
    plain = bj.presets.get("based-tiny").to_dict()
    return {**plain, **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (change(no_such=1), r"config = \['no_such'\]: expected only the keys"),
        (
            {"vocab_size": 3},
            "the missing keys d_model, mixers, schedule|the missing keys d_model",
        ),
        (change(schedule=""), "schedule = '': expected at least one layer"),
        (change(schedule="CX"), "schedule = 'CX': expected letters among"),
        (change(d_model=0), "d_model = 0: expected a positive integer"),
        (change(mlp_hidden=0), "mlp_hidden = 0: expected a positive integer"),
        (change(mlp="big"), "mlp = 'big': expected one of 'gated', 'plain', 'identity', 'none'"),
        (change(norm="batch"), "norm = 'batch': expected one of"),
        (change(dtype="int8"), "dtype = 'int8'"),
        (change(mixers={"C": {"mixer": "gated_conv", "extra": 1}}), r"config mixers\['C'\]"),
        (change(mixers=[]), r"config mixers = \[\]: expected a mapping"),
    ],
)
def test_bad_descriptions_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        bj.ModelConfig.from_dict(fields)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="preset = 'gpt': expected one of 'attn-1b'"):
        bj.presets.get("gpt")


def test_options_are_frozen():
    spec = MixerSpec("gated_conv", {"kernel_size": 3})
    with pytest.raises((TypeError, ValueError)):
        spec.options["kernel_size"] = 4
