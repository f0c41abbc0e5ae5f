"""Parse flags of a dataclass with argparse, for machines without tyro: same names, defaults; simpler help."""

import argparse
import ast
import contextlib
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

Options = TypeVar("Options")


@dataclass(frozen=True)
class Words:
    """Conversion of a flag's words to its value; has the fields of tyro's `PrimitiveConstructorSpec`."""

    nargs: int | str
    metavar: str
    instance_from_str: Callable[[list[str]], Any]
    is_instance: Callable[[Any], bool]
    str_from_instance: Callable[[Any], list[str]]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse(
    options: Callable[..., Options], argv: Sequence[str] | None, prog: str, default: Any, pairs: bool
) -> Options:
    """Build `options` from flags; arguments as for `based_jax.command.parse`.

    Raises:
        SystemExit: status 0 after --help.
        ValueError: a flag that is unknown, incomplete, or has a value of another type.
    """
    cls: Any = options
    hints, texts = typing.get_type_hints(cls, include_extras=True), field_texts(cls)
    parser = _Parser(prog=prog, description=inspect.getdoc(cls), allow_abbrev=False)
    for field in dataclasses.fields(cls):
        value = _default(field) if default is None else getattr(default, field.name)
        _add(parser, field.name, hints[field.name], value, texts.get(field.name, ""), pairs)
    values = vars(parser.parse_args(argv))
    for name, value in values.items():
        if isinstance(value, list):  # of words, not a default
            spec = _spec(hints[name])
            values[name] = tuple(value) if spec is None else spec.instance_from_str(value)
    return cls(**values)


def field_texts(cls: type) -> dict[str, str]:
    """Map the fields of a dataclass and its bases to the docstrings below them; empty without a source."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            body = getattr(tree, "body", [])
            for field, text in itertools.pairwise(body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                        texts[name] = inspect.cleandoc(words)
    return texts


def _default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _add(parser: argparse.ArgumentParser, name: str, hint: Any, value: Any, text: str, pairs: bool) -> None:
    """Add one field: a switch, a flag with a value, or a flag with several."""
    flag = f"--{name.replace('_', '-')}"
    required = value is dataclasses.MISSING
    spec = _spec(hint)
    shown = "required" if required else f"default: {_shown(value, spec)}"
    keywords: dict[str, Any] = {"dest": name, "required": required, "default": None if required else value}
    keywords["help"] = f"{text} ({shown})".strip().replace("%", "%%")
    if spec is not None:
        parser.add_argument(flag, nargs=spec.nargs, metavar=spec.metavar, **keywords)
        return
    kind, several, choices = _kind(hint)
    if kind is bool and pairs:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **keywords)
    elif kind is bool:
        flag, action = (f"--no-{flag[2:]}", "store_false") if value is True else (flag, "store_true")
        parser.add_argument(flag, action=action, **keywords)
    elif several:
        parser.add_argument(flag, nargs="*", type=kind, **keywords)
    else:
        parser.add_argument(flag, type=kind, choices=choices, **keywords)


def _spec(hint: Any) -> Any:
    """Return the `Words` (or tyro's spec) that an annotation carries, or None."""
    metadata = getattr(hint, "__metadata__", ())
    return next((item for item in metadata if hasattr(item, "instance_from_str")), None)


def _kind(hint: Any) -> tuple[Any, bool, Sequence[Any] | None]:
    """Return the type of one value, whether several are allowed, and the allowed values if listed."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        return type(choices[0]), False, choices
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, None
    return hint, False, None


def _shown(value: Any, spec: Any) -> str:
    if spec is not None and value is not None:
        return " ".join(spec.str_from_instance(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
