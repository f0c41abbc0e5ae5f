"""Options of a mixer on the command line."""

import re

import pytest

from based_jax.experiments.job import Job
from based_jax.models import MixerSpec
from based_jax.training.lm_config import LMConfig, model_config
from based_jax.training.named_options import parse_mixer, parse_named, split_mixers


def test_values_are_json_or_text():
    text = "a=1:b=[2,3]:c=relu:d=true:e=null:f=1e-6"
    wanted = {"a": 1, "b": [2, 3], "c": "relu", "d": True, "e": None, "f": 1e-6}
    assert parse_named("x", f"n:{text}") == ("n", wanted)


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1::b=2", "a=1:a=2"])
def test_what_is_no_option(text):
    with pytest.raises(ValueError, match=r"flag = .*: expected NAME or NAME:option=value"):
        parse_named("flag", f"n:{text}")


def test_a_run_has_them(tmp_path):
    options = {"mixer": "attention:num_heads=2:rotary_fraction=0.5", "mixer_layers": "1"}
    model = model_config(LMConfig(tmp_path, preset="based-tiny", **options), 257)
    assert model.layer(1) == MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.5})
    assert model.layer(0).mixer == "gated_conv"


def test_colons_separate_the_options_of_a_name():
    wanted = "based", {"feature_dim": 8, "num_heads": 2}
    assert parse_mixer("mixer", "based:feature_dim=8:num_heads=2") == wanted
    assert parse_mixer("mixer", "gla:lags=[1,2]:num_heads=2") == ("gla", {"lags": [1, 2], "num_heads": 2})
    assert parse_mixer("mixer", "mamba") == ("mamba", {})


def test_commas_between_options_are_an_error_with_the_right_spelling():
    cases = [
        (parse_named, "task", "forgetting:a=1,b=2", "forgetting:a=1:b=2"),
        (parse_mixer, "mixer", "gla:lags=[1,2],num_heads=2", "gla:lags=[1,2]:num_heads=2"),
        (parse_mixer, "mixer", "mamba,expand=2", "mamba:expand=2"),
        (split_mixers, "layers", "gla:a=1, b=[2,3],mamba", "gla:a=1:b=[2,3],mamba"),
    ]
    for parse, argument, text, right in cases:
        message = f"{argument} = {text!r}: expected colons between options: {right}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            parse(argument, text)


def test_commas_in_lists_do_not_separate_mixers():
    layers = ["base_conv:lags=[[1,2],[3,4]]:kernel_size=3", "gla"]
    assert split_mixers("layers", ",".join(layers)) == layers
    assert Job("", "", layers[0], {}).arguments == ["--mixer", layers[0]]
    assert Job("", "", ",".join(layers), {}).arguments[0] == "--layers"
