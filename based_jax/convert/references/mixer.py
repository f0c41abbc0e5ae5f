"""Share table entries and helpers, such as RWKV's blend, between the families of torch mixers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from based_jax.convert.layouts import Layout, Rule, Rules, same
from based_jax.models import MixerSpec

Meta = Mapping[str, Any]


class TorchMixer(NamedTuple):
    """How to convert a torch mixer, which is identified by the import path of its class."""

    spec: Callable[[Meta], MixerSpec]
    """its keywords -> our mixer and its options"""
    rules: Rules | Callable[[Meta], Rules]
    """layout rules, or keywords -> rules"""
    dropped: tuple[str, ...] | Callable[[Meta], tuple[str, ...]] = ()
    """unused torch keys: constants, and aliases of shared tensors"""

    def rules_for(self, meta: Meta) -> Rules:
        """Return the layout rules of the parameters, given the keywords."""
        return self.rules(meta) if callable(self.rules) else self.rules

    def dropped_for(self, meta: Meta) -> tuple[str, ...]:
        """Return the unused torch keys, given the keywords."""
        return self.dropped(meta) if callable(self.dropped) else self.dropped


def to_ours(
    mixer: str, fixed: Mapping[str, Any] | None = None, /, **options: Any
) -> Callable[[Meta], MixerSpec]:
    """Return a function from a torch mixer's keywords to our mixer, if options only differ in their names.

    Args:
        mixer: our mixer's name.
        fixed: options that do not depend on the keywords.
        options: our option -> their keyword, which is required; (keyword, default) for an optional one;
            (keyword,) for an optional one with our mixer's default.
    """

    def spec(meta: Meta) -> MixerSpec:
        found = dict(fixed or {})
        for ours, theirs in options.items():
            if isinstance(theirs, str):
                found[ours] = meta[theirs]
            elif theirs[0] in meta or len(theirs) > 1:
                found[ours] = meta.get(*theirs)
        return MixerSpec(mixer, found)

    return spec


def beside_unused(key: str, unused: str, path: str) -> Rule:
    """Map a vector that torch stores with an unused one of the same size: dropped here, zeros in torch."""

    def to_torch(leaves: list[Any], count: int) -> list[Any]:
        return [leaves[0], leaves[0].__array_namespace__().zeros_like(leaves[0])]

    return Rule((key, unused), (path,), Layout(lambda tensors, shapes: tensors[:1], to_torch))


def blend(letter: str) -> Rule:
    """Map the weights of RWKV's blend of two tokens, (1, 1, channels) <-> (channels,)."""
    return same(f"time_mix_{letter}", f"mix_{letter}", ones=2)
