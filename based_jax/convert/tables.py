"""Torch names and layouts of our modules, in the authors' code, in fla's models and in `transformers`.

Tables include optional parts (biases); `layouts.select` keeps those that a module has.
"""

import dataclasses
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from based_jax.convert import fla_tables
from based_jax.convert.layouts import Rule, Rules, dense, linear, renamed, same, taps, under, vector
from based_jax.models import ModelConfig

GATED_CONV: Rules = (
    *dense("in_proj", "in_proj"),  # rows [convolved branch | gate]
    taps("conv.conv.weight", "conv_kernel"),
    vector("conv.conv.bias", "conv_bias"),
    *dense("out_proj", "out"),
)

LINEAR_ATTENTION: Rules = (
    *(linear(f"proj_{name}.weight", f"{name}/kernel") for name in "qkv"),
    linear("out_proj.weight", "out/kernel", inputs=2),
    same("feature_map.random_feats", "random_features"),
    same("feature_map.proj_1.weight", "poly_linear"),
    same("feature_map.proj_2.weight", "poly_squares"),
    # The gate of Based's Appendix C; the released code has none, so these two names are ours.
    *dense("gate", "gate"),
)

SOFTMAX_ATTENTION: Rules = (
    linear("Wqkv.weight", ("q/kernel", "k/kernel", "v/kernel")),  # with grouped heads k, v have fewer rows
    vector("Wqkv.bias", ("q/bias", "k/bias", "v/bias")),
    *dense("out_proj", "out", inputs=2),
    *(vector(f"{name}_norm.weight", f"{name}_norm") for name in "qk"),
)

MAMBA: Rules = (
    *dense("in_proj", "in_proj"),  # rows [convolved branch | gate]
    taps("conv1d.weight", "conv_kernel"),
    vector("conv1d.bias", "conv_bias"),
    linear("x_proj.weight", "x_proj/kernel"),  # rows [dt | B | C]
    linear("dt_proj.weight", "dt_kernel"),
    vector("dt_proj.bias", "dt_bias"),
    same("A_log", "A_log"),
    same("D", "D"),
    *dense("out_proj", "out"),
)

SHORT_CONV: Rules = (taps("conv.weight", "kernel"), vector("conv.bias", "bias"))

MIXERS: dict[str, Rules] = {
    "attention": SOFTMAX_ATTENTION,
    "gated_conv": GATED_CONV,
    "linear_attention": LINEAR_ATTENTION,
    "mamba": MAMBA,
    "short_conv": SHORT_CONV,
    "sliding_window": SOFTMAX_ATTENTION,
}
"""By registered name."""

MLP: Rules = (
    *dense("fc1", "in_proj"),  # if gated: rows [value | gate]
    *dense("fc2", "out"),
)

ALT_MLP: Rules = (
    linear(("fc3.weight", "fc1.weight"), "in_proj/kernel"),  # act(fc1 x) * fc3 x: fc3 is the value
    vector(("fc3.bias", "fc1.bias"), "in_proj/bias"),
    *dense("fc2", "out"),
)

MAMBA_ATTENTION: Rules = renamed(SOFTMAX_ATTENTION, "Wqkv", "in_proj")

NORM: Rules = (vector("weight", "scale"), vector("bias", "bias"))


@dataclasses.dataclass(frozen=True)
class Names:
    """A code base's names of the parts of a language model."""

    backbone: str = "transformer"
    mixer: str = "mixer"
    mlp: str = "mlp"
    norm: str = "norm1"
    """norm before the mixer"""
    norm2: str = "norm2"
    """norm before the MLP"""
    final_norm: str = "ln_f"
    word_embedding: str = "embeddings.word_embeddings"
    head: str = "lm_head.weight"
    """the head; a tied head equals the embedding"""
    mixers: Mapping[str, Rules] = dataclasses.field(default_factory=lambda: MIXERS)
    """our name of a mixer -> layout rules"""

    @property
    def embedding(self) -> str:
        """Return the key of the token embedding."""
        return f"{self.backbone}.{self.word_embedding}.weight"

    def layer(self, index: int) -> str:
        """Return the prefix of a block."""
        return f"{self.backbone}.layers.{index}"

    def layers(self, keys: Iterable[str]) -> set[str]:
        """Return the indices of the blocks that have weights."""
        prefix = f"{self.backbone}.layers."
        return {key.removeprefix(prefix).partition(".")[0] for key in keys if key.startswith(prefix)}


