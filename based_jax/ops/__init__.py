"""Ops of the mixers: pure functions of (batch, length, heads, dim) arrays, without Flax.

Ops on sequences share arguments, results and errors:

- `initial_state`: continue from this state, from the op's `init_..._state` or an earlier call; None starts
  without tokens.
- `return_state`: return ``(y, state)``, the state after the last real token of each row, instead of y.
- `segment_ids`: (B, N) integers. A token sees its own segment only; a new segment begins where the id
  changes, and without ids a continued row stays in its segment.
- `mask`: (B, N) booleans, True for real tokens, which are one run in each row. Masked tokens change neither
  the state nor outputs of others.
- `chunk_size`: tokens per chunk of "xla"; it affects the memory but not the result.
- `implementation`: "reference" (the definition), "xla" (runs anywhere), another of `implementations(op)`, or
  None for the best (`implementation_for`) on the platform that a program is traced for; a named one runs or
  raises.

Outputs have the dtype of the values (v, else x); sums are float32, or float64 for float64 inputs, and caches
of keys, values and inputs keep the dtype that they were made with.
An argument of the wrong shape, dtype or value raises TypeError or ValueError, which name it, its value and
what was expected. Dimension letters: `based_jax.typing`. Sequences sharded over devices: `core.sharding`.
"""

from types import ModuleType as _ModuleType

# isort: off
# Linear attention
from based_jax.ops.linear_attention import linear_attention as linear_attention
from based_jax.ops.linear_attention import LinearAttentionState as LinearAttentionState
from based_jax.ops.linear_attention import init_linear_attention_state as init_linear_attention_state
from based_jax.ops.taylor_attention import taylor_attention as taylor_attention, taylor_step as taylor_step
from based_jax.ops.taylor_attention import init_taylor_state as init_taylor_state
from based_jax.ops.feature_maps import FeatureMap as FeatureMap, feature_map as feature_map
from based_jax.ops.feature_maps import IDENTITY as IDENTITY, TAYLOR as TAYLOR, all_poly_map as all_poly_map
from based_jax.ops.feature_maps import cosformer_features as cosformer_features
from based_jax.ops.feature_maps import performer_map as performer_map
from based_jax.ops.feature_maps import orthogonal_features as orthogonal_features
from based_jax.ops.scatterbrain import gaussian_features as gaussian_features
from based_jax.ops.feature_maps import taylor_features as taylor_features
from based_jax.ops.feature_maps import symmetric_taylor_features as symmetric_taylor_features
from based_jax.ops.feature_maps import symmetric_taylor_size as symmetric_taylor_size
from based_jax.ops.feature_maps import symmetric_to_full as symmetric_to_full

# Softmax attention, in full, in windows, and through random features or landmarks
from based_jax.ops.softmax_attention import softmax_attention as softmax_attention, window_step as window_step
from based_jax.ops.softmax_attention import merge_attention as merge_attention
from based_jax.ops.softmax_attention import left_from_paper_window as left_from_paper_window
from based_jax.ops.softmax_attention import left_from_torch_window as left_from_torch_window
from based_jax.ops.sink_attention import sink_attention as sink_attention
from based_jax.ops.sink_attention import SinkCache as SinkCache
from based_jax.ops.sink_attention import init_sink_cache as init_sink_cache
from based_jax.ops.rotary import rotary as rotary
from based_jax.ops.scatterbrain import scatterbrain_attention as scatterbrain_attention
from based_jax.ops.scatterbrain import zoology_scatterbrain as zoology_scatterbrain
from based_jax.ops.linearized_attention import linearized_attention as linearized_attention
from based_jax.ops.linearized_attention import LinearizedAttentionState as LinearizedAttentionState
from based_jax.ops.linearized_attention import init_linearized_state as init_linearized_state
from based_jax.ops.nystrom import nystrom_attention as nystrom_attention
from based_jax.ops.nystrom import landmark_attention as landmark_attention, LandmarkState as LandmarkState
from based_jax.ops.nystrom import init_landmark_state as init_landmark_state

