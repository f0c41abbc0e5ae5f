"""Read and check single entries of a config.json, and make a schedule of layers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from based_jax.convert.layouts import Shapes
from based_jax.convert.tables import Names
from based_jax.fields import MAX_SIZE
from based_jax.models import MixerSpec
from based_jax.models.config import MAX_LAYERS
from based_jax.validate import expect

Config = Mapping[str, Any]
D = TypeVar("D", int, None)


def size(entries: Config, name: str, default: D, least: int = 1, most: int = MAX_SIZE) -> int | D:
    """Return an integer in [least, most]; the default if the entry is missing or null."""
    value = entries.get(name)
    if value is None:
        return default
    fits = type(value) is int and least <= value <= most
    expect(fits, name, value, f"an integer from {least} to {most}")
    return value


def number(entries: Config, name: str, default: float) -> float:
    """Return a finite number that is not negative; the default if the entry is missing or null."""
    value = entries.get(name)
    value = default if value is None else value
    fits = type(value) in (int, float) and 0 <= value < math.inf
    expect(fits, name, value, "a finite number, at least 0")
    return float(value)


def flag(entries: Config, name: str, default: bool) -> bool:
    """Return a boolean; the default if the entry is missing or null."""
    value = entries.get(name)
    expect(value is None or isinstance(value, bool), name, value, "true or false")
    return default if value is None else value


def section(entries: Config, name: str) -> Config:
    """Return an entry that holds entries; {} if it is missing or null."""
    value = entries.get(name) or {}
    expect(isinstance(value, dict), name, value, "a JSON object or null")
    return value


def with_current_names(config: Config, aliases: Mapping[str, str]) -> dict[str, Any]:
    """Rename entries to their current names.

    Raises:
        ValueError: two names of one entry, with different values.
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        current = aliases.get(name, name)
        first = found.setdefault(current, value)
        expect(first == value, name, value, f"{first!r}, another value of {current}")
    return found


def expect_sizes(
    config: Config, shapes: Shapes, names: Names, *entries: str, layers: str = "n_layer"
) -> None:
    """Check that these entries exist, and that the number of layers matches the weights.

    Args:
        layers: the entry with the number of layers.
    """
    for entry in (*entries, layers):
        expect(config.get(entry) is not None, "config.json", sorted(config), f"an entry {entry!r}")
        size(config, entry, 0, most=MAX_LAYERS if entry == layers else MAX_SIZE)
    found = names.layers(shapes)
    fits = not found or len(found) == config[layers]
    expect(fits, layers, config[layers], f"{len(found)}, as the weights have layers")


def fraction(part: int, whole: int) -> float:
    """Compute part / whole, rounded so that int(fraction * whole) equals part."""
    ratio = part / whole
    return ratio if int(ratio * whole) == part else math.nextafter(ratio, 1.0)


def delta_heads(width: int, heads: int, key_size: int, value_heads: int, value_size: int) -> dict[str, Any]:
    """Return the options of a mixer with the delta rule, in a model of this width."""
    shapes = {"expand_k": heads * key_size / width, "expand_v": value_heads * value_size / width}
    return {"num_heads": heads, "num_v_heads": None if value_heads == heads else value_heads, **shapes}


_USUAL = {"gated_conv": "C", "short_conv": "C", "gated_delta_net": "D"}
"""The papers' letters of mixers, where they are not the first of the name."""


def schedule_of(specs: Sequence[MixerSpec]) -> dict[str, Any]:
    """Return `schedule` and `mixers` of a `ModelConfig` for these layers, with a letter per mixer."""
    letters: dict[MixerSpec, str] = {}
    for spec in specs:
        if spec not in letters:
            taken = set(letters.values())
            free = (_USUAL.get(spec.mixer, spec.mixer[0].upper()), *map(chr, range(ord("A"), 0x3000)))
            letters[spec] = next(letter for letter in free if letter.isalpha() and letter not in taken)
    mixers = {letter: spec for spec, letter in letters.items()}
    return {"schedule": "".join(letters[spec] for spec in specs), "mixers": mixers}


def layers_of(config: Config, mixers: Mapping[str, MixerSpec], usual: Sequence[str]) -> list[MixerSpec]:
    """Return each layer's mixer by its name in `layer_types`, or in `usual` if that is missing or null."""
    kinds: Any = usual if config.get("layer_types") is None else config["layer_types"]
    fits = isinstance(kinds, list) and len(kinds) == len(usual) and all(kind in mixers for kind in kinds)
    expect(fits, "layer_types", kinds, f"{' or '.join(mixers)} for each of {len(usual)} layers")
    return [mixers[kind] for kind in kinds]
