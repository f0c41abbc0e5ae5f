"""Presets that change a few layers of another preset: the papers' hybrids and ablations.

Zoology, section 5 and Table 2: three layers of a BaseConv model attend for selected tokens; Table 4: three
layers of Hyena are sliding windows. Based, Table 6: other feature maps, widths and windows, or models without
one of the three kinds of layers. The papers do not print the positions of these layers, their number of heads
or the replacement of omitted layers: here they are evenly spaced, have 12 heads, and the remaining kinds
alternate.
"""

from collections.abc import Mapping
from typing import Any

from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.ops.softmax_attention import left_from_paper_window

HYBRID_LAYERS = 3
SELECTED_SHARE = 256 / 2048
"""k = 256 of 2,048 tokens (Zoology, section 5)"""

_SELECTIONS = {
    "full": {"selection": "full"},
    "random": {"selection": "random", "share": SELECTED_SHARE},
    "programmatic": {"selection": "programmatic"},
    "learned": {"selection": "learned", "share": SELECTED_SHARE},
}
_BASE_CONV_HYBRIDS = {
    "zoology-base-conv-168m": {"random": 162, "programmatic": 162, "learned": 166, "full": 166},
    "zoology-base-conv-354m": {"random": 365, "programmatic": 365, "learned": 351, "full": 351},
}
"""Printed millions of parameters, by selection."""

_WINDOWS = (64, 256)


def spaced(layers: int, count: int = HYBRID_LAYERS) -> list[int]:
    """Return the indices of `count` of `layers` layers, evenly spaced and away from both ends.

    >>> spaced(30)
    [7, 15, 22]
    """
    return [layers * (index + 1) // (count + 1) for index in range(count)]


def hybrids(presets: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Return Zoology's models with three layers of attention, made from the presets without them."""
    found: dict[str, ModelConfig] = {}
    for base, sizes in _BASE_CONV_HYBRIDS.items():
        model, stem = presets[base], base.rpartition("-")[0]
        for selection, millions in sizes.items():
            options: dict[str, Any] = {"num_heads": 12, **_SELECTIONS[selection]}
            layers = spaced(model.num_layers)
            found[f"{stem}-{selection}-{millions}m"] = model.with_mixer(
                "selected_attention", layers, **options
            )
    hyena = presets["zoology-hyena-158m"]
    for width in _WINDOWS:
        options = {"num_heads": 12, "left": left_from_paper_window(width)}
        model = hyena.with_mixer("sliding_window", spaced(hyena.num_layers), **options)
        found[f"zoology-hyena-window{width}-159m"] = model
    return found


def ablations(based: ModelConfig) -> dict[str, ModelConfig]:
    """Return the rows of Based's Table 6, with the decay of appendix C; `based-360m` is the row without."""
    length = based.max_length

    def attention(**options: Any) -> ModelConfig:
        spec = based.mixers["L"]
        mixers = {**based.mixers, "L": MixerSpec(spec.mixer, {**spec.options, "decay": "gated", **options})}
        return based.replace(mixers=mixers)

    whole, layers = attention(), based.num_layers
    window = based.mixers["S"]
    wide = MixerSpec(window.mixer, {**window.options, "left": left_from_paper_window(128)})
    models = {
        "decay": whole,
        "performer16": attention(feature_map="performer", num_features=16),
        "cosformer16": attention(feature_map="cosformer", max_length=length),
        "cosformer64": attention(feature_map="cosformer", max_length=length, feature_dim=64),
        "taylor32": attention(feature_dim=32),
        "taylor24": attention(feature_dim=24),
        "taylor8": attention(feature_dim=8),
        "window128": whole.replace(mixers={**whole.mixers, "S": wide}),
        "no-window": whole.replace(schedule=based.schedule.replace("S", "L")),
        "no-conv": whole.replace(schedule=("LS" * layers)[:layers]),
        "linear24": attention(feature_dim=24).replace(schedule="L" * layers),
    }
    return {f"based-360m-{name}": _used(model) for name, model in models.items()}


def _used(model: ModelConfig) -> ModelConfig:
    """Return the model without mixers that no layer uses."""
    return model.replace(mixers={key: spec for key, spec in model.mixers.items() if key in model.schedule})
