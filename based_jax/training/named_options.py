"""Parse options on a command line, of mixers and tasks: `name=value`, where a value is JSON or plain text."""

import json
import re
from collections.abc import Iterable
from typing import Any

from based_jax.validate import expect

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
    """Parse `NAME:option=value:option=value` into the name and its options.

    Raises:
        ValueError: text of another form; the message names `argument`, the flag.
    """
    name, *pairs = text.strip().split(":")
    return name, parse_options(argument, text, pairs, "NAME or NAME:option=value:option=value")
