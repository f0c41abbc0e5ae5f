"""Count the states of Zoology's synthetic models: the rows of the table "zoology_states"."""

from collections.abc import Mapping
from typing import Any

import jax

from based_jax import mixers
from based_jax.generate.states import row_bytes
from based_jax.published.tables import Row, number

LENGTH = 1024
"""tokens of the longest test in the papers' synthetic studies, for which they count states"""


def _hybrid(mixer: str, **options: Any) -> list[tuple[str, Mapping[str, Any]]]:
    return [("base_conv", {"kernel_size": 3}), (mixer, options)]


def _taylor(feature_dim: int, **options: Any) -> list[tuple[str, Mapping[str, Any]]]:
    return _hybrid("linear_attention", num_heads=1, feature_dim=feature_dim, **options)


_LAYERS = {
    "convolution and attention": _hybrid("attention", num_heads=1),
    "Based, d' = 8": _taylor(8),
    "Based, d' = 16": _taylor(16),
    "Based, d' = 24": _taylor(24),
    "linear attention, pos_elu": _taylor(64, feature_map="pos_elu"),
    "linear attention, performer": _taylor(64, feature_map="performer"),
    "linear attention, cosformer": _taylor(64, feature_map="cosformer", max_length=LENGTH),
    "BigBird, blocks of 4": _hybrid("bigbird", block_size=4),
    "NystromFormer, 16 landmarks": _hybrid("nystrom", num_landmarks=16),
    "sliding window of 16": _hybrid("sliding_window", num_heads=1, left=15),
    "Mamba, 16 states": [("mamba", {"d_state": 16})] * 2,
    "Mamba-2, 16 states": [("mamba2", {"d_state": 16})] * 2,
    "Hyena": [("hyena", {})] * 2,
    "H3, d / 4 states": [("h3", {"d_state": 16, "head_dim": 2})] * 2,
    "GLA, 2 heads": _hybrid("gla", num_heads=2),
    "RWKV-7": _hybrid("rwkv7", head_dim=64),
    "DeltaNet": _hybrid("delta_net"),
    "Gated DeltaNet": _hybrid("gated_delta_net"),
}
"""Models, two layers each."""


def state_bytes(row: Row) -> int | None:
    """Return float32 bytes of a row's state, by our mixers' `state_size`; None for a mixer that we lack."""
    layers = _mixers(row)
    return 4 * sum(mixer.state_size(LENGTH) for mixer in layers) if layers else None


def held_bytes(row: Row) -> int | None:
    """Return the bytes of `init_state` of a row's mixers for one sequence; None for a mixer that we lack."""
    layers = _mixers(row)
    if not layers:
        return None
    return row_bytes(jax.eval_shape(lambda: [mixer.init_state(1, LENGTH) for mixer in layers]))


def _mixers(row: Row) -> list[mixers.Mixer]:
    width = int(number(row, "d_model"))
    return [mixers.make(name, d_model=width, **given) for name, given in _LAYERS.get(str(row["model"]), ())]
