"""Zoology's mixers and its small language models, as the reference fixtures describe them.

The model is the pre-norm one with LayerNorms, a plain MLP (GELU) and a tied head; a mixer is known by the
import path of its class and the keywords that it was built with.
"""

from based_jax.convert.layouts import Rules, Shapes, dense, linear, rekeyed, renamed, vector
from based_jax.convert.references import convolutions, delta, recurrences, selection
from based_jax.convert.references.linear_attention import based
from based_jax.convert.references.mixer import Meta, TorchMixer, to_ours
from based_jax.convert.tables import LINEAR_ATTENTION, SOFTMAX_ATTENTION, ZOOLOGY, model_rules
from based_jax.models import MLP, GatedMLP, LanguageModel, MixerSpec, ModelConfig
from based_jax.validate import expect_choice

_WITHOUT_ROTARY = {"rotary_fraction": 0.0, "out_bias": True}
_attention = to_ours("attention", _WITHOUT_ROTARY, num_heads=("num_heads", 1), qkv_bias=("bias", True))
_sliding_window = to_ours(  # of block_size + 1 keys
    "sliding_window",
    {"num_heads": 1, **_WITHOUT_ROTARY},
    left=("block_size", 256),
    qkv_bias=("bias", True),
)

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.attention.MHA": TorchMixer(_attention, SOFTMAX_ATTENTION),
    "zoology.mixers.based.Based": TorchMixer(based, renamed(LINEAR_ATTENTION, "out_proj", "proj_o")),
    "zoology.mixers.slide_attn.SlidingAttn": TorchMixer(_sliding_window, SOFTMAX_ATTENTION),
    **convolutions.MIXERS,
    **delta.MIXERS,
    **recurrences.MIXERS,
    **selection.MIXERS,
}
"""By import path."""


GLU: Rules = (
    linear(("fc1.weight", "fc2.weight"), "in_proj/kernel"),  # fc3(fc1(x) * gelu(fc2(x)))
    vector(("fc1.bias", "fc2.bias"), "in_proj/bias"),
    *dense("fc3", "out"),
)


def mlp(meta: Meta, shapes: Shapes) -> MLP:
    """Their MLP."""
    return MLP(d_model=meta["d_model"], hidden=shapes["fc1.weight"][0])


def glu(meta: Meta, shapes: Shapes) -> GatedMLP:
    """Their gated MLP."""
    return GatedMLP(meta["d_model"], hidden=shapes["fc1.weight"][0], activation="gelu", bias=True)


def language_model(meta: Meta, shapes: Shapes) -> LanguageModel:
    """The model that a fixture's meta describes; the MLP's width is read off its weights."""
    mixers = [spec for spec, _ in _layers(meta)]
    kinds = [spec for index, spec in enumerate(mixers) if spec not in mixers[:index]]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(kinds)]
    vocab_size, d_model = shapes[ZOOLOGY.embedding]
    return LanguageModel(
        ModelConfig(
            vocab_size=meta.get("vocab_size", vocab_size),
            d_model=d_model,
            schedule="".join(letters[kinds.index(spec)] for spec in mixers),
            mixers=dict(zip(letters, kinds, strict=True)),
            mlp="plain",
            mlp_hidden=shapes[f"{ZOOLOGY.layer(0)}.{ZOOLOGY.mlp}.fc1.weight"][0],
            mlp_activation="gelu",
            mlp_bias=True,
            norm="layer",
            norm_eps=meta.get("layer_norm_epsilon", 1e-5),
            max_positions=meta.get("max_position_embeddings", 0),
            pad_vocab_multiple=meta.get("pad_vocab_size_multiple", 1),
        )
    )


def language_model_rules(meta: Meta) -> Rules:
    """The layout of `language_model`'s parameters."""
    return model_rules([rules for _, rules in _layers(meta)], ZOOLOGY)


def _layers(meta: Meta) -> list[tuple[MixerSpec, Rules]]:
    """Each layer's mixer. Their Hybrid takes its own in turn, and keeps them below the key `mixer`."""
    hybrid = meta.get("hybrid_configs")
    configs = hybrid or [meta.get("mixer", {})]
    layers = []
    for index in range(meta["n_layers"]):
        config = configs[index % len(configs)]
        name = config.get("name")
        expect_choice("mixer of a zoology language model", name, tuple(MIXERS))
        given = {"d_model": meta["d_model"], "layer_idx": index, **config.get("kwargs", {})}
        rules = MIXERS[name].rules_for(given)
        if hybrid:
            rules = rekeyed(rules, "mixer.{}".format)
        layers.append((MIXERS[name].spec(given), rules))
    return layers
