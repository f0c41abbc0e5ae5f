"""What the families of torch mixers share: the entry of their tables, and RWKV's blend."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from based_jax.convert.layouts import Rule, Rules, same
from based_jax.models import MixerSpec
from based_jax.validate import expect_choice

Meta = Mapping[str, Any]


class TorchMixer(NamedTuple):
    """Our mixer for a torch one that is known by the import path of its class."""

    spec: Callable[[Meta], MixerSpec]
    """the keywords it was built with, to our mixer and its options"""
    rules: Rules
    dropped: tuple[str, ...] = ()
    """torch keys that we have no use for: constants, and second names of shared tensors"""


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


def blend(letter: str) -> Rule:
    """The weights of RWKV's blend of two tokens, (1, 1, channels) <-> (channels,)."""
    return same(f"time_mix_{letter}", f"mix_{letter}", ones=2)
