"""Read recipes: files of flags for `--recipe FILE` of `train lm` and `train synthetic`.

Flags are keys, with dashes or underscores, at the top of the file or in the table ``[flags]``. A file may
also have `title`, `source`, `tokens`, `shards` and `remarks`, for readers. based_jax/recipes has one for each
run of the papers; `--recipe recipes/NAME.toml` finds it from any directory. Those below
recipes/synthetic are of `train synthetic`.
"""

import dataclasses
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from based_jax.command import find_value
from based_jax.files import find_file, read_toml
from based_jax.validate import expect


class Recipe(NamedTuple):
    """The flags of a run, and what the file says about it."""

    flags: dict[str, Any]  # of the command, without leading dashes
    title: str = ""  # the model and its data
    source: str = ""  # the tables of the paper that give the settings
    tokens: int | None = None  # number of training tokens
    shards: str = ""  # the command that makes the token shards of its flag `data`
    remarks: Sequence[str] = ()


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Return values by flag as command-line arguments; booleans are switches, and None is left out."""
    words = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words


def read_recipe(file: str | Path, settings: type[Any]) -> Recipe:
    """Read a recipe (see `find_file`) for the command whose flags are the fields of the dataclass `settings`.

    Raises:
        OSError, ValueError: no such file, not TOML, or an unknown key; the message names the nearest flag.
    """
    path = find_file(file)
    content = read_toml(path)
    notes = Recipe._fields[1:]
    about = {name: content.pop(name) for name in notes if name in content}
    below = content.pop("flags", {})
    expect(isinstance(below, dict), f"recipe {path}: flags", below, "a table, [flags]")
    known = list(flag_names(settings))
    words = {}
    for key, value in (*content.items(), *below.items()):
        name = key.replace("_", "-")
        near = difflib.get_close_matches(name, [*known, *notes], 1, cutoff=0)
        entry, is_value = f"recipe {path}: {key}", isinstance(value, str | bool | int | float)
        expect(name in known, entry, value, f"a flag of the command as key, such as {near[0]}")
        expect(is_value, entry, value, "a string, a number or a boolean")
        expect(name not in words, entry, value, "each flag once")
        words[name] = value
    return Recipe(words, **about)


def flag_names(settings: Any) -> Iterator[str]:
    """Yield the flags of a dataclass; a field that is a dataclass itself contributes its fields."""
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        hint = hints[field.name]
        yield from flag_names(hint) if dataclasses.is_dataclass(hint) else [field.name.replace("_", "-")]


def with_recipe(argv: Sequence[str] | None, settings: type[Any]) -> list[str]:
    """Prepend the flags of the file that `--recipe` names (see `read_recipe`); later, typed flags win."""
    given = list(sys.argv[1:] if argv is None else argv)
    path = find_value(given, "--recipe")
    if path is None:
        return given
    return [*flag_words(read_recipe(path, settings).flags), *given]
