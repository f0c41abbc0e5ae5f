"""Compute the papers' FLOPs formulas (Zoology, appendix): one training step on one sequence.

    6 (2 V N D + layers * MACs of a layer)      V vocabulary, N tokens, D width

with 2 FLOPs per multiply-add, and a backward pass twice as expensive as the forward. Input and output
embeddings both count. In this form the formulas give the printed TFLOPs of every table row, except for the
paper's misprints.
"""

import math
from functools import cache

from based_jax.models import ModelConfig
from based_jax.published.tables import number, preset_of, table

_FILTER = 64
"""Width of the network that generates a long filter."""


def training_flops(config: ModelConfig, length: int) -> float | None:
    """Return the papers' count for a step on `length` tokens; None if a layer has no formula there."""
    mixers = [config.layer(index).mixer for index in range(config.num_layers)]
    if not set(mixers) <= _MACS.keys():
        return None
    ends = 2 * config.vocab_size * length * config.d_model
    return 6.0 * (ends + sum([_MACS[mixer](config, length) for mixer in mixers]))


def _fft(length: int, channels: float) -> float:
    return 10 * length * math.log2(length) * channels


def _attention(config: ModelConfig, length: int) -> float:
    """Count the maps, scores and values, and an MLP of three maps of width 8/3 D."""
    width, heads = config.d_model, config.layer(0).options.get("num_heads") or 1
    return 4 * length * width**2 + 2 * (heads * length**2 + length**2 * width) + 8 * length * width**2


def _base_conv(config: ModelConfig, length: int) -> float:
    """Count half of the channels, or layers, as short convolutions and half as long ones."""
    width = config.d_model
    mixer = _fft(length, width / 2) + length * width / 2 + width / 2 * _FILTER + length * width**2
    return mixer + 4 * length * width**2


def _hyena(config: ModelConfig, length: int) -> float:
    width = config.d_model
    maps = 3 * length * width**2 + 9 * length * width + 3 * length * width + length * width**2
    return maps + _fft(length, width) + _FILTER * width + 4 * length * width**2


def _long_conv(config: ModelConfig, length: int) -> float:
    width = config.d_model
    return _fft(length, width) + length * width**2 + 8 * length * width**2


_MACS = {
    "attention": _attention,
    "base_conv": _base_conv,
    "hyena": _hyena,
    "long_conv": _long_conv,
    "rwkv4": lambda config, length: 13 * length * config.d_model**2,
    "rwkv_channel_mix": lambda config, length: 0.0,  # counted with the RWKV layer before it
}
"""Multiply-adds of a layer with its MLP."""


@cache
def printed_tflops() -> dict[str, float]:
    """Return the TFLOPs that Zoology's Tables 1, 2 and 4 print for our presets, at 2,048 tokens."""
    found = {}
    for name in (1, 2, 4):
        printed = table("zoology", name)
        for row in printed.rows:
            if (preset := preset_of(printed, row)) is not None:
                found[preset] = number(row, "tflops")
    return found
