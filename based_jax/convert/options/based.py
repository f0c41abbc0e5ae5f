"""Arguments of the mixers of Based's code, and of flash-attention's attention."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import D_MODEL, LAYER, TENSORS, ignored, length, refused, renamed, same

_CUDA = renamed("use_cuda", "False", "conv_bias", "as it is with causal_conv1d; inferred from the weights")
_SPEED = "selects a kernel; same results"

_WIDTH = renamed("embed_dim", "", "d_model")
_HEADS = (
    same("num_heads"),
    renamed("num_heads_kv", "None", "num_kv_heads"),
    refused("cross_attn", "False", "attention to another sequence is not supported"),
    renamed("qkv_proj_bias", "True", "qkv_bias"),
    renamed("out_proj_bias", "True", "out_bias"),
    same("dropout", "0.0"),
    renamed("softmax_scale", "None", "scale"),
)
_ROTARY = (
    renamed("rotary_emb_dim", "0", "rotary_fraction"),
    renamed("rotary_emb_base", "10000.0", "rotary_base"),
    refused("rotary_emb_scale_base", "None", "xPos is not supported"),
    renamed("rotary_emb_interleaved", "False", "rotary_interleaved"),
)


def _of_model(row: Option) -> Option:
    """Return the row of an argument that Based's model sets, whatever an entry of its config says."""
    return row if row.status == "refused" else row._replace(note="of a layer in a model: as its config says")


_RUNS = (
    ignored("fused_bias_fc", "False", _SPEED),
    ignored("use_flash_attn", "False", _SPEED),
    refused("return_residual", "False", "also returns the input, which the blocks of a model do not take"),
    ignored("checkpointing", "False", "affects memory only"),
)

_MHA = (
    _WIDTH,
    *_HEADS,
    renamed("causal", "False", "", "only true is taken: mixers here are causal"),
    LAYER,
    refused("dwconv", "False", "convolutions of queries, keys and values are not supported"),
    *_ROTARY,
    refused("use_alibi", "False", "attention with linear biases is not supported"),
    renamed("window_size", "(-1, -1)", "left", "the mixer is then sliding_window"),
    *_RUNS,
    *TENSORS,
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "based.models.mixers.convolution.BaseConv": (
        D_MODEL,
        length(),
        same("kernel_size", "3", "config files write kernel_sizes, which nothing reads"),
        LAYER,
        renamed("use_bias", "True", "bias"),
        renamed("expand_proj", "2", "expand"),
        _CUDA,
        ignored("kernel_sizes", "", "**kwargs takes it, never read"),
        renamed("conv_bias", "False", "conv_bias", "as the CUDA kernel makes it; inferred from the weights"),
    ),
    "based.models.mixers.convolution.ShortConvolution": (
        D_MODEL,
        same("kernel_size"),
        LAYER,
        refused("use_cuda", "False", "with causal_conv1d, the kernel applies SiLU too"),
        renamed("conv_bias", "False", "bias"),
    ),
    "based.models.mixers.linear_attention.LinearAttention": (
        D_MODEL,
        renamed("feature_map", "TaylorExp", "feature_map, feature_scale", "a class of Based's or Zoology's"),
        length("2048"),
        same("feature_dim", "16"),
        same("head_dim", "None"),
        same("num_heads", "16"),
        same("eps", "1e-12", "1e-6 with fla's kernels, whatever it is"),
        LAYER,
        renamed("parallel_implementation", "'quadratic'", "eps", "not 'tk', which has no normaliser"),
    ),
    "based.models.mixers.slide_attention.SlidingAttention": (
        _WIDTH,
        *map(_of_model, _HEADS),
        ignored("causal", "True", "set to True in their code"),
        LAYER,
        *map(_of_model, _ROTARY),
        *_RUNS,
        renamed("window_size", "128", "left", "window_size // 2 past keys"),
        *TENSORS,
    ),
    "based.models.mixers.mha.MHA": _MHA,
    "flash_attn.modules.mha.MHA": _MHA,
}
