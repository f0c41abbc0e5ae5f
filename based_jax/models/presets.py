"""Named models: sizes and layer schedules of the papers' language models.

Based: Tables 7 to 13. Zoology: its Pile suite, under "zoology-". `printed.py` and docs/mixers.md compare
the printed parameter counts with ours and explain the differences.

Based's Table 4 lists three models of the human genome (HG38) with their sizes only. The shapes under "hg38-"
are ours: they reach the printed sizes with the conventions of the other tables. Based has Table 7's layer
order, 16 heads and MLP width of 2; attention has 64 channels per head and Table 8's MLP width of 4; Mamba has
many narrow layers, as in Table 9. Zoology's Table 6 lists two models of 1.4b, also without shapes: ours have
2,048 channels, and as many layers as the size requires.
"""

import functools
from collections.abc import Mapping
from typing import Any

from based_jax.models import variants
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.ops.softmax_attention import left_from_paper_window
from based_jax.validate import expect_choice

BYTE_VOCAB = 257
"""Tokens of the byte tokenizer: 256 bytes and the separator of documents."""

DNA_VOCAB = 6
"""Tokens of the nucleotide tokenizer."""

GPT2_VOCAB = 50257
"""Tokens of GPT-2's tokenizer."""


def _based(d_model: int, schedule: str) -> ModelConfig:
    """Return a Based model: gated convolutions (C), Taylor attention (L), windows (S), an MLP width of 2.

    Windows are the paper's 64 keys at both sizes. Table 7 prints 16 at 1.4b, and the released configs differ
    again; no parameter depends on the window, and `load_pretrained` reads the checkpoint's.
    """
    return ModelConfig(GPT2_VOCAB, d_model, schedule, _based_mixers(16, 16, 64), 2 * d_model)


def _based_mixers(num_heads: int, feature_dim: int, window: int) -> dict[str, MixerSpec]:
    return {
        "C": MixerSpec("gated_conv", {"expand": 4, "kernel_size": 3}),
        "L": MixerSpec("linear_attention", {"num_heads": num_heads, "feature_dim": feature_dim}),
        "S": MixerSpec("sliding_window", {"num_heads": num_heads, "left": left_from_paper_window(window)}),
    }


def _transformer(
    d_model: int, layers: int, num_heads: int, mlp_hidden: int, rotary: float = 0.5
) -> ModelConfig:
    """Return a Transformer++: full attention with rotary positions on part of each head's channels."""
    mixers = {"A": MixerSpec("attention", {"num_heads": num_heads, "rotary_fraction": rotary})}
    return ModelConfig(GPT2_VOCAB, d_model, "A" * layers, mixers, mlp_hidden, pad_vocab_multiple=16)


def _baseline(
    d_model: int, layers: int, mixer: str, options: Mapping[str, Any], mlp_hidden: int, **fields: Any
) -> ModelConfig:
    """Return a model with one mixer in every layer; gated MLP and RMS norms unless `fields` override them."""
    mixers = {"M": MixerSpec(mixer, options)}
    return ModelConfig(GPT2_VOCAB, d_model, "M" * layers, mixers, mlp_hidden, **fields)


_PLAIN: dict[str, Any] = {"mlp": "plain", "mlp_activation": "gelu", "mlp_bias": True, "norm": "layer"}
"""The two-matrix MLP and LayerNorm of the convolution models' code."""

_RETNET = {"num_heads": 4, "expand_v": 1280 / 768, "chunk_size": 128}
_LM_FILTERS = {"l_max": 2048, "sine_frequency": 14.0, "slow_decay": 1.2}


def _mamba(d_model: int, layers: int = 46) -> ModelConfig:
    """Return a Mamba; its blocks have no MLP (Based, Table 9)."""
    return _baseline(d_model, layers, "mamba", {"num_layers": layers}, 0, mlp="none", pad_vocab_multiple=16)


def _rwkv(d_model: int, layers: int, time_mix: str, expand: float) -> ModelConfig:
    """Return an RWKV: a time-mix block (T) and a channel-mix block (C) per layer; an untied head."""
    mixers = {"T": MixerSpec(time_mix), "C": MixerSpec("rwkv_channel_mix", {"expand": expand})}
    how: dict[str, Any] = {"mlp": "none", "norm": "layer", "tie_embeddings": False}
    return ModelConfig(GPT2_VOCAB, d_model, "TC" * layers, mixers, **how)


