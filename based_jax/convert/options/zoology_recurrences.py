"""Arguments of Zoology's gated, delta-rule and RWKV mixers (Mamba's: `mamba`)."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import (
    D_MODEL,
    FAILS,
    KEYWORDS,
    LAYER,
    ignored,
    refused,
    renamed,
    same,
)

_GATES = "gelu, relu, sigmoid, silu, sqrelu or swish"
_MODE = ignored("mode", "'chunk'", "selects a kernel; same results")
_CONV = (
    renamed("conv_size", "4", "kernel_size"),
    ignored("conv_bias", "False", "never read"),
)
_DELTA = (
    same("use_gate"),
    refused("use_short_conv", "True", FAILS),
    *_CONV,
    LAYER,
    same("norm_eps", "1e-5"),
    ignored("l_max", "", "**kwargs takes it, never read"),
)
_DEPTH = (
    ignored("l_max", "", "maximum length of the CUDA kernel"),
    D_MODEL,
    renamed("n_layer", "12", "num_layers", "of the initial values"),
    renamed("layer_idx", "-1", "layer", "of the initial values"),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "zoology.mixers.gla.GatedLinearAttention": (
        _MODE,
        D_MODEL,
        same("expand_k", "0.5", "channels are rounded down, as in their code"),
        same("expand_v", "1.0", "channels are rounded down, as in their code"),
        same("num_heads", "4"),
        same("num_kv_heads", "None"),
        renamed("feature_map", "None", "qk_activation", _GATES),
        renamed("use_short_conv", "False", "kernel_size"),
        *_CONV,
        renamed("use_output_gate", "True", "gate_activation", "False: None"),
        renamed("gate_fn", "'swish'", "gate_activation", _GATES),
        renamed("elementwise_affine", "True", "norm_affine"),
        same("norm_eps", "1e-5"),
        same("gate_logit_normalizer", "16"),
        same("gate_low_rank_dim", "16"),
        renamed("clamp_min", "None", "least_log_gate"),
        ignored("fuse_norm", "True", "names of tensors and a kernel"),
        LAYER,
    ),
    "zoology.mixers.delta_net.DeltaNet": (
        _MODE,
        D_MODEL,
        same("expand_k", "1.0", "channels are rounded down, as in their code"),
        same("expand_v", "1.0", "channels are rounded down, as in their code"),
        same("num_heads", "4"),
        same("use_beta", "True"),
        *_DELTA,
        same("allow_neg_eigval", "False"),
        same("qk_activation", "'silu'"),
        same("qk_norm", "'l2'"),
    ),
    "zoology.mixers.gated_delta_net.GatedDeltaNet": (
        D_MODEL,
        renamed("expand_v", "2", "expand_v", "over the key channels in their code; only integers work"),
        renamed("num_heads", "6", "num_heads, expand_k", "need not divide d_model"),
        _MODE,
        *_DELTA,
    ),
    "zoology.mixers.rwkv.RWKVTimeMixer": _DEPTH,
    "zoology.mixers.rwkv.RWKVStateMixer": _DEPTH[1:],
    "zoology.mixers.rwkv5.RWKVTimeMixer": (
        *_DEPTH,
        renamed("head_size", "64", "head_size", "a constant in their code"),
        refused("head_size_divisor", "8", "a constant in their code"),
        renamed("groupnorm_eps", "1e-5", "norm_eps", "a constant in their code"),
    ),
    "zoology.mixers.rwkv7.RWKV7Attention": (
        _MODE,
        D_MODEL,
        same("head_dim", "64"),
        renamed("num_heads", "None", "head_dim"),
        renamed("decay_low_rank_dim", "64", "decay_rank"),
        renamed("gate_low_rank_dim", "128", "gate_rank"),
        renamed("a_low_rank_dim", "64", "rate_rank"),
        ignored("v_low_rank_dim", "16", "none of their models passes v_first on, so its map is never used"),
        renamed(
            "low_rank_dims", "'64,128,64,16'", "decay_rank, gate_rank, rate_rank", "as fixtures write them"
        ),
        renamed("elementwise_affine", "True", "norm_affine"),
        same("norm_eps", "1e-5"),
        ignored("groupnorm_eps", "", "a description in fixtures"),
        renamed("layer_idx", "None", "", "other than 0: the unused map of v_first is dropped"),
        *KEYWORDS[:1],
    ),
}
