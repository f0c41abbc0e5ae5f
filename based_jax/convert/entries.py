"""Entries of a config.json, checked one by one."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from based_jax.convert.layouts import Shapes
from based_jax.convert.tables import Names
from based_jax.fields import MAX_SIZE
from based_jax.models.config import MAX_LAYERS
from based_jax.validate import expect

Config = Mapping[str, Any]
D = TypeVar("D", int, None)


def size(entries: Config, name: str, default: D, least: int = 1, most: int = MAX_SIZE) -> int | D:
    """An integer in [least, most]; without an entry, or with one that is null, the default."""
    value = entries.get(name)
    if value is None:
        return default
    fits = type(value) is int and least <= value <= most
    expect(fits, name, value, f"an integer from {least} to {most}")
    return value


def number(entries: Config, name: str, default: float) -> float:
    """A finite number that is not negative."""
    value = entries.get(name, default)
    fits = type(value) in (int, float) and 0 <= value < math.inf
    expect(fits, name, value, "a finite number, at least 0")
    return float(value)


def flag(entries: Config, name: str, default: bool) -> bool:
    """True or false; without an entry, or with one that is null, the default."""
    value = entries.get(name)
    expect(value is None or isinstance(value, bool), name, value, "true or false")
    return default if value is None else value


def expect_sizes(
    config: Config, shapes: Shapes, names: Names, *entries: str, layers: str = "n_layer"
) -> None:
    """Check that these are there, and that there are as many layers as in the weights.

    Args:
        layers: the entry that counts them.
    """
    for entry in (*entries, layers):
        expect(config.get(entry) is not None, "config.json", sorted(config), f"an entry {entry!r}")
        size(config, entry, 0, most=MAX_LAYERS if entry == layers else MAX_SIZE)
    found = names.layers(shapes)
    fits = not found or len(found) == config[layers]
    expect(fits, layers, config[layers], f"{len(found)}, as the weights have layers")


def fraction(part: int, whole: int) -> float:
    """part / whole, rounded so that int(fraction * whole) is part again."""
    ratio = part / whole
    return ratio if int(ratio * whole) == part else math.nextafter(ratio, 1.0)