def _base_conv(d_model: int, layers: int) -> ModelConfig:
    """Return a BaseConv: explicit short (S) and implicit long filters (L) in turn (Zoology, Table 9)."""
    filters = {"S": {"kernel_size": 3}, "L": {"kernel_size": -1, "filter_order": 64, **_LM_FILTERS}}
    mixers = {letter: MixerSpec("base_conv", options) for letter, options in filters.items()}
    return ModelConfig(GPT2_VOCAB, d_model, "SL" * (layers // 2), mixers, 2 * d_model, **_PLAIN)


def _hyena(d_model: int, layers: int) -> ModelConfig:
    return _baseline(d_model, layers, "hyena", _LM_FILTERS, 2 * d_model, **_PLAIN)


def _h3(d_model: int, layers: int) -> ModelConfig:
    return _baseline(d_model, layers, "h3", {"d_state": 64}, 2 * d_model, **_PLAIN)


def _long_conv(d_model: int, layers: int) -> ModelConfig:
    return _baseline(d_model, layers, "long_conv", {"l_max": 2048, "project": True}, 4 * d_model, **_PLAIN)


def _hg38(config: ModelConfig) -> ModelConfig:
    """Return the model with a vocabulary of nucleotides, at the shortest length of the paper's Table 4."""
    return config.replace(vocab_size=DNA_VOCAB, max_length=1024)


def _tiny(schedule: str, mixers: Mapping[str, MixerSpec]) -> ModelConfig:
    return ModelConfig(BYTE_VOCAB, 128, schedule, mixers, mlp_hidden=256, max_length=256)


@functools.cache
def _presets() -> dict[str, ModelConfig]:
    """Make all presets, on first use because checking their options is slow."""
    based_1b = _based(1792, "CLSCC" * 5 + "C" + "CLSCCC" + "CLSC")
    found = {
        "based-360m": _based(1024, "CLSCC" * 5 + "CC"),
        "based-1b": based_1b,
        "based-1b-50b": based_1b,
        "attn-360m": _transformer(1024, layers=24, num_heads=16, mlp_hidden=2816),
        "attn-1b": _transformer(1680, layers=36, num_heads=24, mlp_hidden=4608),
        "mamba-360m": _mamba(1024),
        "mamba-1b": _mamba(2048),
        "hyena-355m": _baseline(1024, 29, "hyena", _LM_FILTERS, 2048, norm="layer"),
        "h3-360m": _baseline(1024, 24, "h3", {"d_state": 64}, 4096, **_PLAIN),
        "rwkv5-360m": _rwkv(1024, 19, "rwkv5", 3.5),
        "gla-360m": _baseline(1024, 24, "gla", {"num_heads": 4}, 2816),
        "zoology-attention-73m": _transformer(704, layers=6, num_heads=8, mlp_hidden=2048, rotary=1.0),
        "zoology-attention-125m": _transformer(768, layers=12, num_heads=12, mlp_hidden=2048, rotary=1.0),
        "zoology-attention-360m": _transformer(1024, layers=24, num_heads=16, mlp_hidden=2816, rotary=1.0),
        "zoology-attention-1400m": _transformer(2048, layers=25, num_heads=16, mlp_hidden=5632, rotary=1.0),
        "zoology-base-conv-168m": _base_conv(864, 30),
        "zoology-base-conv-354m": _base_conv(1080, 48),
        "zoology-hyena-72m": _hyena(736, 8),
        "zoology-hyena-158m": _hyena(864, 18),
        "zoology-hyena-358m": _hyena(1024, 36),
        "zoology-hyena-1400m": _hyena(2048, 38),
        "zoology-h3-72m": _h3(720, 8),
        "zoology-h3-168m": _h3(864, 19),
        "zoology-h3-357m": _h3(1024, 33),
        "zoology-rwkv4-72m": _rwkv(624, 6, "rwkv4", 4.0),
        "zoology-rwkv4-169m": _rwkv(768, 12, "rwkv4", 4.0),
        "zoology-rwkv4-351m": _rwkv(984, 20, "rwkv4", 4.0),
        "zoology-retnet-152m": _baseline(768, 12, "retnet", _RETNET, 1280, tie_embeddings=False, **_PLAIN),
        "zoology-long-conv-76m": _long_conv(704, 6),
        "zoology-long-conv-128m": _long_conv(768, 12),
        "zoology-long-conv-360m": _long_conv(1024, 24),
        "hg38-attention-46m": _hg38(_transformer(512, layers=11, num_heads=8, mlp_hidden=2048)),
        "hg38-mamba-46m": _hg38(_mamba(464, layers=33)),
        "hg38-based-49m": _hg38(_based(512, "CLSCC" * 3 + "CL")),
        # Byte-level models that train on a laptop CPU; the two have about the same number of parameters.
        "based-tiny": _tiny("CLSCLSC", _based_mixers(4, 8, 32)),
        "attn-tiny": _tiny("A" * 7, {"A": MixerSpec("attention", {"num_heads": 4, "rotary_fraction": 0.5})}),
    }
    return found | variants.hybrids(found) | variants.ablations(found["based-360m"])


def names() -> tuple[str, ...]:
    """Return the sorted names of all presets."""
    return tuple(sorted(_presets()))


def get(name: str) -> ModelConfig:
    """Return the preset called `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    expect_choice("preset", name, names())
    return _presets()[name]
