"""Mixers by name: make one, list them, ask what one can do."""

import dataclasses
from typing import Any

from based_jax.mixers.attention import Attention
from based_jax.mixers.contract import Mixer
from based_jax.mixers.gated_conv import GatedConv
from based_jax.mixers.linear_attention import LinearAttention
from based_jax.mixers.short_conv import ShortConv
from based_jax.mixers.sliding_window import SlidingWindow
from based_jax.validate import expect, expect_choice

_MIXERS: dict[str, type[Mixer]] = {
    "attention": Attention,
    "gated_conv": GatedConv,
    "linear_attention": LinearAttention,
    "short_conv": ShortConv,
    "sliding_window": SlidingWindow,
}


@dataclasses.dataclass(frozen=True)
class MixerInfo:
    """What a mixer is and can do."""

    name: str
    summary: str
    causal: bool
    """outputs do not depend on later inputs"""
    stateful: bool
    """can continue from a state"""
    packing: bool
    """honours segment_ids"""
    options: tuple[str, ...]
    """what `make` takes beside d_model"""

    def state_size(self, d_model: int, length: int, **options: Any) -> int:
        """Floats kept per sequence after `length` tokens, by the papers' formulas."""
        return make(self.name, d_model=d_model, **options).state_size(length)


def names() -> tuple[str, ...]:
    """All mixers, sorted."""
    return tuple(sorted(_MIXERS))


def make(name: str, *, d_model: int, **options: Any) -> Mixer:
    """Build a mixer; every mixer works with d_model alone.

    Raises:
        ValueError: unknown name or option; the message lists the known ones.
    """
    expect_choice("mixer", name, names())
    expect(isinstance(d_model, int) and d_model >= 1, "d_model", d_model, "a positive integer")
    known = _options(_MIXERS[name])
    for option in options:
        expect(option in known, f"option of {name}", option, "one of " + ", ".join(known))
    return _MIXERS[name](d_model=d_model, **options)


def info(name: str) -> MixerInfo:
    """What the mixer called `name` can do.

    Raises:
        ValueError: unknown name.
    """
    expect_choice("mixer", name, names())
    mixer = _MIXERS[name]
    return MixerInfo(
        name=name,
        summary=(mixer.__doc__ or "").strip().splitlines()[0],
        causal=mixer.causal,
        stateful=mixer.stateful,
        packing=mixer.packing,
        options=_options(mixer),
    )


def _options(mixer: type[Mixer]) -> tuple[str, ...]:
    fields = (field.name for field in dataclasses.fields(mixer))
    return tuple(name for name in fields if name not in ("d_model", "parent", "name"))
