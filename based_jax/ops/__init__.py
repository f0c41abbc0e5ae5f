"""What the mixers compute: pure array functions, (batch, length, heads, dim), no Flax."""

from based_jax.ops.conv_attention import (
    ConvAttentionState,
    conv_attention,
    init_conv_attention_state,
)
from based_jax.ops.conv_basis import (
    conv_assemble,
    conv_decompose,
    conv_exp,
    conv_matrix,
    conv_separation,
)
from based_jax.ops.conv_recovery import (
    ConvFit,
    conv_anchors,
    conv_fit,
    conv_recover,
    conv_score_error,
)
from based_jax.ops.cross_entropy import cross_entropy
from based_jax.ops.delta_rule import delta_rule, generalized_delta_rule
from based_jax.ops.diagonal_scan import (
    DiagonalScanState,
    diagonal_scan,
    init_diagonal_scan_state,
    selective_scan,
)
from based_jax.ops.diagonal_ssm import (
    DiagonalSSMState,
    diagonal_ssm,
    discretize_bilinear,
    init_diagonal_ssm_state,
)
from based_jax.ops.feature_maps import (
    FEATURE_MAPS,
    IDENTITY,
    TAYLOR,
    FeatureMap,
    all_poly_map,
    cosformer_features,
    orthogonal_features,
    performer_map,
    symmetric_taylor_features,
    symmetric_taylor_size,
    symmetric_to_full,
    taylor_features,
    taylor_size,
)
from based_jax.ops.hyper_attention import hyper_attention
from based_jax.ops.hyper_feature_attention import hyper_feature_attention
from based_jax.ops.input_filters import repeated_lags, shifted_sum, strongest_lags
from based_jax.ops.interval_sums import interval_sums
from based_jax.ops.kv_cache import KVCache, init_kv_cache
from based_jax.ops.linear_attention import (
    LinearAttentionState,
    init_linear_attention_state,
    linear_attention,
)
from based_jax.ops.linear_hyper_attention import (
    LinearHyperState,
    hyper_taylor_map,
    init_linear_hyper_state,
    linear_hyper_attention,
)
from based_jax.ops.linear_recurrence import (
    LinearRecurrenceState,
    fixed_log_decay,
    init_linear_recurrence_state,
    linear_recurrence,
)
from based_jax.ops.long_conv import LongConvState, init_long_conv_state, long_conv
from based_jax.ops.masked_low_rank import masked_low_rank
from based_jax.ops.norm import l2_norm, layer_norm, rms_norm
from based_jax.ops.nystrom import (
    LandmarkState,
    init_landmark_state,
    iterative_pinv,
    landmark_attention,
    nystrom_attention,
)
from based_jax.ops.polynomial_features import (
    polynomial_degree,
    polynomial_error,
    polynomial_map,
    polynomial_size,
)
from based_jax.ops.registration import implementation_for, implementations, register
from based_jax.ops.rotary import rotary
from based_jax.ops.scatterbrain import (
    ScatterBrainState,
    gaussian_features,
    init_scatterbrain_state,
    scatterbrain_attention,
    zoology_scatterbrain,
)
from based_jax.ops.selection import (
    NOTHING,
    attention_of_some,
    highest,
    repeated,
    repeated_in,
    running_log_sum,
    segment_lengths,
    segment_softmax,
    segment_sum,
)
from based_jax.ops.short_conv import ShortConvState, init_short_conv_state, short_conv
from based_jax.ops.softmax_attention import (
    left_from_paper_window,
    left_from_torch_window,
    merge_attention,
    softmax_attention,
    window_step,
)
from based_jax.ops.stream import Places, Stream, advance, init_stream
from based_jax.ops.structured_masks import (
    CausalMask,
    DistinctColumnsMask,
    DistinctRowsMask,
    IntervalMask,
    RowChangeMask,
    StructuredMask,
    band_mask,
    block_mask,
    distinct_columns_mask,
    distinct_rows_mask,
    interval_mask,
    mask_gallery,
    row_change_mask,
    row_changes,
)
from based_jax.ops.taylor_attention import init_taylor_state, taylor_attention, taylor_step
from based_jax.ops.tensor_product import sketched_product_map, tensor_product, tensor_product_map
from based_jax.ops.toeplitz import (
    circulant_multiply,
    conv_multiply,
    sub_conv_multiply,
    toeplitz_multiply,
)
from based_jax.ops.token_shift import init_token_shift_state, token_shift
from based_jax.ops.wkv import WKVState, init_wkv_state, wkv

