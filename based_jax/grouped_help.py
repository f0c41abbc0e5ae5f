"""Format a command's help in groups of related flags: one or two lines per flag, at the terminal's width."""

import dataclasses
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from based_jax.plain_flags import field_texts

_FLAG_WIDTH = 26
_WIDEST = 110


class Flag(typing.NamedTuple):
    """A flag and its help."""

    name: str  # without leading dashes
    kind: str  # kind of the value, such as INT; empty for a switch
    default: str  # empty if there is none, or if `text` gives it
    text: str


def flags(settings: type, names: Sequence[str] | None = None) -> Iterator[Flag]:
    """Yield the flags of a dataclass, or of some of its fields; the fields' docstrings are their help.

    A field that is a dataclass itself contributes its fields.
    """
    hints, texts = typing.get_type_hints(settings), field_texts(settings)
    fields = {field.name: field for field in dataclasses.fields(settings)}
    for name in names or fields:
        hint = hints[name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from flags(hint)
            continue
        default = fields[name].default
        required = default is dataclasses.MISSING and fields[name].default_factory is dataclasses.MISSING
        shown = "" if default in (None, False, dataclasses.MISSING) else str(default)
        text = " ".join(texts[name].split())
        yield Flag(name.replace("_", "-"), _kind(hint), "required" if required else shown, text)


def grouped_help(prog: str, settings: type, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the help of the command `prog`, whose flags are `settings`; `groups` is title -> fields."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    required = [f"--{flag.name} {flag.kind}" for flag in flags(settings) if flag.default == "required"]
    usage = f"usage: {' '.join([prog, *required])} [flags]"
    lines = [usage, "", *textwrap.wrap(inspect.getdoc(settings) or "", width)]
    for title, names in groups.items():
        lines += ["", title]
        for flag in flags(settings, names):
            head = f"  --{flag.name} {flag.kind}".rstrip()
            default = f" [{flag.default}]" if flag.default else ""
            body = textwrap.wrap(flag.text + default, width - _FLAG_WIDTH, break_on_hyphens=False)
            if len(head) >= _FLAG_WIDTH:
                lines.append(head)
                head = ""
            lines += [f"{'' if index else head:<{_FLAG_WIDTH}}{line}" for index, line in enumerate(body)]
    return "\n".join([*lines, "", "A switch --x has an opposite, --no-x. Values in brackets are defaults."])


def _kind(hint: Any) -> str:
    """Return INT, FLOAT, PATH or TEXT; empty for a switch."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    names = {bool: "", str: "TEXT"}
    return names[hint] if hint in names else str(hint.__name__).upper()
