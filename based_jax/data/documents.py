"""A document of exact text, and what is recorded where there is none."""

from dataclasses import dataclass, field


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
