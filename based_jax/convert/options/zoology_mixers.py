"""Arguments of Zoology's attention, sparse and selective mixers."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import (
    D_MODEL,
    FAILS,
    KEYWORDS,
    LAYER,
    SWALLOWED,
    TENSORS,
    dropout,
    ignored,
    refused,
    renamed,
    same,
)

_BIAS = renamed("bias", "True", "qkv_bias")
_SELECTION = (
    D_MODEL,
    same("num_heads", "1"),
    _BIAS,
    dropout(),
    LAYER,
    renamed("mode", "'train'", "hard", "how the module was run: 'train', or 'eval' with the k largest alone"),
)
_SET = "overridden in their code"

OPTIONS: dict[str, tuple[Option, ...]] = {
    "zoology.mixers.attention.MHA": (D_MODEL, same("num_heads", "1"), _BIAS, same("dropout", "0.0"), LAYER),
    "zoology.mixers.based.Based": (
        D_MODEL,
        ignored("l_max", "2048", "does not affect outputs"),
        same("feature_dim", "16"),
        refused(
            "num_key_value_heads", "None", "other numbers than num_heads (12 by default) fail in their code"
        ),
        same("num_heads", "12", "need not divide d_model"),
        renamed("feature_name", "'taylor_exp'", "feature_map"),
        renamed("feature_kwargs", "{}", "feature_scale, feature_floor, num_features", "see the maps"),
        same("eps", "1e-12"),
        refused("causal", "True", "False looks at later tokens, with train_view = 'linear'"),
        renamed("apply_rotary", "False", "rotary_fraction"),
        renamed("rope_theta", "10000.0", "rotary_base"),
        ignored("train_view", "'linear'", "two orders of the same sums"),
        *KEYWORDS[1:],
    ),
    "zoology.mixers.slide_attn.SlidingAttn": (
        D_MODEL,
        renamed("block_size", "256", "left"),
        _BIAS,
        same("dropout", "0.0"),
        ignored("attention_dropout", "", SWALLOWED),
        ignored("num_heads", "1", "there is one head"),
        *KEYWORDS,
    ),
    "zoology.mixers.bigbird.BigBIRDAttention": (
        D_MODEL,
        same("block_size", "128"),
        _BIAS,
        dropout(),
        ignored("attention_dropout", "", SWALLOWED),
        *KEYWORDS,
    ),
    "zoology.mixers.nystromformer.NystromAttention": (
        D_MODEL,
        dropout(),
        ignored("num_heads", "16", "heads are never split; with conv_kernel_size only 1 keeps rows apart"),
        same("num_landmarks", "64"),
        refused("landmark_pooling", "None", "a module of the caller's"),
        ignored("causal", "True", f"{_SET}: True"),
        renamed("use_razavi_pinverse", "True", "pinverse", "False: 'svd'"),
        renamed("pinverse_original_init", "False", "pinverse", "True: 'shared'"),
        renamed("inv_iterations", "6", "iterations"),
        refused("v_skip_connection", "None", "a module of the caller's"),
        same("conv_kernel_size", "None", "even numbers fail in their code"),
        *KEYWORDS,
    ),
    "zoology.mixers.scatterbrain.attn.SBLocalAttention": (
        D_MODEL,
        same("num_heads"),
        refused("num_heads_kv", "None", "other numbers than num_heads fail in their code"),
        renamed("qkv_proj_bias", "True", "qkv_bias"),
        renamed("out_proj_bias", "True", "out_bias"),
        dropout("0.1"),
        ignored("softmax_scale", "None", f"{_SET}: head_dim^(-1/2)"),
        ignored("causal", "False", f"{_SET}: True"),
        LAYER,
        renamed("rotary_emb_dim", "0", "rotary_fraction"),
        renamed("rotary_emb_base", "10000.0", "rotary_base"),
        refused("rotary_emb_scale_base", "None", "xPos is not supported"),
        renamed("rotary_emb_interleaved", "False", "rotary_interleaved"),
        renamed("window_size", "(-1, -1)", "left", "a number; the default fails in their code"),
        ignored("fused_bias_fc", "False", "only checks that a kernel is installed"),
        *TENSORS,
        same("feature_dim", "24", "odd numbers are rounded down, as in their code"),
        refused("performer_eps", "0.0001", "a constant in their code"),
        *KEYWORDS[:1],
    ),
    "zoology.mixers.selective.SMA": (*_SELECTION, same("alpha", "0.3", "of the initial temperature")),
    "zoology.mixers.selective.SelectiveLookups": _SELECTION,
    "zoology.mixers.selective.SigmoidLookups": (
        *_SELECTION,
        renamed("selection_penalty", "0.001", "penalty"),
        renamed("n_lookups", "None", "lookups"),
    ),
    "zoology.mixers.hybrid.Hybrid": (
        D_MODEL,
        renamed("configs", "", "mixers, schedule", "of a model: its layers take them in turn"),
        renamed("layer_idx", "None", "schedule", FAILS),
    ),
}
