"""Flags that several benchmarks share: comma lists and their checks; parsing without tyro."""

import argparse
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from based_jax.validate import expect, expect_choice

T = TypeVar("T")


def comma_list(item: type, metavar: str) -> Any:
    """Describe a tuple flag written `a,b,c` (or `a b c`)."""

    def read(words: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(item(part) for word in words for part in word.split(",") if part.strip())
        except ValueError:
            raise ValueError(f"expected {metavar}, got {' '.join(words)!r}") from None

    try:
        from tyro.constructors import PrimitiveConstructorSpec
    except ImportError:
        return read  # for `parse_plainly`
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(part, item) for part in value),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


Names = Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")]
Counts = Annotated[tuple[int, ...], comma_list(int, "N,N,...")]
"""Types of flags that are comma lists."""


def expect_counts(settings: Any, *names: str) -> None:
    """Check that these attributes, numbers or tuples of one or more, are at least 1."""
    for name in names:
        given = getattr(settings, name)
        values = given if isinstance(given, tuple) else (given,)
        expect(len(values) > 0, flag_of(name), "", "one or more")
        expect(min(values) >= 1, flag_of(name), min(values), "at least 1")


def expect_items(settings: Any, **known: Sequence[str]) -> None:
    """Check that these attributes, tuples, have one or more of the known items, each once."""
    for name, choices in known.items():
        values, flag = getattr(settings, name), flag_of(name)
        for value in values:
            expect_choice(flag, value, choices)
        expect(0 < len(set(values)) == len(values), flag, ",".join(values), "one or more, each once")


def flag_of(name: str) -> str:
    """Return how an attribute is set on the command line: "fit_from" -> "--fit-from"."""
    return f"--{name.replace('_', '-')}"


def parse_plainly(options: Callable[..., T], arguments: Sequence[str], prog: str) -> T:
    """Parse the flags of a dataclass without tyro, which a rented GPU machine may lack."""
    cls: Any = options
    parser = argparse.ArgumentParser(prog, description=cls.__doc__, allow_abbrev=False)
    for field in dataclasses.fields(cls):
        kind: Any = field.type
        flag, parts = f"--{field.name}", typing.get_args(kind)
        if kind is bool:
            parser.add_argument(flag, action="store_true")
        elif typing.get_origin(kind) is Annotated:
            read = parts[1]
            parser.add_argument(flag, type=lambda text, read=read: read([text]), default=field.default)
        else:
            parser.add_argument(flag, type=parts[0] if parts else kind, default=field.default)
    return cls(**vars(parser.parse_args(arguments)))
