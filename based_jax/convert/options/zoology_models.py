"""Arguments of Zoology's language models: config, blocks, embeddings and MLPs."""

from based_jax.convert.options.option import Option

_MLP: tuple[Option, ...] = (
    Option("d_model", "", "d_model", "same", ""),
    Option("hidden_mult", "1", "hidden", "renamed", "times d_model; inferred from the weights"),
    Option("activation", "F.gelu", "activation", "same", "gelu (exact), relu, silu or sigmoid, by name"),
    Option("return_residual", "False", "", "ignored", "also returns the input; same results"),
    Option("layer_idx", "None", "", "ignored", "never read"),
)

_MAMBA_BLOCK: tuple[Option, ...] = (
    Option("config", "", "", "renamed", "d_model, and the keywords of the mixer"),
    Option("fused_add_norm", "True", "", "ignored", "selects a kernel; same results"),
    Option("residual_in_fp32", "True", "residual_in_fp32", "same", ""),
    Option("norm_epsilon", "1e-5", "norm_eps", "renamed", "always 1e-5 in a language model"),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "zoology.config.ModelConfig": (
        Option(
            "sequence_mixer",
            "None",
            "mixers",
            "renamed",
            "of every layer; Hybrid gives each one of its list in turn",
        ),
        Option("state_mixer", "MLP(hidden_mult=4)", "mlp", "renamed", "MLP, GLU or Identity; no others"),
        Option("d_model", "128", "d_model", "same", ""),
        Option("n_layers", "2", "schedule", "renamed", ""),
        Option(
            "max_position_embeddings",
            "64",
            "max_positions",
            "renamed",
            "without it, inferred from the weights",
        ),
        Option(
            "learnable_word_embeddings",
            "True",
            "freeze_embedding",
            "renamed",
            "False is a frozen embedding and an untied head",
        ),
        Option("embedding_init_type", "'default'", "embed_init", "renamed", "initial values only"),
        Option("vocab_size", "8192", "vocab_size", "same", "rounded up to pad_vocab_size_multiple"),
        Option("resid_dropout", "0.0", "residual_dropout", "renamed", ""),
        Option("embed_dropout", "0.1", "embed_dropout", "same", "none in Mamba's blocks"),
        Option("drop_path", "0.0", "drop_path", "same", "of the embedding too; none in Mamba's blocks"),
        Option(
            "layer_norm_epsilon",
            "1e-5",
            "final_norm_eps",
            "renamed",
            "only of the last norm; the blocks' is always 1e-5",
        ),
        Option("pad_vocab_size_multiple", "1", "pad_vocab_multiple", "renamed", ""),
        Option(
            "block_type",
            "'TransformerBlock'",
            "mlp, norm",
            "renamed",
            "MambaBlock and Mamba2Block have a mixer of their own, RMS norms and no MLP",
        ),
        Option("name", "'default'", "", "ignored", "of a run"),
    ),
    "zoology.model.TokenEmbeddings": (
        Option("embed_dim", "", "d_model", "renamed", ""),
        Option("vocab_size", "", "vocab_size", "same", ""),
        Option("max_position_embeddings", "", "max_positions", "renamed", "0 or less is none"),
        Option("padding_idx", "None", "", "refused", "no row is kept at zero; none of their configs sets it"),
        Option("word_embed_proj_dim", "None", "embed_dim", "renamed", "none of their configs sets it"),
        Option("learnable", "True", "freeze_embedding", "renamed", ""),
        Option("init_type", "'default'", "embed_init", "renamed", ""),
        Option("device", "'cuda'", "", "ignored", "placement of the tensors"),
        Option("dtype", "torch.float32", "", "ignored", "parameters are float32 here"),
    ),
    "zoology.model.LanguageModel": (
        Option("config", "", "config", "same", "`return_embeddings` of a call is the method `hidden` here"),
    ),
    "zoology.model.ContinuousInputModel": (
        Option(
            "config", "", "", "refused", "its checkpoints have no converter; ModelConfig.input_dim makes one"
        ),
    ),
    "zoology.model.TransformerBlock": (
        Option("config", "", "", "renamed", "the entries of ModelConfig"),
        Option("layer_idx", "", "", "renamed", "0 takes embed_dropout, the others resid_dropout"),
    ),
    "zoology.mixers.mamba.MambaBlock": _MAMBA_BLOCK,
    "zoology.mixers.mamba2.Mamba2Block": (
        _MAMBA_BLOCK[0],
        Option("norm_cls", "RMSNorm", "norm", "renamed", ""),
        Option("fused_add_norm", "False", "", "ignored", "selects a kernel; same results"),
        Option("residual_in_fp32", "False", "residual_in_fp32", "same", ""),
        Option("use_fast_path", "True", "", "ignored", "selects a kernel; same results"),
    ),
    "zoology.mixers.mlp.MLP": _MLP,
    "zoology.mixers.mlp.GLU": _MLP,
}
"""By import path; a language model's options are the entries of its config."""
