"""Arguments of Mamba's language model, its attention and its MLP."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.shared import BLOCK, FACTORY, KERNEL, MLP_SIZES, MULTIPLE

_INERT_IN_MAMBA: tuple[Option, ...] = tuple(
    Option(name, default, "", "ignored", "an entry of GPT, never read by a Mamba model")
    for name, default in {
        "n_embd": "1024",
        "n_head": "16",
        "n_inner": "None",
        "reorder_and_upcast_attn": "False",
        "scale_attn_by_inverse_layer_idx": "False",
        "use_flash_attn": "False",
        "fused_dropout_add_ln": "False",
        "fused_mlp": "False",
        "fused_bias_fc": "False",
        "tie_word_embeddings": "True",
        "architectures": "None",
        "torch_dtype": "None",
        "transformers_version": "None",
    }.items()
)

_MAMBA: tuple[Option, ...] = (
    Option("d_model", "2560", "d_model", "same", ""),
    Option("d_intermediate", "0", "mlp_hidden", "renamed", "rounded up to a multiple of 128; 0 is no MLP"),
    Option("n_layer", "64", "schedule", "renamed", ""),
    Option("vocab_size", "50277", "vocab_size", "same", ""),
    Option("ssm_cfg", "{}", "mixers", "renamed", "the options of Mamba, below"),
    Option("attn_layer_idx", "[]", "schedule", "renamed", ""),
    Option("attn_cfg", "{}", "mixers", "renamed", "the options of MHA, below"),
    Option("rms_norm", "True", "norm", "renamed", ""),
    Option("norm_epsilon", "1e-5", "norm_eps", "renamed", "of MixerModel; a MambaConfig has no such entry"),
    Option("residual_in_fp32", "True", "residual_in_fp32", "same", ""),
    Option("fused_add_norm", "True", "", "ignored", KERNEL),
    Option("pad_vocab_size_multiple", "8", "pad_vocab_multiple", "renamed", ""),
    Option("tie_embeddings", "True", "tie_embeddings", "same", ""),
    Option("n_positions", "2048", "max_length", "renamed", "of Based's MambaConfig"),
    Option("use_fast_path", "True", "", "ignored", KERNEL),
    Option("model_type", "'mamba'", "", "renamed", "identifies the model; also 'gpt2'"),
    *_INERT_IN_MAMBA,
)

_MAMBA_MIXER: tuple[Option, ...] = (
    Option("layer", "'Mamba1'", "", "refused", "Mamba2 and Mamba3 models are not read"),
    Option("d_state", "16", "d_state", "same", ""),
    Option("d_conv", "4", "d_conv", "same", ""),
    Option("expand", "2", "expand", "same", "channels are rounded down, as in their code"),
    Option("dt_rank", "'auto'", "dt_rank", "same", ""),
    Option("dt_min", "0.001", "dt_min", "same", "initial values only"),
    Option("dt_max", "0.1", "dt_max", "same", "initial values only"),
    Option("dt_init", "'random'", "dt_init", "same", "initial values only"),
    Option("dt_scale", "1.0", "dt_scale", "same", "initial values only"),
    Option("dt_init_floor", "1e-4", "dt_floor", "renamed", "initial values only"),
    Option("conv_bias", "True", "conv_bias", "same", ""),
    Option("bias", "False", "bias", "same", ""),
    Option("use_fast_path", "True", "", "ignored", KERNEL),
)

_MAMBA_ATTENTION: tuple[Option, ...] = (
    Option("num_heads", "", "num_heads", "same", ""),
    Option("num_heads_kv", "None", "num_kv_heads", "renamed", ""),
    Option("head_dim", "None", "head_dim", "same", ""),
    Option("mlp_dim", "0", "", "refused", "an MLP inside the attention is not supported"),
    Option("qkv_proj_bias", "True", "qkv_bias", "renamed", ""),
    Option("out_proj_bias", "True", "out_bias", "renamed", ""),
    Option("softmax_scale", "None", "scale", "renamed", ""),
    Option("causal", "False", "", "renamed", "only true is taken: the models are causal"),
    Option("d_conv", "0", "", "refused", "a convolution of queries, keys and values is not supported"),
    Option("rotary_emb_dim", "0", "rotary_fraction", "renamed", "divided by the width of a head"),
    Option("rotary_emb_base", "10000.0", "rotary_base", "renamed", ""),
    Option("rotary_emb_interleaved", "False", "rotary_interleaved", "renamed", ""),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "mamba_ssm.models.config_mamba.MambaConfig": _MAMBA,
    "mamba_ssm.modules.mamba_simple.Mamba": _MAMBA_MIXER,
    "mamba_ssm.modules.mha.MHA": _MAMBA_ATTENTION,
    "mamba_ssm.modules.mlp.GatedMLP": (
        *MLP_SIZES,
        Option("activation", "F.silu", "activation", "same", ""),
        Option("bias", "False", "bias", "same", ""),
        Option("multiple_of", "128", "hidden", "renamed", MULTIPLE),
        *FACTORY,
    ),
    "mamba_ssm.modules.block.Block": (
        *BLOCK,
        Option("fused_add_norm", "False", "", "ignored", KERNEL),
        Option("residual_in_fp32", "False", "residual_in_fp32", "same", ""),
    ),
}
"""By import path."""
