"""Entries of fla's config.json (flash-linear-attention, fla/models), current and of older versions."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import INITIAL, ignored, refused, renamed, same
from based_jax.convert.options.shared import KERNEL
from based_jax.convert.options.transformers import UNREAD

_OLDER = "of older versions"
_LOSS = "affects only the loss"
_GPT2 = ("n_ctx", "reorder_and_upcast_attn", "summary_")
"""entries that only GPT-2 has"""
_READ_BY_NOTHING = "of `transformers`; does not affect logits"
_NORM = "in configs of `transformers` and of older versions (time_step_limit instead of dt_limit)"
_ROUNDED = "channels are rounded down, as in their code"

_TRANSFORMERS = tuple(
    ignored(row.name, "None" if row.name.endswith("token_id") else row.default, _READ_BY_NOTHING)
    for row in UNREAD
    if not row.name.startswith(_GPT2)
)


def _model(model_type: str, *rows: Option, layers: int = 24) -> tuple[Option, ...]:
    """Return the rows of a model, with those that all models share."""
    return (
        refused("model_type", repr(model_type), "identifies the model"),
        renamed("hidden_size", "2048", "d_model", "required"),
        renamed("num_hidden_layers", f"{layers}", "schedule", "required"),
        *rows,
        same("vocab_size", "32000"),
        renamed("tie_word_embeddings", "False", "tie_embeddings"),
        renamed("initializer_range", "0.02", "init_std"),
        ignored("fuse_norm", "True", "names of tensors and a kernel"),
        ignored("fuse_cross_entropy", "True", _LOSS),
        ignored("fuse_linear_cross_entropy", "False", _LOSS),
        ignored("use_l2warp", "False", _LOSS),
    )


def _block(ratio: str) -> tuple[Option, ...]:
    """Return the rows of models whose blocks have an MLP."""
    return (
        renamed("hidden_ratio", ratio, "mlp_hidden", "not read if intermediate_size is given"),
        renamed("intermediate_size", "None", "mlp_hidden"),
        refused("hidden_act", "'swish'", "the MLP is SwiGLU"),
        renamed("norm_eps", "1e-6", "norm_eps", "of all norms; rms_norm_eps in older versions"),
        renamed("max_position_embeddings", "2048", "max_length"),
        renamed("attn", "None", "schedule, mixers", "softmax attention in some layers: the entries below"),
        refused("attnres_block_size", "None", "attention over residual streams is not supported"),
        ignored("attn_mode", "'chunk'", KERNEL),
        ignored("fuse_swiglu", "True", KERNEL),
        ignored("share_conv_kernel", "False", f"{_OLDER}: such a model has other tensors, which are refused"),
        ignored("norm_first", "False", f"{_OLDER}: other names of the norms, inferred from the weights"),
    )


_HEADS = (
    same("num_kv_heads", "None", "num_key_value_heads in older versions"),
    renamed("feature_map", "None", "qk_activation", "relu, sigmoid, silu, swish and what squares a relu"),
    renamed("use_output_gate", "True", "gate_activation", "False: None"),
    renamed("elementwise_affine", "True", "norm_affine"),
)

_OLDER_HEADS = "num_attention_heads in older versions"

_DELTA = (
    renamed("use_short_conv", "True", "kernel_size", "False: None"),
    renamed("conv_size", "4", "kernel_size"),
    same("allow_neg_eigval", "False"),
)

_GLA = (
    same("expand_k", "0.5", _ROUNDED),
    same("expand_v", "1.0", _ROUNDED),
    same("num_heads", "4", _OLDER_HEADS),
    *_HEADS,
    renamed("use_short_conv", "False", "kernel_size", "False: None"),
    renamed("conv_size", "4", "kernel_size"),
    renamed("clamp_min", "None", "least_log_gate"),
    ignored("use_gk", "True", "never read"),
    ignored("use_gv", "False", "never read"),
)

_RETNET = (
    same("expand_k", "1.0", _ROUNDED),
    same("expand_v", "2.0", _ROUNDED),
    same("num_heads", "8", _OLDER_HEADS),
    *_HEADS,
    ignored("use_short_conv", "False", "no layer is given it"),
    ignored("conv_size", "4", "no layer is given it"),
)

_DELTA_NET = (
    same("expand_k", "1.0", _ROUNDED),
    same("expand_v", "1.0", _ROUNDED),
    same("num_heads", "16", _OLDER_HEADS),
    same("use_gate", "False"),
    *_DELTA,
    same("use_beta", "True"),
    same("qk_norm", "'l2'"),
    same("qk_activation", "'silu'"),
    refused("use_output_norm", "True", "the heads' norm is always used"),
    refused("use_rope", "False", f"{_OLDER}: rotary positions are not supported"),
    refused("use_elu", "False", f"{_OLDER}: qk_activation is 'elu' today"),
)

_GATED_DELTA_NET = (
    renamed("num_heads", "6", "num_heads, expand_k", "times head_dim, over hidden_size"),
    renamed("head_dim", "256", "expand_k", "times num_heads, over hidden_size"),
    same("num_v_heads", "None"),
    renamed("expand_v", "2.0", "expand_v", "relative to a head's key channels in their code"),
    same("use_gate", "True"),
    *_DELTA,
)

_MAMBA2 = (
    renamed("state_size", "128", "d_state"),
    same("head_dim", "64"),
    renamed(
        "num_heads", "expand * hidden_size / head_dim", "head_dim", "only this is taken, as in their code"
    ),
    renamed("n_groups", "1", "num_groups, norm_groups", f"{_NORM}: one group for the norm"),
    same("expand", "2", _ROUNDED),
    renamed("intermediate_size", "expand * hidden_size", "expand", "only this is taken, as in their code"),
    renamed("conv_kernel", "4", "d_conv"),
    renamed("use_bias", "False", "bias"),
    renamed("use_conv_bias", "True", "conv_bias"),
    refused("hidden_act", "'silu'", "the convolution and the gate take silu"),
    renamed("rmsnorm", "True", "norm"),
    same("norm_before_gate", "False", f"{_NORM}: never read"),
    renamed("norm_eps", "1e-5", "norm_eps", "of all norms; layer_norm_epsilon in older versions"),
    renamed("D_has_hdim", "False", "skip_per_channel"),
    renamed("dt_limit", "(0.0, inf)", "dt_least, dt_most", "time_step_limit in older versions"),
    renamed("A_init_range", "(1, 16)", "decay_min, decay_max", "initial values only"),
    same("dt_min", "0.001", "initial values only; time_step_min in older versions"),
    same("dt_max", "0.1", "initial values only; time_step_max in older versions"),
    renamed("dt_init_floor", "1e-4", "dt_floor", "initial values only; time_step_floor in older versions"),
    same("residual_in_fp32", "True"),
    same("chunk_size", "256", "does not affect outputs"),
    ignored("conv_init", "None", INITIAL),
    ignored("rescale_prenorm_residual", "True", INITIAL),
    ignored("rms_norm", "True", f"{_OLDER}: never read"),
    ignored("time_step_rank", "'auto'", f"{_OLDER}: never read"),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "transformers.PretrainedConfig": _TRANSFORMERS,
    "fla.models.GLAConfig": _model("gla", *_GLA, *_block("4")),
    "fla.models.RetNetConfig": _model("retnet", *_RETNET, *_block("2")),
    "fla.models.DeltaNetConfig": _model("delta_net", *_DELTA_NET, *_block("4")),
    "fla.models.GatedDeltaNetConfig": _model("gated_deltanet", *_GATED_DELTA_NET, *_block("4"), layers=21),
    "fla.models.Mamba2Config": _model("mamba2", *_MAMBA2, layers=48),
    "fla.layers.attn.Attention": (
        renamed("layers", "", "schedule"),
        same("num_heads"),
        same("num_kv_heads", "num_heads"),
        same("qkv_bias", "False"),
        renamed("window_size", "None", "left", "counts the query itself in their code"),
        renamed("rope_theta", "10000.0", "rotary_base"),
    ),
}
"""By import path; for attention, the entries of `attn`. All have those of `transformers`."""
