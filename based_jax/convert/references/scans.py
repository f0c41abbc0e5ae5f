"""Scans with a diagonal state: Mamba, RWKV-4."""

from based_jax.convert.layouts import Rules, linear, vector
from based_jax.convert.references.mixer import Meta, TorchMixer, blend, to_ours
from based_jax.convert.tables import MAMBA
from based_jax.models import MixerSpec
from based_jax.validate import expect


def _mamba(meta: Meta) -> MixerSpec:
    expect(not meta.get("bias", False), "bias", meta.get("bias"), "false")
    return to_ours("mamba", **{name: (name,) for name in ("d_state", "d_conv", "expand")})(meta)


_DEPTH = {"layer": ("layer_idx", 0), "num_layers": ("n_layer", 12)}


RWKV4_TIME_MIX: Rules = (
    vector("time_decay", "decay"),
    vector("time_first", "bonus"),
    *map(blend, "kvr"),
    *(linear(f"{name}.weight", f"{name}/kernel") for name in ("key", "value", "receptance")),
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
    "zoology.mixers.rwkv.RWKVTimeMixer": TorchMixer(to_ours("rwkv4", **_DEPTH), RWKV4_TIME_MIX),
    "zoology.mixers.rwkv.RWKVStateMixer": TorchMixer(
        to_ours("rwkv_channel_mix", **_DEPTH), RWKV4_CHANNEL_MIX
    ),
}
"""By import path."""
