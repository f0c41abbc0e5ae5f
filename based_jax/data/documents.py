"""A document of exact text, what is recorded where there is none, and how records are read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from based_jax.files import parse_json


@dataclass(frozen=True, slots=True)
class Document:
    """One text, unchanged from its source, newlines included."""

    name: str
    """source (a path, a path and line, a data set and row), human-readable; not unique"""
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A source without a usable document."""

    name: str
    reason: str
    """short, for counting: empty, binary, not UTF-8, unreadable, damaged, ..."""
    message: str = field(default="", compare=False)
    """what is wrong with a file that is not what its name says; "" if nothing more is known"""


class Unusable(Exception):
    """A file or a record has no usable text; the arguments are those of `Skipped`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason, self.message = reason, message

    def skipped(self, name: str) -> Skipped:
        """Return the record of it."""
        return Skipped(name, self.reason, self.message)


_SHOWN = 12  # fields in a message


def find_field(record: Any, field: str) -> Any:
    """Return the value at a path such as "body.content"; a key that has the dots itself comes first.

    None: there is no such field.
    """
    if not isinstance(record, dict) or field in record:
        return record[field] if isinstance(record, dict) else None
    first, _, rest = field.partition(".")
    return find_field(record.get(first), rest) if rest else None


def describe_fields(record: Any) -> str:
    """List the fields of a record that could be its text, as `--text-field` takes them."""
    if not isinstance(record, dict):
        return f"this is {type(record).__name__}"
    names = list(_string_fields(record)) or [*map(str, record)]
    kind = "string fields" if any(_string_fields(record)) else "fields, none of them strings,"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its {kind} are {', '.join(names[:_SHOWN]) or 'none'}{more} (--text-field chooses one)"


def text_of(record: Any, field: str, expected: str) -> str:
    """Return the text of a parsed object; an `Unusable` message begins with `expected`."""
    text = find_field(record, field)
    if not isinstance(text, str):
        raise Unusable(f"no string field {field!r}", f"{expected}, but {describe_fields(record)}")
    try:
        text.encode("utf-8")  # an escaped lone surrogate passes the parser but is not text
    except UnicodeEncodeError as error:
        problem = f"its text is not valid Unicode ({error.reason})"
        raise Unusable("not Unicode", f"{expected}, but {problem}") from error
    return text


def parse_line(line: str, field: str, name: str, number: int) -> str:
    """Return the text of a line of JSON; an `Unusable` message names the file and the line."""
    expected = f"{name}, line {number}: expected a JSON object with a string field {field!r}"
    try:
        record = parse_json(line, "JSON")
    except ValueError as error:
        raise Unusable("not JSON", f"{expected}, but this is not JSON ({error})") from error
    return text_of(record, field, expected)


def _string_fields(record: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, str):
            yield prefix + name
        elif isinstance(value, dict):
            yield from _string_fields(value, f"{prefix}{name}.")
