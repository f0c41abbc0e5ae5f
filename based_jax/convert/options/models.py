"""Arguments of Based's and flash-attention's GPT, and of its parts."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.shared import BLOCK, FACTORY, KERNEL, MLP_SIZES, MULTIPLE, RETURNED, SHARDING
from based_jax.convert.options.transformers import UNREAD

# In the order of flash-attention's `create_mixer_cls`, `create_mlp_cls`, `create_block` and `GPTModel`.
_GPT: tuple[Option, ...] = (
    Option("model_type", "'gpt2'", "", "refused", "identifies the model"),
    Option("n_embd", "768", "d_model", "renamed", "also hidden_size; one of them is required here"),
    Option("n_head", "12", "num_heads", "renamed", "also num_attention_heads; of the softmax layers"),
    Option("n_layer", "12", "schedule", "renamed", "also num_hidden_layers"),
    Option("n_head_kv", "None", "num_kv_heads", "renamed", ""),
    Option(
        "head_dim",
        "n_embd // n_head",
        "scale, rotary_fraction",
        "renamed",
        "affects only the scale and the rotary channels, not the width of a head, as in their code",
    ),
    Option("scale_attn_weights", "True", "scale", "renamed", "False is a scale of 1"),
    Option("scale_attn_by_inverse_layer_idx", "False", "scale", "renamed", "divided by the layer's number"),
    Option("qkv_proj_bias", "True", "qkv_bias", "renamed", "if absent, inferred from the weights"),
    Option("out_proj_bias", "True", "out_bias", "renamed", "if absent, inferred from the weights"),
    Option("attn_pdrop", "0.1", "dropout", "renamed", "of the softmax layers' weights"),
    Option("rotary_emb_fraction", "0.0", "rotary_fraction", "renamed", ""),
    Option("rotary_emb_base", "10000.0", "rotary_base", "renamed", ""),
    Option("rotary_emb_interleaved", "False", "rotary_interleaved", "renamed", ""),
    Option("rotary_emb_scale_base", "None", "", "refused", "xPos decay of rotary channels is not supported"),
    Option(
        "attn_dwconv", "False", "", "refused", "a convolution of queries, keys and values is not supported"
    ),
    Option("use_flash_attn", "False", "", "ignored", KERNEL),
    Option("fused_bias_fc", "False", "", "ignored", KERNEL),
    Option(
        "activation_function",
        "'gelu_new'",
        "mlp, mlp_activation",
        "renamed",
        "gated: swiglu, geglu, glu; plain: gelu, gelu_new and its other names, relu, sqrelu",
    ),
    Option("n_inner", "None", "mlp_hidden", "renamed", "rounded as in their code"),
    Option("mlp_fc1_bias", "True", "mlp_bias", "renamed", "if absent, inferred from the weights"),
    Option("mlp_fc2_bias", "True", "mlp_out_bias", "renamed", "if absent, inferred from the weights"),
    Option("fused_mlp", "False", "", "ignored", KERNEL),
    Option("fused_dense_sqrelu_dense", "False", "", "ignored", KERNEL),
    Option("mlp_checkpoint_lvl", "0", "", "ignored", "what the backward pass keeps; see `remat`"),
    Option("rms_norm", "False", "norm", "renamed", "if absent, inferred from the weights"),
    Option("layer_norm_epsilon", "1e-5", "norm_eps", "renamed", ""),
    Option("resid_pdrop", "0.1", "residual_dropout", "renamed", ""),
    Option("embd_pdrop", "0.1", "embed_dropout", "renamed", ""),
    Option("residual_in_fp32", "False", "residual_in_fp32", "same", ""),
    Option("prenorm", "True", "block", "renamed", "False is 'postnorm', without a final norm"),
    Option(
        "parallel_block",
        "False",
        "block",
        "renamed",
        "'parallel'; Based's code fails here, for want of an import",
    ),
    Option("parallel_block_tied_norm", "False", "block", "renamed", "'parallel_tied'"),
    Option("fused_dropout_add_ln", "False", "", "ignored", KERNEL),
    Option("sequence_parallel", "True", "", "ignored", SHARDING),
    Option("vocab_size", "50257", "vocab_size", "same", ""),
    Option("pad_vocab_size_multiple", "1", "pad_vocab_multiple", "renamed", ""),
    Option(
        "max_position_embeddings",
        "n_positions",
        "max_positions",
        "renamed",
        "if both are absent, inferred from the weights",
    ),
    Option("n_positions", "1024", "max_length", "renamed", "another name of the entry above in their code"),
    Option("word_embed_proj_dim", "None", "embed_dim", "renamed", ""),
    Option("tie_word_embeddings", "True", "tie_embeddings", "renamed", ""),
    Option("lm_head_bias", "False", "", "refused", "the loss is computed from the head's matrix alone"),
    Option("initializer_range", "0.02", "init_std", "renamed", ""),
)

_BASED: tuple[Option, ...] = (
    Option("mixer", "None", "mixers", "renamed", "of layers that neither list below has; None is MHA"),
    Option("alt_mixer", "None", "mixers", "renamed", ""),
    Option("alt_mixer_layers", "None", "schedule", "renamed", ""),
    Option("alt_mixer_2", "None", "mixers", "renamed", ""),
    Option("alt_mixer_2_layers", "None", "schedule", "renamed", "wins over alt_mixer_layers"),
    Option("mixer_layers", "None", "", "ignored", "never read"),
    Option("mlp_type", "'base'", "", "renamed", "'alt' is the same map with its matrices apart (fc3)"),
    Option("ff_mult", "2", "mlp_hidden", "renamed", "of the MLP 'alt' alone"),
    Option("special_initializer", "False", "", "ignored", "the range that it computes is never used"),
    Option("use_weight_init", "True", "", "ignored", "initial values only; ours are those of True"),
    Option("fixed_decay", "False", "", "ignored", "a buffer, transformer.decay.decay, that no mixer uses"),
    Option("decay_const", "-5", "", "ignored", "of that buffer"),
    Option("decay_denom", "True", "", "ignored", "of that buffer"),
)

_FLASH: tuple[Option, ...] = (
    Option("window_size", "(-1, -1)", "left", "renamed", "the mixer is then sliding_window"),
    Option("use_alibi", "False", "", "refused", "attention with linear biases is not supported"),
    Option(
        "mlp_multiple_of", "128", "mlp_hidden", "renamed", "256 where it is not given, as in Based's models"
    ),
    Option("mup_scale_qk_dot_by_d", "False", "", "refused", "muP is not supported"),
    Option("mup_attn_multiplier", "1.0", "", "refused", "muP is not supported"),
    Option("mup_embeddings_multiplier", "1.0", "", "refused", "muP is not supported"),
    Option("mup_output_multiplier", "1.0", "", "refused", "muP is not supported"),
    Option("mup_width_scale", "1.0", "", "refused", "muP is not supported"),
    Option("norm_head", "False", "", "refused", "heads of rows of norm 1 are not supported"),
)

_DROPOUT = Option("dropout_cls", "nn.Dropout", "", "refused", "only dropout of single numbers")

_DROPS = (
    Option("resid_dropout1", "0.0", "dropout1", "renamed", ""),
    Option("resid_dropout2", "0.0", "dropout2", "renamed", ""),
)

_RUNS = (
    Option("fused_dropout_add_ln", "False", "", "ignored", KERNEL),
    Option("residual_in_fp32", "False", "residual_in_fp32", "same", ""),
    Option("sequence_parallel", "False", "", "ignored", SHARDING),
    Option("mark_shared_params", "False", "", "ignored", SHARDING),
)

_MLP = (
    *MLP_SIZES,
    Option("activation", "F.gelu", "activation", "same", "by name, see `ACTIVATIONS`"),
    Option("bias1", "True", "bias", "renamed", "inferred from the weights"),
    Option("bias2", "True", "out_bias", "renamed", "inferred from the weights"),
    RETURNED,
    *FACTORY,
)

_GATED = (
    *MLP_SIZES,
    Option("activation", "F.sigmoid", "activation", "same", "by name, see `ACTIVATIONS`"),
    *_MLP[4:6],
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "based.models.gpt.GPTLMHeadModel": (*_GPT, *_BASED, *UNREAD),
    "flash_attn.models.gpt.GPTLMHeadModel": (*_GPT, *_FLASH, *_BASED, *UNREAD),
    "based.models.block.Block": (
        *BLOCK,
        _DROPOUT,
        Option("prenorm", "True", "kind", "renamed", ""),
        *_DROPS,
        Option("drop_path1", "0.0", "drop_path", "renamed", "one probability for both branches"),
        Option("drop_path2", "0.0", "drop_path", "renamed", "one probability for both branches"),
        _RUNS[0],
        RETURNED,
        *_RUNS[1:],
        Option("layer_idx", "None", "", "ignored", "keys of a decoding cache; states are arguments here"),
    ),
    "flash_attn.modules.block.ParallelBlock": (
        *BLOCK,
        _DROPOUT,
        *_DROPS,
        Option("tied_norm", "False", "kind", "renamed", "'parallel_tied'"),
        *_RUNS,
    ),
    "flash_attn.modules.mlp.Mlp": _MLP,
    "flash_attn.modules.mlp.GatedMlp": (
        *_GATED,
        Option("multiple_of", "128", "hidden", "renamed", MULTIPLE),
        RETURNED,
        *FACTORY,
    ),
    "based.models.mlp.GatedMlp": (
        *_GATED,
        Option("multiple_of", "256", "hidden", "renamed", MULTIPLE),
        RETURNED,
        *FACTORY,
        Option("mlp_type", "'base'", "", "renamed", "'alt' is the same map with its matrices apart (fc3)"),
        Option("ff_mult", "2", "hidden", "renamed", "of 'alt' alone"),
    ),
    "flash_attn.modules.embedding.GPT2Embeddings": (
        Option("embed_dim", "", "d_model", "renamed", ""),
        Option("vocab_size", "", "vocab_size", "same", ""),
        Option("max_position_embeddings", "", "max_positions", "renamed", "0 or less is none"),
        Option("padding_idx", "None", "", "refused", "no row is kept at zero here"),
        Option("word_embed_proj_dim", "None", "embed_dim", "renamed", ""),
        *FACTORY,
    ),
    "based.models.modules.seq_common.PositionalEncoding": (
        Option("d_model", "", "d_model", "same", "the positions 'sinusoidal' of a `ModelConfig`"),
        Option("dropout", "0.1", "embed_dropout", "renamed", ""),
        Option("max_len", "5000", "max_positions", "renamed", ""),
        Option("batch_first", "False", "", "ignored", "order of axes"),
        Option("initializer", "None", "", "refused", "a table of another kind"),
    ),
    "based.ops.triton.layer_norm.RMSNorm": (
        Option("hidden_size", "", "", "renamed", "read off the input"),
        Option("eps", "1e-5", "eps", "same", ""),
        Option("dropout_p", "0.0", "", "refused", "dropout belongs to the blocks"),
        *FACTORY,
    ),
}
"""By import path, like all tables of this package; a language model's options are its config's entries."""
