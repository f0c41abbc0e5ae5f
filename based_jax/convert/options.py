"""Every constructor argument and config entry of the authors' code, and what we do with it.

`options.json` has them: the import path of their class -> rows of `Option`, in the order of the signature.
"""

import ast
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax import mixers
from based_jax.convert.config_values import with_current_names
from based_jax.files import read_json
from based_jax.models import MixerSpec, ModelConfig
from based_jax.validate import expect, nearest


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

    Args:
        path: import path of the class in their code.
        given: entries with their values.
        where: name of the config in messages.

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


def write(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries for our options, the inverse of `read`; None has no entry."""
    found = {option.name: options.get(option.ours) for option in _single(path)}
    return {name: value for name, value in found.items() if value is not None}


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
