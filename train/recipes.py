"""Recipes: files of flags for `python -m train.lm --recipe FILE`, one per run of the papers in recipes/."""

import dataclasses
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from based_jax.validate import expect
from train.optimizer import OptimizerConfig

_ABOUT = {"title": str, "source": str, "tokens": int}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run as data."""

    title: str
    """what is trained, on what"""
    source: str
    """the paper's tables that the settings are from"""
    tokens: int
    """that the run trains on"""
    flags: dict[str, Any]
    """of the command, without dashes in front"""
    remarks: tuple[str, ...] = ()
    """what the paper leaves open, or does and we do not"""

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
        OSError, ValueError: no such file, not TOML, or an entry or a flag that is not one.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe = {str(path)!r}: not valid TOML: {error}") from error
    flags = content.pop("flags", {})
    remarks = tuple(content.pop("remarks", ()))
    types = {name: type(value) for name, value in content.items()}
    expect(types == _ABOUT, f"recipe {path}", content, "title, source, tokens, and maybe remarks and [flags]")
    known = {
        field.name.replace("_", "-")
        for owner in (settings, OptimizerConfig)
        for field in dataclasses.fields(owner)
    }
    strange = sorted(set(flags) - known)
    expect(not strange, f"recipe {path} [flags]", strange, "flags of the command, without dashes in front")
    return Recipe(flags=flags, remarks=remarks, **content)


def with_recipe(argv: Sequence[str] | None, settings: type[Any]) -> list[str]:
    """The flags behind those of the file that `--recipe` names, so that what is typed wins.

    Raises:
        OSError, ValueError: see `read_recipe`.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    for index, word in enumerate(given):
        flag, _, value = word.partition("=")
        path = value or "".join(given[index + 1 : index + 2])
        if flag == "--recipe" and path:
            return [*read_recipe(Path(path), settings).words, *given]
    return given
