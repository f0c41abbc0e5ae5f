"""Delta-rule mixers: DeltaNet, Gated DeltaNet, RWKV-7."""

from typing import Any

from based_jax.convert.fla_tables import DELTA_NET, STEPS
from based_jax.convert.layouts import Rules, dense, linear, same, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, beside_unused
from based_jax.models import MixerSpec
from based_jax.validate import expect

GATED: Rules = (*DELTA_NET, *STEPS, beside_unused("A_log", "D", "A_log"))


def _low_rank(letter: str, name: str) -> Rules:
    down = linear(f"{letter}_lora.lora.0.weight", f"{name}_down/kernel")
    return (down, *dense(f"{letter}_lora.lora.2", f"{name}_up"))


RWKV7: Rules = (
    same("x_x", "mix"),  # rows r, w, k, v, a, g
    *(linear(f"{name[0]}_proj.weight", f"{name}/kernel") for name in ("receptance", "key", "value")),
    *_low_rank("w", "decay"),
    *_low_rank("a", "rate"),
    *_low_rank("g", "gate"),
    vector("k_k", "removal"),
    vector("k_a", "key_rate"),
    same("r_k", "bonus"),
    vector("g_norm.weight", "norm_scale"),
    vector("g_norm.bias", "norm_bias"),
    linear("o_proj.weight", "out/kernel", inputs=2),
)


def _delta_net(meta: Meta) -> MixerSpec:
    options = _common(meta, use_gate=False)
    names = ("qk_activation", "qk_norm", "allow_neg_eigval", "use_beta")
    options |= {name: meta[name] for name in names if name in meta}
    if "qk_norm" in options:
        options["qk_norm"] = options["qk_norm"].split()[0]  # fixtures append a description
    for name in ("expand_k", "expand_v"):
        options[name] = int(meta["d_model"] * meta.get(name, 1.0)) / meta["d_model"]
    return MixerSpec("delta_net", options)


def _gated_delta_net(meta: Meta) -> MixerSpec:
    expand, heads = meta.get("expand_v", 2), meta.get("num_heads", 6)
    expect(expand == int(expand), "expand_v", expand, "a whole number: others fail there")
    width = meta["d_model"] // heads * heads / meta["d_model"]  # heads need not divide d_model
    options = _common(meta, use_gate=True) | {"num_heads": heads}
    return MixerSpec("gated_delta_net", options | {"expand_k": width, "expand_v": expand * width})


def _common(meta: Meta, use_gate: bool) -> dict[str, Any]:
    expect(meta.get("use_short_conv", True), "use_short_conv", False, "True: False fails there")
    return {
        "num_heads": meta.get("num_heads", 4),
        "kernel_size": meta.get("conv_size", 4),
        "use_gate": meta.get("use_gate", use_gate),
        "norm_eps": meta.get("norm_eps", 1e-5),
    }


def _rwkv7(meta: Meta) -> MixerSpec:
    usual = {"decay": 64, "gate": 128, "a": 64}
    ranks = [meta.get(f"{name}_low_rank_dim", rank) for name, rank in usual.items()]
    if "low_rank_dims" in meta:  # of decay, gate, a, and the unused v
        ranks = [int(rank) for rank in meta["low_rank_dims"].split(",")][:3]
    options: dict[str, Any] = dict(zip(("decay_rank", "gate_rank", "rate_rank"), ranks, strict=True))
    heads = meta.get("num_heads")
    options["head_dim"] = meta.get("head_dim", 64) if heads is None else meta["d_model"] // heads
    options |= {"norm_eps": meta.get("norm_eps", 1e-5), "norm_affine": meta.get("elementwise_affine", True)}
    # Zoology's initialisation, without any delta rule; see the mixer.
    return MixerSpec("rwkv7", options | {"removal_init": 0.0})


def _rwkv7_dropped(meta: Meta) -> tuple[str, ...]:
    """Return the keys of deeper layers' maps for the first layer's values, which are never passed to them."""
    parts = ("0.weight", "2.weight", "2.bias")
    return tuple(f"v_lora.lora.{part}" for part in parts) if meta.get("layer_idx") != 0 else ()


MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.delta_net.DeltaNet": TorchMixer(_delta_net, DELTA_NET),
    "zoology.mixers.gated_delta_net.GatedDeltaNet": TorchMixer(_gated_delta_net, GATED),
    "zoology.mixers.rwkv7.RWKV7Attention": TorchMixer(_rwkv7, RWKV7, _rwkv7_dropped),
}
"""By import path."""
