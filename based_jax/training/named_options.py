"""Parse options on a command line, of mixers and tasks: `name=value`, where a value is JSON or plain text."""

import json
import re
from collections.abc import Iterable
from typing import Any

from based_jax import mixers
from based_jax.models.backbones import ALIASES
from based_jax.validate import expect, nearest

_COMMA = re.compile(r",(?![^\[]*\])")  # commas outside lists


def split_options(text: str) -> list[str]:
    """Split `a=1,b=[2,3]` into its pairs."""
    return _COMMA.split(text)


def parse_options(argument: str, given: str, pairs: Iterable[str], expected: str) -> dict[str, Any]:
    """Parse pairs into options by name.

    Args:
        argument, given: the flag and its whole text, for the error message.
        pairs: `name=value` each; a value that is not JSON is a string.
        expected: the flag's syntax, for the error message.

    Raises:
        ValueError: a pair without a name or a value, or a repeated name.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = (part.strip() for part in pair.partition("="))
        expect(bool(name and value) and name not in options, argument, given, expected)
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def parse_named(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """Parse `NAME:option=value:option=value` into the name and its options; commas separate options, too.

    Raises:
        ValueError: text of another form; the message names `argument`, the flag.
    """
    name, *pairs = with_colons(text).split(":")
    return name, parse_options(argument, text, pairs, "NAME or NAME:option=value:option=value")


def with_colons(text: str) -> str:
    """Return `NAME:option=value,option=value` with colons between the options, where commas mean layers."""
    return ":".join(split_options(text.strip()))


def parse_mixer(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """Parse a mixer with options, by its name or by the path of its module, which is imported.

    Args:
        argument: the flag, for error messages.
        text: `NAME:option=value`, where NAME may be `package.module` or `package.module:Class`.

    Returns:
        The name for `based_jax.models.mqar_backbone`, and the options.

    Raises:
        ValueError: text of another form, an unknown name, or a module that has no such mixer.
    """
    known = [*ALIASES, *mixers.names()]
    path, *pairs = with_colons(text).split(":")
    if pairs and "=" not in pairs[0] and (path not in known or pairs[0][:1].isupper()):
        path = f"{path}:{pairs.pop(0)}"
    if path not in known and {".", ":"} & set(path):
        path = mixers.import_mixer(path)
    expected = f"package.module:Class, or one of {', '.join(known)}{nearest(path, known)}"
    expect(path in (*ALIASES, *mixers.names()), argument, path, expected)
    return path, parse_options(argument, text, pairs, "NAME or NAME:option=value:option=value")