__all__ = [
    "FEATURE_MAPS",
    "IDENTITY",
    "NOTHING",
    "TAYLOR",
    "CausalMask",
    "ConvAttentionState",
    "ConvFit",
    "DiagonalSSMState",
    "DiagonalScanState",
    "DistinctColumnsMask",
    "DistinctRowsMask",
    "FeatureMap",
    "IntervalMask",
    "KVCache",
    "LandmarkState",
    "LinearAttentionState",
    "LinearHyperState",
    "LinearRecurrenceState",
    "LongConvState",
    "Places",
    "RowChangeMask",
    "ScatterBrainState",
    "ShortConvState",
    "Stream",
    "StructuredMask",
    "WKVState",
    "advance",
    "all_poly_map",
    "attention_of_some",
    "band_mask",
    "block_mask",
    "circulant_multiply",
    "conv_anchors",
    "conv_assemble",
    "conv_attention",
    "conv_decompose",
    "conv_exp",
    "conv_fit",
    "conv_matrix",
    "conv_multiply",
    "conv_recover",
    "conv_score_error",
    "conv_separation",
    "cosformer_features",
    "cross_entropy",
    "delta_rule",
    "diagonal_scan",
    "diagonal_ssm",
    "discretize_bilinear",
    "distinct_columns_mask",
    "distinct_rows_mask",
    "fixed_log_decay",
    "gaussian_features",
    "generalized_delta_rule",
    "highest",
    "hyper_attention",
    "hyper_feature_attention",
    "hyper_taylor_map",
    "implementation_for",
    "implementations",
    "init_conv_attention_state",
    "init_diagonal_scan_state",
    "init_diagonal_ssm_state",
    "init_kv_cache",
    "init_landmark_state",
    "init_linear_attention_state",
    "init_linear_hyper_state",
    "init_linear_recurrence_state",
    "init_long_conv_state",
    "init_scatterbrain_state",
    "init_short_conv_state",
    "init_stream",
    "init_taylor_state",
    "init_token_shift_state",
    "init_wkv_state",
    "interval_mask",
    "interval_sums",
    "iterative_pinv",
    "l2_norm",
    "landmark_attention",
    "layer_norm",
    "left_from_paper_window",
    "left_from_torch_window",
    "linear_attention",
    "linear_hyper_attention",
    "linear_recurrence",
    "long_conv",
    "mask_gallery",
    "masked_low_rank",
    "merge_attention",
    "nystrom_attention",
    "orthogonal_features",
    "performer_map",
    "polynomial_degree",
    "polynomial_error",
    "polynomial_map",
    "polynomial_size",
    "register",
    "repeated",
    "repeated_in",
    "repeated_lags",
    "rms_norm",
    "rotary",
    "row_change_mask",
    "row_changes",
    "running_log_sum",
    "scatterbrain_attention",
    "segment_lengths",
    "segment_softmax",
    "segment_sum",
    "selective_scan",
    "shifted_sum",
    "short_conv",
    "sketched_product_map",
    "softmax_attention",
    "strongest_lags",
    "sub_conv_multiply",
    "symmetric_taylor_features",
    "symmetric_taylor_size",
    "symmetric_to_full",
    "taylor_attention",
    "taylor_features",
    "taylor_size",
    "taylor_step",
    "tensor_product",
    "tensor_product_map",
    "toeplitz_multiply",
    "token_shift",
    "window_step",
    "wkv",
    "zoology_scatterbrain",
]
