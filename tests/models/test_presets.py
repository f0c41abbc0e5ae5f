"""The papers' hybrids and ablations: which layers, with which options."""

import based_jax as bj
from based_jax.models import MixerSpec


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
