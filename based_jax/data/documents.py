"""A corpus: documents of exact text, and a record of every file without a usable document."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

_NAMES_SHOWN = 3
_SUFFIXES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Document:
    """One text, unchanged from its source, newlines included."""

    name: str
    """source (a path, a path and line, a data set and row), human-readable; not unique"""
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A source without a usable document; reason: empty, binary, not UTF-8, unreadable or damaged."""

    name: str
    reason: str


@dataclass(frozen=True)
class Corpus:
    """What `load_documents` found in `spec`."""

    spec: str
    documents: tuple[Document, ...]
    """at least one, in a deterministic order"""
    skipped: tuple[Skipped, ...] = ()
    num_files: int = 0
    """files that were read; 0 if the documents do not come from files"""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """files not read, by suffix ("" for none)"""

    @cached_property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of all documents together."""
        return sum(len(document.text.encode("utf-8")) for document in self.documents)

    def summary(self) -> str:
        """Summarize in one line how much was found, and what was skipped or left out, with the reasons."""
        count = len(self.documents)
        line = f"{self.spec}: {count:,} document{'s' * (count != 1)}, {self.num_bytes:,} bytes"
        if self.skipped:
            line += f"; skipped {describe_skipped(self.skipped)}"
        return f"{line}; not read {describe_left_out(self.left_out)}" if self.left_out else line


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Format counts by suffix, for example ``160 files by suffix (120 .rst, 40 without)``."""
    kinds = [f"{count:,} {suffix or 'without'}" for suffix, count in left_out.items()]
    more = len(kinds) - _SUFFIXES_SHOWN
    shown = ", ".join(kinds[:_SUFFIXES_SHOWN]) + (f" and {more} more kinds" if more > 0 else "")
    count = sum(left_out.values())
    return f"{count:,} file{'s' * (count != 1)} by suffix ({shown})"


def describe_not_read(left_out: Mapping[str, int]) -> str:
    """Format counts by suffix, and the flag that reads the files of the first suffix too."""
    suffix = next(iter(left_out))
    pattern = f"'*{suffix}'" if suffix else "'*'"
    return f"{describe_left_out(left_out)}; --include {pattern} reads them too"


def describe_counts(skipped: Mapping[str, int]) -> str:
    """Format counts by reason, for example ``2 empty, 1 binary``; "" if all are zero."""
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count)


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """Format counts and first names by reason, such as ``3 (2 empty: a.txt, b.txt; 1 binary: c.txt)``."""
    names = defaultdict(list)
    for item in skipped:
        names[item.reason].append(item.name)
    parts = []
    for reason, group in sorted(names.items()):
        dots = ", ..." if len(group) > _NAMES_SHOWN else ""
        parts.append(f"{len(group):,} {reason}: {', '.join(group[:_NAMES_SHOWN])}{dots}")
    return f"{sum(map(len, names.values())):,} ({'; '.join(parts)})"
