"""Types and ranges of options, declared in the annotations of fields and checked by `expect_fields`.

Model configs may come from untrusted sources, and each number may become the size of a table or the length of
a Python loop. The ranges admit every model that could be trained, and are narrow enough that the shapes of
any model within them are computed in seconds.
"""

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import jax.numpy as jnp
import numpy as np

from based_jax.validate import expect


class Between(NamedTuple):
    """The range of a number, both ends included."""

    low: float
    high: float


class FloatingDtype:
    """Anything that `jax.numpy.dtype` converts to a floating dtype."""


MAX_SIZE = 1 << 24
MAX_LENGTH = 1 << 20
MAX_STATES = 1 << 10
MAX_REPEATS = 1 << 8

Size: TypeAlias = Annotated[int, Between(1, MAX_SIZE)]  # size of an axis, or a number of tokens
Count: TypeAlias = Annotated[int, Between(0, MAX_SIZE)]  # a size that may be 0, or an index
Length: TypeAlias = Annotated[int, Between(1, MAX_LENGTH)]  # tokens that a table or a filter is computed for
States: TypeAlias = Annotated[
    int, Between(1, MAX_STATES)
]  # of a channel, features of a key: tabulated squared
Repeats: TypeAlias = Annotated[int, Between(1, MAX_REPEATS)]  # number of repetitions: taps, orders
Layers: TypeAlias = Annotated[int, Between(0, MAX_REPEATS)]  # layers inside a mixer, maybe 0
Epsilon: TypeAlias = Annotated[float, Between(0, 1)]  # added to a divisor
Share: TypeAlias = Annotated[float, Between(0, 1)]  # a fraction
Positive: TypeAlias = Annotated[float, Between(sys.float_info.min, 1e12)]  # a base, rate or frequency
Factor: TypeAlias = Annotated[float, Between(sys.float_info.min, MAX_REPEATS)]  # ratio of two axes' widths
AtLeastZero: TypeAlias = Annotated[float, Between(0, 1e12)]  # a standard deviation, weight or bound
Dtype: TypeAlias = Annotated[Any, FloatingDtype()]  # a floating dtype, or its name


def expect_fields(cls: type, values: Mapping[str, Any]) -> None:
    """Check values of a dataclass's fields against their annotations, including those of this module.

    Integers are accepted as floats and lists as tuples (JSON has no tuples); bools are not numbers, and NaN
    and infinity are rejected. Fields without plain types (callables, arrays) are not checked.

    Raises:
        ValueError: a value of another type or outside the range; the message names the field.
    """
    hints = _hints(cls)
    for name, value in values.items():
        expect(_fits(value, hints[name]), name, value, _describe(hints[name]))


def plain(value: Any) -> Any:
    """Return an option's value as JSON keeps it, and hashable: tuples, Python's scalars, names of dtypes."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, np.dtype | type):
        return jnp.dtype(value).name
    return value.item() if isinstance(value, np.generic) else value


_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *limits = arguments
        return _fits(value, base) and all(_within(value, limit) for limit in limits)
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if hint in _KINDS:
        return _KINDS[hint][1](value)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if _is_fixed(hint):
        is_whole = isinstance(value, tuple | list) and len(value) == len(arguments)
        return is_whole and all(map(_fits, value, arguments))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple | list) and all(_fits(item, arguments[0]) for item in value)
    if origin is Mapping:
        entries = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_fits(key, arguments[0]) and _fits(item, arguments[1]) for key, item in entries)
    return not (origin is None and isinstance(hint, type)) or isinstance(value, hint)


def _within(value: Any, limit: Any) -> bool:
    if isinstance(limit, Between):
        return limit.low <= value <= limit.high
    if isinstance(limit, FloatingDtype):
        try:
            return bool(jnp.issubdtype(jnp.dtype(value), jnp.floating))
        except TypeError:
            return False
    return True  # an annotation from another library


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, limit, *_ = arguments
        if isinstance(limit, FloatingDtype):
            return "a floating dtype"
        if not isinstance(limit, Between):
            return _describe(base)
        least = "above 0" if limit.low == sys.float_info.min else f"at least {limit.low}"
        return f"{least} and at most {limit.high}, {'an integer' if base is int else 'a number'}"
    if origin in (Union, types.UnionType):
        # None first, since a range contains a comma.
        return " or ".join(sorted(map(_describe, arguments), key=lambda text: text != "None"))
    if hint in _KINDS:
        return _KINDS[hint][0]
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if _is_fixed(hint):
        return f"a list of {len(arguments)}: {', '.join(map(_describe, arguments))}"
    if origin in (tuple, Sequence):
        return f"a list in which each item is {_describe(arguments[0])}"
    if origin is Mapping:
        key, item = map(_describe, arguments)
        return f"a mapping in which each key is {key}, each value {item}"
    return f"a value of type {getattr(hint, '__name__', hint)}"


def _is_fixed(hint: Any) -> bool:
    return get_origin(hint) is tuple and Ellipsis not in get_args(hint)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number, of Python or NumPy."""
    if isinstance(value, np.floating):
        value = float(value)  # comparing a float32 with float64's largest number would overflow
    return (isinstance(value, float) or _is_integer(value)) and bool(abs(value) <= sys.float_info.max)


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    Any: ("anything", lambda value: True),
    bool: ("true or false", lambda value: isinstance(value, bool | np.bool_)),
    int: ("an integer", _is_integer),
    float: ("a finite number", is_finite),
    str: ("a text", lambda value: isinstance(value, str)),
    type(None): ("None", lambda value: value is None),
}
"""Plain types: the name in messages, and a check of values."""
