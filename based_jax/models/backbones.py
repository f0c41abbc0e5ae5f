"""The two-layer models of the papers' synthetic studies (Zoology, section 4, and its code).

    r <- r + mixer(LN1(r));   r <- r + LN2(r)      per layer;      logits = LN_f(r) E^T

The second sum results from an identity MLP in the authors' code: it adds a normed copy of the stream. Layer 0
is a short BaseConv and layer 1 the mixer under study; BaseConv, Hyena and H3 are in both layers, and so is
Mamba, in blocks of a norm and a mixer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from based_jax import mixers
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.validate import expect

INIT_STD = 0.02

MLP_WIDENING = 4
"""Width of an MLP, if there is one, over d_model."""

ALIASES = {"based": "linear_attention"}
"""The papers' names of mixers that have other names here."""

TWICE = ("base_conv", "hyena", "h3")
"""Mixers that need no short convolution before them."""

MAMBAS = ("mamba", "mamba2")
"""Mixers in blocks without an MLP."""

_SOFTMAX = {"num_heads": 1, "rotary_fraction": 0.0, "qkv_bias": True, "out_bias": True}
# The authors' code scales output maps down by name; these mixers' maps have other names.
_UNSHRUNK = {"out_init_std": INIT_STD}
_MAMBA = {"d_state": 16, "num_layers": 2}
_RWKV = {**_UNSHRUNK, "layer": 1, "num_layers": 12}  # their default depth, which no study sets

_SETTINGS: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(("attention", "blocked_window", "sliding_window"), _SOFTMAX),
    **dict.fromkeys(("delta_net", "gated_delta_net", "rwkv7"), _UNSHRUNK),
    **dict.fromkeys(("rwkv4", "rwkv5"), _RWKV),
    **dict.fromkeys(MAMBAS, _MAMBA),
    "linear_attention": {**_UNSHRUNK, "num_heads": 1, "feature_dim": 16},
}
"""Settings of the studies that differ from the mixer's defaults."""

_MODEL: dict[str, Any] = {"mlp_activation": "gelu", "mlp_bias": True, "final_norm": "layer"}
_MODEL |= {"pad_vocab_multiple": 1, "init_std": INIT_STD}
"""Settings that all models of the studies share."""


def _settings(mixer: str, d_model: int, length: int) -> Mapping[str, Any]:
    """Return the settings of a mixer; some depend on the width or the longest sequence."""
    if mixer in ("base_conv", "hyena", "long_conv"):
        return {"l_max": length}
    if mixer == "gla":
        return {**_UNSHRUNK, "num_heads": 2 if d_model % 4 == 0 else None}
    if mixer == "h3":
        return {**_UNSHRUNK, "d_state": 2 * max(d_model // 8, 1), "head_dim": 2 if d_model % 2 == 0 else 1}
    return _SETTINGS.get(mixer, {})


def mqar_backbone(
    mixer: str | None,
    d_model: int,
    vocab_size: int = 8192,
    length: int = 64,
    layers: Sequence[str | MixerSpec] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    positions: bool = False,
    dropout: float = 0.1,
    mlp: str | None = None,
    dtype: str = "float32",
) -> ModelConfig:
    """Return the papers' two-layer model with one mixer, or a model of any layers.

    Args:
        mixer: registered name, or "based" for Taylor linear attention; None with `layers`.
        d_model: width.
        vocab_size: tokens.
        length: tokens of the longest sequence, tests included: long filters have as many taps.
        layers: the mixers of all layers, by name or spec, instead of `mixer`; the same settings apply.
        options: options of the mixer that override the studies' settings; with `layers`, put options in the
            specs.
        positions: add `length` learned positions. Zoology's Figure 2 has them with attention in both layers;
            Based's studies have none.
        dropout: dropout rate of the embeddings in training; 0 with Mamba.
        mlp: "identity" as in the studies, "none" for blocks of a norm and a mixer, or an MLP with biases and
            exact GELU, four times as wide as the model: "plain", or "gated" as in the studies of parity.
            Default: the studies' setting, which is "none" for Mamba.
        dtype: dtype of the computation.

    Raises:
        ValueError: neither `mixer` nor `layers`, an unknown mixer, or an unknown option.
    """
    expect(bool(mixer or layers), "mixer", mixer, "a mixer's name, unless layers are given")
    expect(not (layers and options), "options", options, "none with layers, whose specs have options")
    specs = [MixerSpec(layer) if isinstance(layer, str) else layer for layer in layers or ()]
    specs = specs or _pair(mixer or "", options or {})
    specs = [_settled(spec, d_model, length) for spec in specs]
    kinds = list(dict.fromkeys(specs))
    letters = [chr(ord("A") + kinds.index(spec)) for spec in specs]
    is_mamba = all(spec.mixer in MAMBAS for spec in specs)
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        schedule="".join(letters),
        mixers=dict(zip(letters, specs, strict=True)),
        mlp=mlp or ("none" if is_mamba else "identity"),
        mlp_hidden=MLP_WIDENING * d_model,
        norm="rms" if is_mamba else "layer",
        max_positions=length if positions else 0,
        embed_dropout=0.0 if is_mamba else dropout,
        max_length=length,
        dtype=dtype,
        **_MODEL,
    )


def _pair(mixer: str, options: Mapping[str, Any]) -> list[MixerSpec]:
    """Return the two layers of the studies."""
    second = MixerSpec(mixer, options)
    if mixer == "base_conv" and "kernel_size" not in options:
        return [second, MixerSpec(mixer, {**options, "kernel_size": -1})]
    return [second if mixer in (*TWICE, *MAMBAS) else MixerSpec("base_conv", {"kernel_size": 3}), second]


def _settled(spec: MixerSpec, d_model: int, length: int) -> MixerSpec:
    """Return a spec with the registered name and the studies' settings; its own options take precedence."""
    name = ALIASES.get(spec.mixer, spec.mixer)
    options = {**_settings(name, d_model, length), **spec.options}
    mixers.make(name, d_model=d_model, **options)  # an unknown name or option is an error here
    return MixerSpec(name, options)
