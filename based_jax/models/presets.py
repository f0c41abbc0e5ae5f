"""Named models. A preset is data: sizes and a layer schedule (Based, Tables 7 and 8; spec 1.4, 1.10)."""

from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.ops.softmax_attention import left_from_paper_window
from based_jax.validate import expect_choice

BYTE_VOCAB = 257
GPT2_VOCAB = 50257

_CONV = MixerSpec("gated_conv", {"expand": 4, "kernel_size": 3})


def _based(d_model: int, schedule: str) -> ModelConfig:
    """Gated convolutions (C), Taylor linear attention (L) and sliding windows (S); MLP twice as wide.

    Windows are the paper's 64 keys at both sizes (Table 7 prints 16 at 1.4b, the released configs say
    other numbers again; no parameter depends on it, and `load_pretrained` reads a checkpoint's own).
    """
    return ModelConfig(
        vocab_size=GPT2_VOCAB,
        d_model=d_model,
        schedule=schedule,
        mixers={
            "C": _CONV,
            "L": MixerSpec("linear_attention", {"num_heads": 16, "feature_dim": 16}),
            "S": MixerSpec("sliding_window", {"num_heads": 16, "left": left_from_paper_window(64)}),
        },
        mlp_hidden=2 * d_model,
        pad_vocab_multiple=8,
    )


def _transformer(d_model: int, layers: int, num_heads: int, mlp_hidden: int) -> ModelConfig:
    """Transformer++: full attention with rotary positions on half of each head."""
    return ModelConfig(
        vocab_size=GPT2_VOCAB,
        d_model=d_model,
        schedule="A" * layers,
        mixers={"A": MixerSpec("attention", {"num_heads": num_heads, "rotary_fraction": 0.5})},
        mlp_hidden=mlp_hidden,
        pad_vocab_multiple=16,
    )


_BASED_1B = _based(1792, "CLSCC" * 5 + "C" + "CLSCCC" + "CLSC")

_PRESETS = {
    "based-360m": _based(1024, "CLSCC" * 5 + "CC"),
    "based-1b": _BASED_1B,
    "based-1b-50b": _BASED_1B,
    "attn-360m": _transformer(1024, layers=24, num_heads=16, mlp_hidden=2816),
    "attn-1b": _transformer(1680, layers=36, num_heads=24, mlp_hidden=4608),
    # Byte-level models that train on a laptop CPU; the two have about the same number of parameters.
    "based-tiny": ModelConfig(
        vocab_size=BYTE_VOCAB,
        d_model=128,
        schedule="CLSCLSC",
        mixers={
            "C": _CONV,
            "L": MixerSpec("linear_attention", {"num_heads": 4, "feature_dim": 8}),
            "S": MixerSpec("sliding_window", {"num_heads": 4, "left": left_from_paper_window(32)}),
        },
        mlp_hidden=256,
        max_length=256,
    ),
    "attn-tiny": ModelConfig(
        vocab_size=BYTE_VOCAB,
        d_model=128,
        schedule="A" * 7,
        mixers={"A": MixerSpec("attention", {"num_heads": 4, "rotary_fraction": 0.5})},
        mlp_hidden=256,
        max_length=256,
    ),
}


def names() -> tuple[str, ...]:
    """All presets, sorted."""
    return tuple(sorted(_PRESETS))


def get(name: str) -> ModelConfig:
    """The preset called `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    expect_choice("preset", name, names())
    return _PRESETS[name]
