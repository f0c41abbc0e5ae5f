"""Scans with a diagonal state: Mamba, RWKV-4."""

from based_jax.convert.baselines import Meta, TorchMixer, blend
from based_jax.convert.layouts import Rules, linear, vector
from based_jax.convert.tables import MAMBA
from based_jax.models import MixerSpec
from based_jax.validate import expect


def _mamba(meta: Meta) -> MixerSpec:
    expect(not meta.get("bias", False), "bias", meta.get("bias"), "false")
    names = ("d_state", "d_conv", "expand")
    return MixerSpec("mamba", {name: meta[name] for name in names if name in meta})


def _rwkv4(mixer: str, meta: Meta) -> MixerSpec:
    return MixerSpec(mixer, {"layer": meta.get("layer_idx", 0), "num_layers": meta.get("n_layer", 12)})


RWKV4_TIME_MIX: Rules = (
    vector("time_decay", "decay"),
    vector("time_first", "bonus"),
    *map(blend, "kvr"),
    linear("key.weight", "key/kernel"),
    linear("value.weight", "value/kernel"),
    linear("receptance.weight", "receptance/kernel"),
    linear("output.weight", "out/kernel"),
)

RWKV4_CHANNEL_MIX: Rules = (
    *map(blend, "kr"),
    linear("key.weight", "key/kernel"),
    linear("receptance.weight", "receptance/kernel"),
    linear("value.weight", "out/kernel"),
)

MIXERS: dict[str, TorchMixer] = {
    "zoology.mixers.mamba.Mamba": TorchMixer(_mamba, MAMBA),
    "zoology.mixers.rwkv.RWKVTimeMixer": TorchMixer(lambda meta: _rwkv4("rwkv4", meta), RWKV4_TIME_MIX),
    "zoology.mixers.rwkv.RWKVStateMixer": TorchMixer(
        lambda meta: _rwkv4("rwkv_channel_mix", meta), RWKV4_CHANNEL_MIX
    ),
}
"""By import path."""
