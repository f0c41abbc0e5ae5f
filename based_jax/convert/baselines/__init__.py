"""The baselines' torch modules as ours: layout rules and options, one file per family of mixers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from based_jax.convert.layouts import Layout, Rule, Rules
from based_jax.models import MixerSpec

Meta = Mapping[str, Any]


class TorchMixer(NamedTuple):
    """Our mixer for a torch one that is known by the import path of its class."""

    spec: Callable[[Meta], MixerSpec]
    """the keywords it was built with, to our mixer and its options"""
    rules: Rules
    dropped: tuple[str, ...] = ()
    """torch keys that we have no use for: constants, and second names of shared tensors"""


def blend(letter: str) -> Rule:
    """The weights of RWKV's blend of two tokens, (1, 1, channels) <-> (channels,)."""
    layout = Layout(
        lambda tensors, shapes: [tensor[0, 0] for tensor in tensors],
        lambda leaves, count: [leaf[None, None] for leaf in leaves],
    )
    return Rule((f"time_mix_{letter}",), (f"mix_{letter}",), layout)
