"""Every constructor argument and config entry of the authors' code, and what we do with it.

`options.json` has them: the import path of their class -> rows of `Option`, in the order of the signature.
"""

import ast
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.validate import expect, nearest

STATUSES = ("same", "renamed", "ignored", "refused")


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
    found = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
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


def own_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config without those that `transformers` adds to every config."""
    others = tables()["transformers.PretrainedConfig"]
    return {name: value for name, value in config.items() if name not in others}


def with_defaults(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the defaults of a class for entries that are missing; None for required ones."""
    return {name: _default(option) for name, option in tables()[path].items()} | dict(given)


def expect_supported(option: Option, value: Any, prefix: str = "") -> None:
    """Check the value of an option of which only the default is accepted; None is the default too."""
    if option.status == "refused" and value is not None:
        is_default = value == _default(option)
        expect(is_default, f"{prefix}{option.name}", value, f"{option.default}: {option.note}")


def _default(option: Option) -> Any:
    """Return the default as a value; the name of a class or function remains text."""
    try:
        return ast.literal_eval(option.default or "None")
    except ValueError:
        return option.default
