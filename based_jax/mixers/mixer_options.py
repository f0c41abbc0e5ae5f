"""The options of a mixer, own and inherited: their names, their values, and their meaning from docstrings."""

import dataclasses
import functools
import inspect
import re
from typing import Any, NamedTuple

from based_jax.fields import expect_fields

_OWN, _INHERITED = "Attributes:", "Inherited attributes:"


class Option(NamedTuple):
    """Default and meaning of one option of a mixer."""

    default: Any
    meaning: str


@functools.cache
def option_names(mixer: type) -> tuple[str, ...]:
    """Return the names of a mixer's options: its fields, without those of every Flax module."""
    return tuple(field.name for field in dataclasses.fields(mixer) if field.name not in ("parent", "name"))


def expect_valid(mixer: Any) -> None:
    """Check the values of all options; ValueError names the first that is of another type or out of range."""
    values = [getattr(mixer, name) for name in option_names(type(mixer))]
    try:
        _expect_values(type(mixer), *values)
    except TypeError:  # lists cannot be looked up
        _expect_values.__wrapped__(type(mixer), *values)


@functools.lru_cache(maxsize=1024, typed=True)  # a mixer is copied for each call
def _expect_values(mixer: type, *values: Any) -> None:
    expect_fields(mixer, dict(zip(option_names(mixer), values, strict=True)))


def with_inherited(mixer: type) -> str:
    """Return a class's docstring with a section for attributes documented only by its bases."""
    text = inspect.cleandoc(mixer.__doc__ or "")
    known = attribute_docs(text)
    inherited: dict[str, str] = {}
    for base in mixer.__mro__[1:]:
        inherited = attribute_docs(base.__doc__ or "") | inherited
    lines = [f"    {name}: {meaning}" for name, meaning in inherited.items() if name not in known]
    return "\n".join([text, "", _INHERITED, *lines]) if lines else text


def attribute_docs(docstring: str) -> dict[str, str]:
    """Return attribute -> meaning from the attribute sections; ``a, b: meaning`` describes both."""
    found: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(docstring).splitlines():
        if not line.startswith(" ") and line:
            inside, names = line in (_OWN, _INHERITED), []
        elif inside and (entry := re.fullmatch(r" {4}(\w+(?:, \w+)*): (.*)", line)):
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif inside:
            found |= {name: f"{found[name]} {line.strip()}".rstrip() for name in names}
    return found
