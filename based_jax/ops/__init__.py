"""What the mixers compute: pure array functions, (batch, length, heads, dim), no Flax."""

from based_jax.ops.dispatch import implementation_for, implementations
from based_jax.ops.feature_maps import (
    IDENTITY,
    TAYLOR,
    FeatureMap,
    symmetric_taylor_features,
    symmetric_taylor_size,
    symmetric_to_full,
    taylor_features,
    taylor_size,
)
from based_jax.ops.kv_cache import KVCache, init_kv_cache
from based_jax.ops.linear_attention import (
    LinearAttentionState,
    init_linear_attention_state,
    linear_attention,
)
from based_jax.ops.norm import layer_norm, rms_norm
from based_jax.ops.rotary import rotary
from based_jax.ops.short_conv import ShortConvState, init_short_conv_state, short_conv
from based_jax.ops.softmax_attention import (
    left_from_paper_window,
    left_from_torch_window,
    softmax_attention,
    window_step,
)
from based_jax.ops.stream import Places, Stream, advance, init_stream
from based_jax.ops.taylor_attention import init_taylor_state, taylor_attention, taylor_step

__all__ = [
    "IDENTITY",
    "TAYLOR",
    "FeatureMap",
    "KVCache",
    "LinearAttentionState",
    "Places",
    "ShortConvState",
    "Stream",
    "advance",
    "implementation_for",
    "implementations",
    "init_kv_cache",
    "init_linear_attention_state",
    "init_short_conv_state",
    "init_stream",
    "init_taylor_state",
    "layer_norm",
    "left_from_paper_window",
    "left_from_torch_window",
    "linear_attention",
    "rms_norm",
    "rotary",
    "short_conv",
    "softmax_attention",
    "symmetric_taylor_features",
    "symmetric_taylor_size",
    "symmetric_to_full",
    "taylor_attention",
    "taylor_features",
    "taylor_size",
    "taylor_step",
    "window_step",
]
