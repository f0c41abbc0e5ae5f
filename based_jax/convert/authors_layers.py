"""Read a layer's mixer from the authors' config.json (flash-attention's GPT, and Based's).

An entry holds the arguments of a mixer's constructor, and nothing else of the config affects it, with two
exceptions, as in their code: a layer without an entry is attention whose arguments come from the config, and
these arguments also replace those of an entry for sliding windows.
"""

from typing import Any

from based_jax.convert.config_values import Config, flag, number, size
from based_jax.convert.layouts import Shapes
from based_jax.convert.options import expect_known
from based_jax.convert.references.based import ATTENTION, BASE_CONV
from based_jax.convert.references.mixers import MIXERS
from based_jax.convert.tables import AUTHORS
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

SLOTS = ("mixer", "alt_mixer", "alt_mixer_2")
"""Entries that hold a mixer; later ones take precedence in the layers listed in their entry NAME_layers."""

SLIDING = "slide"
"""Paths of classes that contain this take the arguments of the config's attention."""


def layer_mixer(config: Config, index: int, shapes: Shapes) -> MixerSpec:
    """Return the mixer of one layer.

    Raises:
        ValueError: an unsupported mixer, or an option that is unknown or not supported.
    """
    listed = [slot for slot in SLOTS[1:] if index in (config.get(f"{slot}_layers") or ())]
    name = listed[-1] if listed else SLOTS[0]
    prefix = f"{AUTHORS.layer(index)}.{AUTHORS.mixer}."
    own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
    if not config.get(name):
        arguments = _attention(config, own, index)
        if not any(config.get(slot) for slot in SLOTS):  # Based's code does not read the window
            arguments["window_size"] = config.get("window_size")
        return MIXERS[ATTENTION].spec(arguments)
    path, arguments = expect_entry(config, name)
    if SLIDING in path:
        arguments |= _attention(config, own, index)
    if path == BASE_CONV and own:
        has_bias = "conv.conv.bias" in own
        given = arguments.setdefault("conv_bias", has_bias)
        expect(given == has_bias, f"{name}.conv_bias", given, f"{has_bias}, as the weights have it")
    try:
        return MIXERS[path].spec({"d_model": config["n_embd"], **arguments})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def expect_entry(config: Config, name: str) -> tuple[str, dict[str, Any]]:
    """Return the path of the class and the arguments of an entry.

    Raises:
        ValueError: an unsupported class, or an argument that is unknown or not supported.
    """
    arguments = dict(config[name])
    path = arguments.pop("_target_", None)
    expect_choice(f"{name}._target_", path, [path for path in MIXERS if not path.startswith("zoology.")])
    expect_known(path, arguments, name)
    return path, arguments


def _attention(config: Config, shapes: Shapes, index: int) -> dict[str, Any]:
    """Return the arguments of attention that their code takes from the config."""
    heads, d_model = config["n_head"], config["n_embd"]
    # This entry affects the scale and the rotary channels, not the heads' width.
    width = size(config, "head_dim", max(d_model // heads, 1))
    scale = width**-0.5 if flag(config, "scale_attn_weights", True) else 1.0
    if flag(config, "scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    return {
        "d_model": d_model,
        "causal": True,
        "num_heads": heads,
        "num_heads_kv": config.get("n_head_kv"),
        "softmax_scale": scale,
        "dropout": number(config, "attn_pdrop", 0.1),
        "rotary_emb_dim": int(number(config, "rotary_emb_fraction", 0.0) * width),
        "rotary_emb_base": config.get("rotary_emb_base"),
        "rotary_emb_interleaved": config.get("rotary_emb_interleaved"),
        "qkv_proj_bias": flag(config, "qkv_proj_bias", "Wqkv.bias" in shapes if shapes else True),
        "out_proj_bias": flag(config, "out_proj_bias", "out_proj.bias" in shapes if shapes else True),
    }
