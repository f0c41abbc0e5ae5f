"""Flags that several benchmarks share: comma lists, paths checked beforehand, the line to repeat."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from based_jax.validate import expect

PROGRAM = "python -m benchmarks"


def command_line(arguments: Sequence[str]) -> str:
    """What was typed, ready to be typed again."""
    return shlex.join([*PROGRAM.split(), *arguments])


def comma_list(item: type, metavar: str) -> tyro.constructors.PrimitiveConstructorSpec:
    """A tuple flag written `a,b,c` (or `a b c`)."""

    def read(words: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(item(part) for word in words for part in word.split(",") if part.strip())
        except ValueError:
            raise ValueError(f"expected {metavar}, got {' '.join(words)!r}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(part, item) for part in value),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


def expect_writable(flag: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Find out now, not after an hour of measuring, that a result cannot be written.

    Raises:
        ValueError: the file cannot be opened for writing, or its name ends in none of `suffixes`.
    """
    if path is None:
        return
    name = str(path)
    if suffixes:
        expect(path.suffix.lower() in suffixes, flag, name, f"a name that ends in {', '.join(suffixes)}")
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{flag} = {name!r}: cannot be written ({error.strerror or error})") from None