AUTHORS = Names()
MAMBA_MODEL = Names(
    "backbone",
    norm="norm",
    final_norm="norm_f",
    word_embedding="embedding",
    mixers={**MIXERS, "attention": MAMBA_ATTENTION},
)
FLA = Names(
    "model",
    mixer="attn",
    norm="attn_norm",
    norm2="mlp_norm",
    final_norm="norm",
    word_embedding="embeddings",
    mixers=fla_tables.MIXERS,
)
FLA_MAMBA2 = Names(
    "backbone", norm="norm", final_norm="norm_f", word_embedding="embeddings", mixers=fla_tables.MIXERS
)
TRANSFORMERS = Names(
    "model",
    mixer="self_attn",
    norm="input_layernorm",
    norm2="post_attention_layernorm",
    final_norm="norm",
    word_embedding="embed_tokens",
    mixers=fla_tables.MIXERS,
)
ZOOLOGY = Names(backbone="backbone", mixer="sequence_mixer", mlp="state_mixer")


def names_of(config: ModelConfig, keys: Container[str] = ()) -> Names:
    """Return the names of a model's parts in the authors' code; Mamba models have another code base.

    Args:
        keys: of a checkpoint, which determine the name of its embedding.
    """
    for names in (AUTHORS, MAMBA_MODEL, FLA, FLA_MAMBA2, TRANSFORMERS):
        if names.embedding in keys:
            return names
    mixers = {config.layer(index).mixer for index in range(config.num_layers)}
    is_mamba = "mamba" in mixers and mixers <= {"mamba", "attention"} and config.block == "prenorm"
    return MAMBA_MODEL if is_mamba and config.mlp in ("none", "gated") else AUTHORS


def mlp_rules(keys: Collection[str]) -> Rules:
    """Return the rules of the MLPs in a checkpoint with these keys."""
    if any(".mlp.gate_proj." in key for key in keys):
        return fla_tables.MLP
    return ALT_MLP if any(".mlp.fc3." in key for key in keys) else MLP


def block_rules(mixer: Iterable[Rule], names: Names = AUTHORS, mlp: Rules = MLP) -> Rules:
    """Return the rules of a residual block around a mixer with the given rules."""
    return (
        *under(NORM, names.norm, "norm1"),
        *under(mixer, names.mixer, "mixer"),
        *under(NORM, names.norm2, "norm2"),
        *under(mlp, names.mlp, "mlp"),
    )


def model_rules(mixers: Sequence[Iterable[Rule]], names: Names = AUTHORS, mlp: Rules = MLP) -> Rules:
    """Return the rules of a language model, given each layer's mixer rules; without a tied head."""
    embeddings = f"{names.backbone}.embeddings"
    rules: list[Rule] = [
        same(names.embedding, "embedding"),
        same(f"{embeddings}.position_embeddings.weight", "position_embedding"),
        same(names.head, "head"),
        linear(f"{embeddings}.project_in.weight", "project_in/kernel"),
        linear("project_out.weight", "project_out/kernel"),
    ]
    for index, mixer in enumerate(mixers):
        rules += under(block_rules(mixer, names, mlp), names.layer(index), f"layers_{index}")
    rules += under(NORM, f"{names.backbone}.{names.final_norm}", "final_norm")
    return tuple(rules)


def mixer_rules(name: str, paths: Iterable[str] = (), names: Names = AUTHORS) -> Rules:
    """Return the rules of a registered mixer; without a table, its paths with dots and unchanged arrays."""
    return names.mixers.get(name) or tuple(same(path.replace("/", "."), path) for path in paths)
