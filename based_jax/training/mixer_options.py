"""Options of a mixer as a command line has them: `name=value`, with values as JSON or plain text."""

import json
import re
from collections.abc import Iterable
from typing import Any

from based_jax.validate import expect

_COMMA = re.compile(r",(?![^\[]*\])")  # not those of a list


def split_options(text: str) -> list[str]:
    """The pairs of `a=1,b=[2,3]`."""
    return _COMMA.split(text)


def parse_options(argument: str, given: str, pairs: Iterable[str], expected: str) -> dict[str, Any]:
    """Options by name.

    Args:
        argument, given: the flag and its whole text, for the message.
        pairs: `name=value` each; a value that is no JSON is a text.
        expected: how the flag is written.

    Raises:
        ValueError: a pair without a name or a value, or a name that is there twice.
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
