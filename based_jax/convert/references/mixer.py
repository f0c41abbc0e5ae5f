"""What the families of torch mixers share: the entry of their tables, and RWKV's blend."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from based_jax.convert.layouts import Layout, Rule, Rules, same
from based_jax.models import MixerSpec
from based_jax.validate import expect_choice

Meta = Mapping[str, Any]


class TorchMixer(NamedTuple):
    """Our mixer for a torch one that is known by the import path of its class."""

    spec: Callable[[Meta], MixerSpec]
    """the keywords it was built with, to our mixer and its options"""
    rules: Rules | Callable[[Meta], Rules]
    """or what makes them of the keywords"""
    dropped: tuple[str, ...] | Callable[[Meta], tuple[str, ...]] = ()
    """torch keys that we have no use for: constants, and second names of shared tensors"""

    def rules_for(self, meta: Meta) -> Rules:
        """The layout of the parameters of one that was built with these keywords."""
        return self.rules(meta) if callable(self.rules) else self.rules

    def dropped_for(self, meta: Meta) -> tuple[str, ...]:
        """Its torch keys that we have no use for."""
        return self.dropped(meta) if callable(self.dropped) else self.dropped


def to_ours(
    mixer: str, fixed: Mapping[str, Any] | None = None, /, **options: Any
) -> Callable[[Meta], MixerSpec]:
    """A function from keywords of a torch mixer to ours, where all options are other names of theirs.

    Args:
        mixer: ours, by name.
        fixed: options that do not depend on the keywords.
        options: ours to their name, which must be given; (name, default) to take a default where it is not;
            (name,) to leave ours to the mixer then.
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


def expect_only(name: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Check that a mapping has no other keys than these."""
    for key in given:
        expect_choice(f"key of {name}", key, tuple(known))


def rotary_fraction(meta: Meta, head_dim: int) -> float:
    """The share of a head's channels that `rotary_emb_dim` turns; int(share * head_dim) gives it back."""
    channels = meta.get("rotary_emb_dim", 0)
    share = channels / head_dim
    return share if int(share * head_dim) == channels else math.nextafter(share, 1.0)


def beside_unused(key: str, unused: str, path: str) -> Rule:
    """A vector, beside a torch vector of the same size that nothing reads: dropped here, zeros there."""

    def to_torch(leaves: list[Any], count: int) -> list[Any]:
        return [leaves[0], leaves[0].__array_namespace__().zeros_like(leaves[0])]

    return Rule((key, unused), (path,), Layout(lambda tensors, shapes: tensors[:1], to_torch))


def blend(letter: str) -> Rule:
    """The weights of RWKV's blend of two tokens, (1, 1, channels) <-> (channels,)."""
    return same(f"time_mix_{letter}", f"mix_{letter}", ones=2)
