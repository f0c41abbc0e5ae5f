"""Flags that several benchmarks share: comma lists, and paths that are checked in advance."""

from pathlib import Path
from typing import Any

from tyro.constructors import PrimitiveConstructorSpec


def comma_list(item: type, metavar: str) -> Any:
    """Describe a tuple flag written `a,b,c` (or `a b c`)."""

    def read(words: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(item(part) for word in words for part in word.split(",") if part.strip())
        except ValueError:
            raise ValueError(f"expected {metavar}, got {' '.join(words)!r}") from None

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
