"""Table of Zoology's mixers, which fixtures describe by class and keywords."""

from based_jax.convert.layouts import renamed
from based_jax.convert.references import convolutions, delta, recurrences, selection
from based_jax.convert.references.linear_attention import based
from based_jax.convert.references.mixer import TorchMixer, to_ours
from based_jax.convert.tables import LINEAR_ATTENTION, SOFTMAX_ATTENTION

_WITHOUT_ROTARY = {"rotary_fraction": 0.0, "out_bias": True}
_attention = to_ours(
    "attention", _WITHOUT_ROTARY, num_heads=("num_heads", 1), qkv_bias=("bias", True), dropout=("dropout",)
)
_sliding_window = to_ours(  # of block_size + 1 keys
    "sliding_window",
    {"num_heads": 1, **_WITHOUT_ROTARY},
    left=("block_size", 256),
    qkv_bias=("bias", True),
    dropout=("dropout",),
)

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.attention.MHA": TorchMixer(_attention, SOFTMAX_ATTENTION),
    "zoology.mixers.based.Based": TorchMixer(based, renamed(LINEAR_ATTENTION, "out_proj", "proj_o")),
    "zoology.mixers.slide_attn.SlidingAttn": TorchMixer(_sliding_window, SOFTMAX_ATTENTION),
    **convolutions.MIXERS,
    **delta.MIXERS,
    **recurrences.MIXERS,
    **selection.MIXERS,
}
"""By import path."""
