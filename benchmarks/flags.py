"""Flags that several benchmarks share: comma lists, and paths that are checked in advance."""

import argparse
import dataclasses
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

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


def expect_writable(flag: str, path: Path | None) -> None:
    """Check now, not after an hour of measuring, that a result can be written.

    Raises:
        ValueError: the file cannot be opened for writing.
    """
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{flag} = {str(path)!r}: cannot be written ({error.strerror or error})") from None


def parse_plainly(options: Callable[..., T], arguments: Sequence[str], prog: str) -> T:
    """Parse the flags of a dataclass without tyro, which a rented GPU machine may lack."""
    cls: Any = options
    parser = argparse.ArgumentParser(prog, description=cls.__doc__, allow_abbrev=False)
    for field in dataclasses.fields(cls):
        kind: Any = field.type
        flag, parts = f"--{field.name}", typing.get_args(kind)
        if kind is bool:
            parser.add_argument(flag, action="store_true")
        elif typing.get_origin(kind) is typing.Annotated:
            read = parts[1]
            parser.add_argument(flag, type=lambda text, read=read: read([text]), default=field.default)
        else:
            parser.add_argument(flag, type=parts[0] if parts else kind, default=field.default)
    return cls(**vars(parser.parse_args(arguments)))
