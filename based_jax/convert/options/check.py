"""Check a config against the tables, so that no entry is ignored silently."""

import ast
import functools
import importlib
import logging
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

from based_jax.convert import options
from based_jax.convert.options.option import Option
from based_jax.validate import expect, nearest

_log = logging.getLogger(__name__)


@functools.cache
def tables() -> Mapping[str, Mapping[str, Option]]:
    """Return all tables of the package: import path of their class -> option name -> option."""
    found: dict[str, Mapping[str, Option]] = {}
    for module in pkgutil.iter_modules(options.__path__):
        loaded = importlib.import_module(f"{options.__name__}.{module.name}")
        for path, rows in getattr(loaded, "OPTIONS", {}).items():
            found[path] = {row.name: row for row in rows}
    return found


def expect_known(path: str, given: Mapping[str, Any], where: str, strict: bool = False) -> None:
    """Check the entries of a config against the table of a class.

    Args:
        path: import path of the class in their code.
        given: entries with their values.
        where: name of the config in messages.
        strict: whether their code rejects unknown entries.

    Raises:
        ValueError: an unsupported option with a value other than its default; with `strict`, an entry that is
            not in the table. Without `strict` such entries are logged and ignored, as in their code.
    """
    table = tables()[path]
    unknown = [name for name in given if name not in table]
    if strict and unknown:
        known = sorted(table)
        expected = f"one of {', '.join(known)}{nearest(unknown[0], known)}"
        expect(False, f"entry of {where}", unknown[0], expected)
    _report(unknown, where)
    for name, value in given.items():
        option = table.get(name)
        if option is not None and option.status == "refused":
            is_default = value is None or value == ast.literal_eval(option.default or "None")
            prefix = "" if where == "config.json" else f"{where}."
            expect(is_default, f"{prefix}{name}", value, f"{option.default}: {option.note}")


def expect_known_entry(target: str, given: Mapping[str, Any], where: str) -> None:
    """Log entries of a layer's mixer that are in no table of a class of that name."""
    for path, table in tables().items():
        if path.startswith("based.") and path.rpartition(".")[2] == target:
            _report([name for name in given if name != "_target_" and name not in table], where)


def _report(unknown: Iterable[str], where: str) -> None:
    if names := ", ".join(map(repr, unknown)):
        _log.warning("%s: %s ignored, as in the authors' code, which has no such option", where, names)
