"""Check a config against the tables, so that no entry is ignored silently."""

import ast
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from based_jax.convert import options
from based_jax.convert.options.option import Option
from based_jax.validate import expect, nearest


@functools.cache
def tables() -> Mapping[str, Mapping[str, Option]]:
    """Return all tables of the package: import path of their class -> option name -> option."""
    found: dict[str, Mapping[str, Option]] = {}
    for module in pkgutil.iter_modules(options.__path__):
        loaded = importlib.import_module(f"{options.__name__}.{module.name}")
        for path, rows in getattr(loaded, "OPTIONS", {}).items():
            found[path] = {row.name: row for row in rows}
    return found


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
