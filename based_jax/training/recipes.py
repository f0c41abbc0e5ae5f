"""Recipes: files of flags for `python -m train.lm --recipe FILE`.

A flag is a key, with dashes or underscores, at the top of the file or below ``[flags]``. A file may also have
`title`, `source`, `tokens`, `shards` and `remarks`, for people. based_jax/recipes has one for each run of the
papers, which is recipes/NAME.toml in every directory.
"""

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from based_jax.command import find_value
from based_jax.files import read_toml
from based_jax.grouped_help import flags
from based_jax.validate import expect

_ABOUT = {"title": str, "source": str, "tokens": int, "shards": str, "remarks": list}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run as data."""

    flags: dict[str, Any]  # of the command, without dashes in front
    title: str = ""  # what is trained, on what
    source: str = ""  # the paper's tables that the settings are from
    tokens: int | None = None  # that the run trains on
    shards: str = ""  # the command that makes the token shards of its flag `data`
    remarks: tuple[str, ...] = ()  # what the paper leaves open, or does and we do not

    @property
    def words(self) -> list[str]:
        """The flags as on a command line."""
        words = []
        for name, value in self.flags.items():
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                words += [f"--{name}", str(value)]
        return words


def read_recipe(path: Path, settings: type[Any]) -> Recipe:
    """The recipe in a file, for the command whose flags are the dataclass `settings`.

    Raises:
        OSError, ValueError: no such file, not TOML, or a key that is no flag; the nearest flag is named.
    """
    content = read_toml(path)
    about = {name: content.pop(name) for name in _ABOUT if name in content}
    for name, value in about.items():
        kind = _ABOUT[name].__name__
        expect(type(value) is _ABOUT[name], f"recipe {path}: {name}", value, f"a value of type {kind}")
    below = content.pop("flags", {})
    expect(isinstance(below, dict), f"recipe {path}: flags", below, "a table, [flags]")
    known = [flag.name for flag in flags(settings)]
    words = {}
    for key, value in (*content.items(), *below.items()):
        name = key.replace("_", "-")
        near = difflib.get_close_matches(name, [*known, *_ABOUT], 1, cutoff=0)
        entry, is_value = f"recipe {path}: {key}", isinstance(value, str | bool | int | float)
        expect(name in known, entry, value, f"a flag of the command as key, such as {near[0]}")
        expect(is_value, entry, value, "a text, a number or a truth value")
        expect(name not in words, entry, value, "each flag once")
        words[name] = value
    remarks = tuple(about.pop("remarks", ()))
    return Recipe(flags=words, remarks=remarks, **about)


def find_file(path: Path) -> Path:
    """The file `path`; recipes/NAME is one of this package if there is no such file here."""
    ours = Path(str(resources.files("based_jax") / str(path)))
    return ours if path.parent == Path("recipes") and not path.exists() and ours.exists() else path


def with_recipe(argv: Sequence[str] | None, settings: type[Any]) -> list[str]:
    """The flags after those of the file that `--recipe` names (see `read_recipe`): what is typed wins."""
    given = list(sys.argv[1:] if argv is None else argv)
    path = find_value(given, "--recipe")
    return given if path is None else [*read_recipe(find_file(Path(path)), settings).words, *given]
