"""Checks of public arguments: errors name the argument, its value and what was expected."""

import dataclasses
import difflib
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MOST_SHOWN = 500  # characters of a value in a message
_ARTICLES = {"floating": "a floating", "integer": "an integer", "bool": "a bool"}


def expect(condition: bool, argument: str, value: Any, expected: str) -> None:
    """Raise ``ValueError("argument = value: expected ...")`` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument} = {shown(value)}: expected {expected}")


def shown(value: Any) -> str:
    """Return `value` for a message: its `repr`, without the middle if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints no integer of more than 4300 digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 103]}...{text[-100:]}"


def shown_name(name: str) -> str:
    """Return a name from a file for a message: quoted if it has unprintable characters."""
    return name if name.isprintable() and 0 < len(name) <= _MOST_SHOWN else shown(name)


INT32_MAX = 2**31 - 1  # the largest number of tokens, steps or rows: they are counted in int32 on the device
UINT32_MAX = 2**32 - 1  # the largest seed


def expect_range(argument: str, value: float, least: float, most: float = INT32_MAX) -> None:
    """Check that a number is in [least, most]; the error names the bound that it violates."""
    expect(value >= least, argument, value, f"at least {least}")
    expect(value <= most, argument, value, f"at most {most}")


def expect_ranges(settings: Any, least: float, *names: str) -> None:
    """Check these attributes with `expect_range`; None is an unset setting."""
    for name in names:
        if (value := getattr(settings, name)) is not None:
            expect_range(name, value, least)


def expect_writable(settings: Any, *names: str) -> None:
    """Check that paths in these attributes are None or can be written; missing directories are no error."""
    for name in names:
        if (path := getattr(settings, name)) is not None:
            nearest = _nearest_existing(path)
            is_free = nearest.is_dir() == (nearest != path)
            expect(is_free and os.access(nearest, os.W_OK), name, str(path), "a file that can be written")


def expect_directory(argument: str, path: Path) -> None:
    """Check that a path is that of a directory which can be written, or made."""
    nearest = _nearest_existing(path)
    expected = "a directory that can be written"
    expect(nearest.is_dir() and os.access(nearest, os.W_OK), argument, str(path), expected)


def _nearest_existing(path: Path) -> Path:
    """Return the path, or the first of its parents that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def expect_outputs(settings: Any, *names: str) -> None:
    """Check as `expect_writable`, and that no other attribute, such as an input's, has the same file.

    Attributes may be tuples of paths, and dataclasses with such attributes.
    """
    expect_writable(settings, *names)
    for name in names:
        if (path := getattr(settings, name)) is not None and path.exists():
            others = {other: value for other, value in vars(settings).items() if other != name}
            is_other = any(path.samefile(file) for file in _files(others))
            expect(not is_other, name, str(path), "a file that nothing is read from")


def _files(value: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield the values inside that are paths of existing files."""
    if isinstance(value, str | os.PathLike):
        if os.path.isfile(value):
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _files(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _files(each)
    elif dataclasses.is_dataclass(value):
        yield from _files(vars(value))


def expect_integer(argument: str, value: Any, least: int, most: int | None = None) -> None:
    """Check that `value` is a Python or NumPy integer in [least, most], not a bool.

    The default of `most` is `INT32_MAX`, which the error names only if it was exceeded.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    end = INT32_MAX if most is None else most
    is_above = whole and int(value) > end
    bounds = f"at least {least}" if most is None and not is_above else f"from {least} to {end}"
    expect(whole and int(value) >= least and not is_above, argument, value, f"an integer, {bounds}")


def expect_array(
    argument: str, array: Any, shape: Sequence[int | str | None], kind: str | None = None
) -> None:
    """Check an array's shape and kind of dtype.

    Args:
        shape: one entry per axis: a number that must match, or a name (any size, shown in the message).
        kind: "floating", "integer" or "bool"; None accepts any dtype.

    Raises:
        TypeError: not an array, or a dtype of another kind.
        ValueError: another rank or size.
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{argument} = {shown(array)}: expected an array of shape {_show(shape)}")
    matches = len(array.shape) == len(shape) and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not matches:
        raise ValueError(f"{argument} has shape {tuple(array.shape)}: expected {_show(shape)}")
    if 0 in array.shape:
        raise ValueError(f"{argument} has shape {tuple(array.shape)}: expected no empty axis")
    if kind is not None:
        import jax.numpy as jnp  # here, since processes that tokenize text have no use for JAX

        parent = {"floating": jnp.floating, "integer": jnp.integer, "bool": jnp.bool_}[kind]
        try:
            fits = jnp.issubdtype(array.dtype, parent)
        except TypeError:  # torch's, say
            fits = False
        if not fits:
            raise TypeError(f"{argument} has dtype {array.dtype}: expected {_ARTICLES[kind]} dtype")


def expect_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that `value` is one of `choices`; the error names the nearest one."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        expect(False, argument, value, f"one of {known}{nearest(value, choices)}")


def nearest(value: Any, choices: Sequence[Any]) -> str:
    """Return the end of a message that suggests the choice most similar to `value`; empty if none is."""
    names = [choice for choice in choices if isinstance(choice, str)]
    found = difflib.get_close_matches(value, names, 1) if isinstance(value, str) else []
    return f"; did you mean {found[0]!r}?" if found else ""


def expect_divisible(argument: str, value: int, divisor_name: str, divisor: int) -> None:
    """Check that `divisor` divides `value`."""
    expect(divisor > 0 and value % divisor == 0, argument, value, f"a multiple of {divisor_name} = {divisor}")


def _show(shape: Sequence[int | str | None]) -> str:
    names = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({names},)" if len(shape) == 1 else f"({names})"
