"""Check that all entries of a fixture's meta are known arguments of the class that it names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from based_jax.convert.options import expect_supported, tables
from based_jax.files import read_json
from based_jax.validate import expect, nearest

_TABLES: dict[str, Any] = read_json(Path(__file__).with_name("metas.json"))
ALIASES: dict[str, str] = _TABLES["aliases"]
"""Path of a class -> path of a class with the same arguments."""
DESCRIPTIONS: list[str] = _TABLES["descriptions"]
"""Entries of a meta that are no arguments: how its numbers were computed, and what follows from arguments."""
SPELLINGS: dict[str, list[str]] = _TABLES["spellings"]
"""Fixtures' own names of a class's arguments."""

_MEASURED = re.compile(
    r"(err|tol|causal|min|max|measured)(32|64|_\w+)?|\w+_(bits|len|steps|seed|tokens|measured)"
)


def is_description(name: str) -> bool:
    """Return whether an entry of a meta says how its numbers were computed, or is derived from arguments."""
    return name in DESCRIPTIONS or _MEASURED.fullmatch(name) is not None


def expect_arguments(path: str, given: Mapping[str, Any]) -> None:
    """Check the arguments with which a class was built against the tables of `convert.options`.

    Args:
        path: the class, as named in `references.table`; a class without a table is not checked.
        given: arguments, and descriptions. Text of several words counts as a description.

    Raises:
        ValueError: an entry that is neither, or an argument that is not supported.
    """
    name_of_class = path.rpartition(".")[2]
    table = tables().get(ALIASES.get(path, path))
    if table is None:
        return
    for name, value in given.items():
        if is_description(name) or name in SPELLINGS.get(name_of_class, ()):
            continue
        is_text = isinstance(value, str) and " " in value
        expected = f"one of {', '.join(sorted(table))}{nearest(name, list(table))}"
        expect(name in table or is_text, f"argument of {name_of_class}", name, expected)
        if name in table:
            expect_supported(table[name], value)
