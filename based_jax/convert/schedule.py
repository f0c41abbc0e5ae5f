"""Assign letters of a model's schedule to mixers."""

from collections.abc import Sequence
from typing import Any

from based_jax.models import MixerSpec

_USUAL = {
    "attention": "A",
    "delta_net": "D",
    "gated_conv": "C",
    "gated_delta_net": "D",
    "gla": "G",
    "linear_attention": "L",
    "mamba2": "M",
    "retnet": "R",
    "short_conv": "C",
    "sliding_window": "S",
}
"""The papers' letters of mixers."""


def schedule_of(specs: Sequence[MixerSpec]) -> dict[str, Any]:
    """Return `schedule` and `mixers` of a `ModelConfig` for these layers, with a letter per mixer."""
    letters: dict[MixerSpec, str] = {}
    for spec in specs:
        if spec not in letters:
            taken = set(letters.values())
            free = (_USUAL[spec.mixer], *map(chr, range(ord("A"), 0x3000)))
            letters[spec] = next(letter for letter in free if letter.isalpha() and letter not in taken)
    mixers = {letter: spec for spec, letter in letters.items()}
    return {"schedule": "".join(letters[spec] for spec in specs), "mixers": mixers}
