"""A corpus: documents of exact text, and an account of every file that gave none."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Document:
    """One text that a model reads from start to end.

    Attributes:
        name: where it came from (a path, a path and line number, a data set and row); for people, not unique.
        text: the exact text; newlines are as they were in the source.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A source without a usable document; reason: empty, binary, not UTF-8, unreadable or damaged."""

    name: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """What `load_documents` found.

    Attributes:
        spec: the argument that was loaded.
        documents: at least one document, in a deterministic order.
        skipped: what was left out, and why.
    """

    spec: str
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...] = ()

    @cached_property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all documents together."""
        return sum(len(document.text.encode("utf-8")) for document in self.documents)

    def summary(self) -> str:
        """One line for people: how much was found, and what was skipped for which reason."""
        count = len(self.documents)
        line = f"{self.spec}: {count:,} document{'s' * (count != 1)}, {self.num_bytes:,} bytes"
        return f"{line}; skipped {describe_skipped(self.skipped)}" if self.skipped else line


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """Counts and the first names by reason, for example ``3 (2 empty: a.txt, b.txt; 1 binary: c.txt)``."""
    names = defaultdict(list)
    for item in skipped:
        names[item.reason].append(item.name)
    parts = []
    for reason, group in sorted(names.items()):
        dots = ", ..." if len(group) > _NAMES_SHOWN else ""
        parts.append(f"{len(group):,} {reason}: {', '.join(group[:_NAMES_SHOWN])}{dots}")
    return f"{sum(map(len, names.values())):,} ({'; '.join(parts)})"
