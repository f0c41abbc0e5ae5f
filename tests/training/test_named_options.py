"""Options of a mixer on the command line."""

import pytest

from based_jax.models import MixerSpec
from based_jax.training.lm_config import LMConfig, model_config
from based_jax.training.named_options import parse_mixer, parse_named, parse_options, split_options


def test_values_are_json_or_text():
    pairs = split_options("a=1,b=[2,3],c=relu,d=true,e=null,f=1e-6")
    wanted = {"a": 1, "b": [2, 3], "c": "relu", "d": True, "e": None, "f": 1e-6}
    assert parse_options("x", "", pairs, "") == wanted


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1,,b=2", "a=1,a=2"])
def test_what_is_no_option(text):
    with pytest.raises(ValueError, match=r"flag = .*: expected a pair"):
        parse_options("flag", text, split_options(text), "a pair")


def test_a_run_has_them(tmp_path):
    options = {"mixer": "attention", "mixer_options": "num_heads=2,rotary_fraction=0.5", "mixer_layers": "1"}
    model = model_config(LMConfig(tmp_path, preset="based-tiny", **options), 257)
    assert model.layer(1) == MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.5})
    assert model.layer(0).mixer == "gated_conv"


def test_colons_and_commas_separate_the_options_of_a_name():
    wanted = "based", {"feature_dim": 8, "num_heads": 2}
    for text in ("based:feature_dim=8:num_heads=2", "based:feature_dim=8,num_heads=2"):
        assert parse_named("mixer", text) == parse_mixer("mixer", text) == wanted
    assert parse_mixer("mixer", "gla:lags=[1,2]:num_heads=2") == ("gla", {"lags": [1, 2], "num_heads": 2})
    assert parse_mixer("mixer", "mamba") == ("mamba", {})
