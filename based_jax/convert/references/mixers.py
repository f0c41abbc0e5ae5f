"""Convert torch mixers, which fixtures and configs describe by their class and its keywords.

`mixers.json` names each class's mixer here, its layout rules, and options that do not depend on keywords. The
table of the class in `options.json` says which option each keyword is; the functions of `based` and
`zoology` convert keywords that are not one option of ours each.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.convert import tables
from based_jax.convert.layouts import Rules
from based_jax.convert.options import Config as Meta
from based_jax.convert.options import expect_supported, mixer_spec, read
from based_jax.convert.options import tables as tables_of_options
from based_jax.convert.references import based, zoology
from based_jax.files import read_json
from based_jax.models import MixerSpec
from based_jax.validate import expect, nearest

CONVERTED: dict[str, Callable[[Meta, dict[str, Any]], Mapping[str, Any]]] = {
    **based.CONVERTED,
    **zoology.CONVERTED,
}
"""Path of a class -> function of its keywords, and of the options read from them: further options.

An entry `mixer` replaces the mixer."""


class TorchMixer(NamedTuple):
    """How to convert a torch mixer, which is identified by the import path of its class."""

    path: str
    mixer: str
    """our mixer"""
    rules: str
    """its layout rules: code base/module of `tables`"""
    fixed: Mapping[str, Any] = {}
    """options that do not depend on the keywords"""

    def spec(self, meta: Meta) -> MixerSpec:
        """Return our mixer and its options, given the keywords."""
        options = {**read(self.path, meta), **self.fixed}
        if self.path in CONVERTED:
            options |= CONVERTED[self.path](meta, options)
        return mixer_spec(options.pop("mixer", self.mixer), options)

    def rules_for(self, meta: Meta) -> Rules:
        """Return the layout rules of the parameters, given the keywords."""
        return tables.rules_of([self.rules, *zoology.more_rows(self.mixer, meta)])

    def dropped_for(self, meta: Meta) -> tuple[str, ...]:
        """Return the unused torch keys: constants, and aliases of shared tensors."""
        return zoology.dropped(self.mixer, meta)


MIXERS = {
    path: TorchMixer(path, **entry) for path, entry in read_json(Path(__file__).with_suffix(".json")).items()
}

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
        path: the class, as named in `reference_modules`; a class without a table is not checked.
        given: arguments, and descriptions. Text of several words counts as a description.
    """
    name_of_class = path.rpartition(".")[2]
    table = tables_of_options().get(ALIASES.get(path, path))
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
