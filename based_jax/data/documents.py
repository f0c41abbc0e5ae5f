"""Documents of exact text, how records are read, and a report about what was read of every file."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from based_jax.files import parse_json, read_lines, whole_file

REPORT = "report.jsonl"
"""File with a line for each file: an object with the fields of `FileReport` and its outcome."""
OUTCOMES = ("kept", "partly kept", "skipped", "not read")

_NAMES_SHOWN = 3
_SUFFIXES_SHOWN = 6
_LARGEST = 3  # files in the table


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
    """Return the value at a path such as "body.content"; a key may have dots itself.

    None: there is no such field.
    """
    if not isinstance(record, dict) or field in record:
        return record[field] if isinstance(record, dict) else None
    cuts = (at for at, character in enumerate(field) if character == ".")
    found = (find_field(record.get(field[:at]), field[at + 1 :]) for at in cuts)
    return next((value for value in found if value is not None), None)


def describe_fields(record: Any) -> str:
    """List the fields of a record that could be its text, as `--text-field` takes them."""
    if not isinstance(record, dict):
        return f"this is {type(record).__name__}"
    names = list(_string_fields(record)) or [*map(str, record)]
    kind = "string fields" if any(_string_fields(record)) else "fields, none of them strings,"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"its {kind} are {', '.join(names[:_SHOWN]) or 'none'}{more} (--text-field chooses one)"


def parse_line(line: str, field: str, name: str, number: int) -> str:
    """Return the text of a line of JSON; an `Unusable` message names the file and the line."""
    expected = f"{name}, line {number}: expected a JSON object with a string field {field!r}"
    try:
        record = parse_json(line, "JSON")
    except ValueError as error:
        raise Unusable("not JSON", f"{expected}, but this is not JSON ({error})") from error
    text = find_field(record, field)
    if not isinstance(text, str):
        raise Unusable(f"no string field {field!r}", f"{expected}, but {describe_fields(record)}")
    try:
        text.encode("utf-8")  # an escaped lone surrogate passes the parser but is not text
    except UnicodeEncodeError as error:
        problem = f"its text is not valid Unicode ({error.reason})"
        raise Unusable("not Unicode", f"{expected}, but {problem}") from error
    return text


def _string_fields(record: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in record.items():
        if isinstance(value, str):
            yield prefix + name
        elif isinstance(value, dict):
            yield from _string_fields(value, f"{prefix}{name}.")


@dataclass
class FileReport:
    """What was read of a file or, named by its spec, a data set."""

    file: str
    bytes: int  # on disk
    is_read: bool = True  # False: neither its suffix nor --include selects it
    documents: int = 0  # with text; some may be copies of held-out ones
    text_bytes: int = 0  # UTF-8 bytes of their text
    skipped: dict[str, int] = field(default_factory=dict)  # number of documents, or 1 for the file, by reason
    message: str = ""  # what is wrong with the first document that was skipped, or what to do

    @property
    def outcome(self) -> str:
        """Return one of `OUTCOMES`."""
        if not self.is_read:
            return "not read"
        return ("partly kept" if self.skipped else "kept") if self.documents else "skipped"

    @classmethod
    def of_left_out(cls, file: str, size: int, suffix: str) -> "FileReport":
        """Report a file that is not read."""
        return cls(file, size, False, message=f"--include {_pattern(suffix)} reads it")

    def add(self, found: Document | Skipped) -> None:
        """Count a document, or what was skipped."""
        if isinstance(found, Skipped):
            self.skip(found)
        else:
            self.count(1, len(found.text.encode()))

    def count(self, documents: int, text_bytes: int) -> None:
        """Count documents with text."""
        self.documents, self.text_bytes = self.documents + documents, self.text_bytes + text_bytes

    def skip(self, item: Skipped) -> None:
        """Count a skipped document, or the file."""
        self.skipped[item.reason] = self.skipped.get(item.reason, 0) + 1
        self.message = self.message or item.message or advice([item.reason]).removeprefix("; ")

    def end(self) -> list[Skipped]:
        """Skip a file in which nothing was found; return the items that this adds."""
        if self.documents or self.skipped:
            return []
        empty = Skipped(self.file, "empty")
        self.skip(empty)
        return [empty]

    def line(self) -> str:
        """Return the line of ``report.jsonl``, which is ASCII."""
        return json.dumps({"outcome": self.outcome, **asdict(self)}) + "\n"


def write_report(path: Path, files: Iterable[FileReport]) -> None:
    """Write a ``report.jsonl``."""
    with whole_file(path) as file:
        file.writelines(report.line().encode() for report in files)


def read_report(path: Path) -> list[FileReport]:
    """Read a ``report.jsonl``; empty if there is none."""
    rows, _ = read_lines(path, {"file": str})
    return [FileReport(**{name: value for name, value in row.items() if name != "outcome"}) for row in rows]


def report_table(files: Sequence[FileReport]) -> str:
    """Return counts by outcome and the largest files without a document, in at most eight lines."""
    lines = [f"{'':<12}{'files':>9}{'documents':>13}{'bytes of files':>19}{'bytes of text':>19}"]
    for outcome in OUTCOMES:
        group = [file for file in files if file.outcome == outcome]
        if group:
            documents, size = sum(file.documents for file in group), sum(file.bytes for file in group)
            text = sum(file.text_bytes for file in group)
            lines.append(f"{outcome:<12}{len(group):>9,}{documents:>13,}{size:>19,}{text:>19,}")
    without = [file for file in files if not file.documents]
    without.sort(key=lambda file: (not file.is_read, -file.bytes))
    for file in without[:_LARGEST]:
        reasons = describe_counts(file.skipped) or file.outcome
        lines.append(f"{file.file}: {file.bytes:,} bytes, {reasons}{file.message and f'; {file.message}'}")
    return "\n".join(lines)


def describe_not_read(files: Iterable[FileReport]) -> str:
    """Format the files not read by suffix, and the flag that reads those of the first suffix too; or "".

    For example ``160 files by suffix (120 .rst, 40 without); --include '*.rst' reads them too``.
    """
    left_out = count_left_out(files)
    if not left_out:
        return ""
    kinds = [f"{number:,} {suffix or 'without'}" for suffix, number in left_out.items()]
    more = len(kinds) - _SUFFIXES_SHOWN
    shown = ", ".join(kinds[:_SUFFIXES_SHOWN]) + (f" and {more} more kinds" if more > 0 else "")
    hint = f"--include {_pattern(next(iter(left_out)))} reads them too"
    return f"{count(sum(left_out.values()), 'file')} by suffix ({shown}); {hint}"


def count(number: int, noun: str) -> str:
    """Format a number of things: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def count_left_out(files: Iterable[FileReport]) -> dict[str, int]:
    """Return the numbers of files not read by suffix ("" for none), the largest first."""
    return dict(Counter(Path(file.file).suffix.lower() for file in files if not file.is_read).most_common())


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
    return f"{sum(map(len, names.values())):,} ({'; '.join(parts)}){advice(names)}"


def advice(reasons: Iterable[str]) -> str:
    """Return which option may help with texts that were skipped for these reasons; or ""."""
    return "; --encoding names another encoding" if "not UTF-8" in reasons else ""


def _pattern(suffix: str) -> str:
    return f"'*{suffix}'" if suffix else "'*'"
