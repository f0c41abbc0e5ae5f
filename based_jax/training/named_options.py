"""Parse options of mixers and tasks on a command line, `option=value:option=value`, and lists of layers.

A value is JSON or plain text. Commas separate mixers, and the items of a list.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from based_jax import mixers
from based_jax.models.backbones import ALIASES
from based_jax.validate import expect, nearest

_COMMA = re.compile(r"[,:\s]*,[,:\s]*(?=\w+\s*=)")  # commas before an option

_NAMED = "NAME or NAME:option=value:option=value"


def split_mixers(argument: str, text: str) -> list[str]:
    """Split `a:x=1,b:y=[2,3]` into its mixers. ValueError: commas between options."""
    found: list[str] = []
    _expect_colons(argument, text)
    for part in text.split(","):
        if found and found[-1].count("[") > found[-1].count("]"):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def parse_named(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """Parse `NAME:option=value:option=value` into the name and its options; a value that is not JSON is text.

    ValueError: a pair without a name or a value, a repeated name, or commas between options.
    """
    _expect_colons(argument, text)
    name, *pairs = text.strip().split(":")
    return name, _options(argument, text, pairs)


def parse_layers(argument: str, text: str | None) -> list[int] | None:
    """Parse the numbers of layers, as in "0,3"; None for None. ValueError: anything else."""
    if text is None:
        return None
    words = text.split(",")
    are_numbers = all(word.strip().isdecimal() for word in words)
    expect(are_numbers, argument, text, "numbers of layers such as 0,3")
    layers = [int(word) for word in words]
    expect(len({*layers}) == len(layers), argument, text, "each layer once")
    return layers


def _options(argument: str, text: str, pairs: Iterable[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = (part.strip() for part in pair.partition("="))
        expect(bool(name and value) and name not in options, argument, text, _NAMED)
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def _expect_colons(argument: str, text: str) -> None:
    right = _COMMA.sub(":", text)
    expect(right == text, argument, text, f"colons between options: {right}")


def parse_mixer(argument: str, text: str) -> tuple[str, dict[str, Any]]:
    """Parse `NAME:option=value`; NAME may be `package.module` or `package.module:Class`, which is imported.

    Returns the name for `based_jax.models.mqar_backbone`, and the options.
    ValueError: text of another form, an unknown name, or a module that has no such mixer.
    """
    _expect_colons(argument, text)
    known = [*ALIASES, *mixers.names()]
    path, *pairs = text.strip().split(":")
    if pairs and "=" not in pairs[0] and (path not in known or pairs[0][:1].isupper()):
        path = f"{path}:{pairs.pop(0)}"
    if path not in known and {".", ":"} & set(path):
        path = mixers.import_mixer(path)
    expected = f"package.module:Class, or one of {', '.join(known)}{nearest(path, known)}"
    expect(path in (*ALIASES, *mixers.names()), argument, path, expected)
    return path, _options(argument, text, pairs)
