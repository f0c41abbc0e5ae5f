"""Every constructor argument and config entry of the authors' code, and what we do with it.

`options.json` has them: the import path of their class -> rows of `Option`, in the order of the signature.
Other functions here read and check single entries of a config, and make a schedule of layers.
"""

import ast
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from based_jax import mixers
from based_jax.fields import MAX_SIZE
from based_jax.files import read_json
from based_jax.models import MixerSpec, ModelConfig
from based_jax.models.config import MAX_LAYERS
from based_jax.validate import expect, nearest

Config = Mapping[str, Any]
Options = dict[str, Any]
Layers = tuple[list[MixerSpec], Options]
"""Each layer's mixer, and further fields of `ModelConfig`."""
D = TypeVar("D", int, None)


class Option(NamedTuple):
    """An argument of a constructor in the authors' code, or an entry of a config."""

    name: str
    default: str
    """their default as text; "" for a required argument"""
    ours: str
    """our name or names; "" if none"""
    status: str
    """same, renamed, ignored (no effect on results) or refused (only the default, or the values in `note`)"""
    note: str
    """the reason, or the difference"""


@functools.cache
def tables() -> Mapping[str, Mapping[str, Option]]:
    """Return all tables: import path of their class -> option name -> option."""
    found = read_json(Path(__file__).with_suffix(".json"))
    return {path: {row[0]: Option(*row) for row in rows} for path, rows in found.items()}


def expect_known(path: str, given: Mapping[str, Any], where: str) -> None:
    """Check the entries of a config against the table of a class.

    Raises:
        ValueError: an entry that is not in the table, whether or not their code accepts it; an unsupported
            option with a value other than its default.
    """
    table = tables()[path]
    for name, value in given.items():
        if name not in table:
            read = ", ".join(sorted(row.name for row in table.values() if row.status != "ignored"))
            expect(False, f"entry of {where}", name, f"one of {read}{nearest(name, list(table))}")
        expect_supported(table[name], value, "" if where == "config.json" else f"{where}.")


def own_entries(
    path: str, config: Mapping[str, Any], aliases: Mapping[str, str], where: str = "config.json"
) -> dict[str, Any]:
    """Return the entries of a config.json that belong to a class, under their current names.

    Those that `transformers` adds to every config are left out. ValueError: see `with_current_names` and
    `expect_known`.
    """
    others = tables()["transformers.PretrainedConfig"]
    named = with_current_names(config, aliases)
    found = {name: value for name, value in named.items() if name not in others}
    expect_known(path, found, where)
    return found


def with_defaults(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the defaults of a class for entries that are missing; None for required ones."""
    return {name: default_of(option) for name, option in tables()[path].items()} | dict(given)


def read(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options for the entries that have one each; missing or null ones are their class's defaults.

    An option of ours that several entries affect is only read from the entry of the same name. Values are not
    checked: mixers and `ModelConfig` check theirs (`based_jax.fields`).
    """
    found: dict[str, Any] = {}
    for option in _single(path):
        value, default = given.get(option.name), default_of(option)
        is_float = type(default) is float and type(value) is int
        found[option.ours] = default if value is None else float(value) if is_float else value
    return {ours: value for ours, value in found.items() if value is not None}


@functools.cache
def _single(path: str) -> Sequence[Option]:
    """Return the entries that are one option of ours, and the only one or of the same name."""
    rows = [option for option in tables()[path].values() if option.ours]
    affected = [ours for option in rows for ours in option.ours.split(", ")]
    return [option for option in rows if affected.count(option.ours) == 1 or option.name == option.ours]


def mixer_spec(mixer: str, options: Mapping[str, Any], **more: Any) -> MixerSpec:
    """Return the spec of a mixer with those options that it has, and all of `more`."""
    known = mixers.info(mixer).options
    return MixerSpec(mixer, {name: value for name, value in options.items() if name in known} | more)


def model_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that are fields of `ModelConfig`."""
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    return {name: value for name, value in options.items() if name in names}


def expect_supported(option: Option, value: Any, prefix: str = "") -> None:
    """Check the value of an option of which only the default is accepted; None is the default too."""
    if option.status == "refused" and value is not None:
        default = default_of(option)
        is_named = default is None and value == option.default != "None"  # a class or function
        fits = is_named or value == default
        expect(fits, f"{prefix}{option.name}", value, f"{option.default}: {option.note}")


def default_of(option: Option) -> Any:
    """Return the default as a value; None if it is required, or computed by their code."""
    try:
        return ast.literal_eval(option.default.replace("inf", "1e999"))
    except (SyntaxError, ValueError):
        return None


def size(entries: Config, name: str, default: D, least: int = 1, most: int = MAX_SIZE) -> int | D:
    """Return an integer in [least, most]; the default if the entry is missing or null."""
    value = entries.get(name)
    if value is None:
        return default
    fits = type(value) is int and least <= value <= most
    expect(fits, name, value, f"an integer from {least} to {most}")
    return value


def heads_of(entries: Config, prefix: str = "", name: str = "num_heads") -> int:
    """Return the entry `name`, which is required; errors name it after `prefix`."""
    heads = size(entries, name, 0)
    expect(heads > 0, f"{prefix}{name}", entries.get(name), "a positive integer")
    return heads


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
    """Rename entries to their current names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        current = aliases.get(name, name)
        first = found.setdefault(current, value)
        expect(first is value or first == value, name, value, f"{first!r}, another value of {current}")
    return found


def expect_sizes(config: Config, *entries: str, layers: str = "n_layer") -> None:
    """Check that these entries exist, and that with the number of layers."""
    for entry in (*entries, layers):
        expect(config.get(entry) is not None, "config.json", sorted(config), f"an entry {entry!r}")
        size(config, entry, 0, most=MAX_LAYERS if entry == layers else MAX_SIZE)


def fraction(part: int, whole: int) -> float:
    """Compute part / whole, rounded so that int(fraction * whole) equals part."""
    ratio = part / whole
    return ratio if int(ratio * whole) == part else math.nextafter(ratio, 1.0)


def delta_heads(width: int, heads: int, key_size: int, value_heads: int, value_size: int) -> dict[str, Any]:
    """Return the options of a mixer with the delta rule, in a model of this width."""
    shapes = {"expand_k": heads * key_size / width, "expand_v": value_heads * value_size / width}
    return {"num_heads": heads, "num_v_heads": None if value_heads == heads else value_heads, **shapes}


_USUAL = {"gated_conv": "C", "short_conv": "C", "gated_delta_net": "D", "mlp": "F"}
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