# Recurrences
from based_jax.ops.linear_recurrence import linear_recurrence as linear_recurrence
from based_jax.ops.linear_recurrence import LinearRecurrenceState as LinearRecurrenceState
from based_jax.ops.linear_recurrence import init_linear_recurrence_state as init_linear_recurrence_state
from based_jax.ops.linear_recurrence import fixed_log_decay as fixed_log_decay
from based_jax.ops.delta_rule import delta_rule as delta_rule
from based_jax.ops.delta_rule import generalized_delta_rule as generalized_delta_rule
from based_jax.ops.wkv import wkv as wkv, WKVState as WKVState, init_wkv_state as init_wkv_state
from based_jax.ops.diagonal_scan import diagonal_scan as diagonal_scan, selective_scan as selective_scan
from based_jax.ops.diagonal_scan import DiagonalScanState as DiagonalScanState
from based_jax.ops.diagonal_scan import init_diagonal_scan_state as init_diagonal_scan_state
from based_jax.ops.diagonal_ssm import diagonal_ssm as diagonal_ssm
from based_jax.ops.diagonal_ssm import diagonal_ssm_kernel as diagonal_ssm_kernel
from based_jax.ops.diagonal_ssm import DiagonalSSMState as DiagonalSSMState
from based_jax.ops.diagonal_ssm import init_diagonal_ssm_state as init_diagonal_ssm_state
from based_jax.ops.diagonal_ssm import discretize_bilinear as discretize_bilinear

# Convolutions
from based_jax.ops.short_conv import short_conv as short_conv, short_conv_step as short_conv_step
from based_jax.ops.short_conv import ShortConvState as ShortConvState
from based_jax.ops.short_conv import init_short_conv_state as init_short_conv_state
from based_jax.ops.short_conv import token_shift as token_shift
from based_jax.ops.short_conv import init_token_shift_state as init_token_shift_state
from based_jax.ops.long_conv import long_conv as long_conv, LongConvState as LongConvState
from based_jax.ops.long_conv import init_long_conv_state as init_long_conv_state

# Products of scores: HyperAttention and HyperFeatureAttention
from based_jax.ops.hyper_attention import hyper_attention as hyper_attention
from based_jax.ops.hyper_feature_attention import hyper_feature_attention as hyper_feature_attention
from based_jax.ops.linear_hyper_attention import linear_hyper_attention as linear_hyper_attention
from based_jax.ops.linear_hyper_attention import LinearHyperState as LinearHyperState
from based_jax.ops.linear_hyper_attention import init_linear_hyper_state as init_linear_hyper_state
from based_jax.ops.linear_hyper_attention import hyper_taylor_map as hyper_taylor_map

# Conv basis; `based_jax.ops.conv_basis` has the search for one
from based_jax.ops.conv_basis.conv_attention import conv_attention as conv_attention
from based_jax.ops.conv_basis.conv_attention import ConvAttentionState as ConvAttentionState
from based_jax.ops.conv_basis.conv_attention import init_conv_attention_state as init_conv_attention_state
from based_jax.ops.conv_basis.conv_basis import conv_decompose as conv_decompose

# Losses and norms
from based_jax.ops.cross_entropy import cross_entropy as cross_entropy
from based_jax.ops.norm import l2_norm as l2_norm, layer_norm as layer_norm, rms_norm as rms_norm

# Positions and caches, which states hold
from based_jax.ops.core.kv_cache import KVCache as KVCache, init_kv_cache as init_kv_cache
from based_jax.ops.core.stream import Stream as Stream, TokenPositions as TokenPositions
from based_jax.ops.core.stream import init_stream as init_stream, advance as advance

# Implementations
from based_jax.ops.core.implementations import implementation_for as implementation_for
from based_jax.ops.core.implementations import implementations as implementations, register as register

# Set at run time only: type checkers read the imports' `as` instead.
globals()["__all__"] = sorted(
    name for name, value in globals().items() if not (name.startswith("_") or isinstance(value, _ModuleType))
)


def __dir__() -> list[str]:
    return list(globals()["__all__"])
