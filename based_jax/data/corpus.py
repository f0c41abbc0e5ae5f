"""Load a corpus into memory."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from based_jax.data import readers
from based_jax.data.documents import Document, Skipped
from based_jax.data.encodings import ReadOptions
from based_jax.data.hub import HUB
from based_jax.data.reading import read_all
from based_jax.data.report import (
    FileReport,
    count_left_out,
    describe_counts,
    describe_left_out,
    describe_skipped,
)
from based_jax.data.sources import EXPECTED, File, find_files
from based_jax.validate import expect

_LOGGER = logging.getLogger(__name__)


class UnreadableCorpus(ValueError):
    """Files of a corpus are not what their names say; `files` reports about all of them."""

    def __init__(self, message: str, files: Sequence[FileReport]) -> None:
        super().__init__(message)
        self.files = tuple(files)


@dataclass(frozen=True)
class Corpus:
    """What `load_documents` found in `spec`."""

    spec: str
    documents: tuple[Document, ...]
    """at least one, in a deterministic order"""
    skipped: tuple[Skipped, ...] = ()
    files: tuple[FileReport, ...] = ()
    """about every file, those not read included"""

    @property
    def num_files(self) -> int:
        """Return the number of files that were read; 0 if the documents do not come from files."""
        return sum(file.is_read for file in self.files) if not self.spec.startswith(HUB) else 0

    @property
    def left_out(self) -> dict[str, int]:
        """Return the numbers of files not read, by suffix ("" for none)."""
        return count_left_out(self.files)

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
        return f"{line}; not read {left_out}" if (left_out := describe_left_out(self.files)) else line


def load_documents(
    spec: str,
    include: str | None = None,
    *,
    max_bytes: int = readers.MAX_BYTES,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Corpus:
    """Load the documents that `spec` names (see `based_jax.data.sources`) and log one line about them.

    Empty, binary, undecodable, unreadable and damaged files are skipped and listed in `Corpus.skipped`.

    Args:
        include: patterns of file names, separated by commas, such as "*.rst,README": matching files in a
            directory or glob are read as text whatever their suffix; "*" is every file.
        max_bytes: limit of one file's decompressed text.
        options: the encoding of text files, and the field of records that is the text.

    Raises:
        FileNotFoundError: a path that does not exist, or a glob without a match.
        ValueError: no document at all, a file of an unknown kind, a broken line of a ``.jsonl`` file, a
            record without the field, or a file with more text than `max_bytes`, or than 100 times its own
            size (beyond 64 MiB).
        ImportError: a file or an option needs a package of an extra that is not installed.
    """
    expect(isinstance(spec, str) and bool(spec), "data", spec, EXPECTED)
    has_files = not (spec == "stdlib" or spec.startswith(HUB))
    expected = f"a file, a directory or a glob as data, not {spec!r}"
    expect(include is None or has_files, "include", include, expected)
    is_hub = spec.startswith(HUB)
    files, others = ([File(spec, None)], []) if is_hub else find_files(spec, include)
    reports = [file.report() for file in files]
    found = list(read_all(files, reports, options, max_bytes, streams=False))
    documents = [item for item in found if isinstance(item, Document)]
    skipped = [item for item in found if isinstance(item, Skipped)]
    skipped += [Skipped(other.file, reason) for other in others for reason in other.skipped]
    corpus = Corpus(spec, tuple(documents), tuple(skipped), (*reports, *others))
    _expect_readable(corpus)
    expected = all(item.reason == "empty" for item in skipped) and not corpus.left_out
    _LOGGER.log(logging.INFO if expected else logging.WARNING, "%s", corpus.summary())
    return corpus


def load_file(file: File, options: ReadOptions) -> list[Document]:
    """Return the documents of one file, with the errors of `load_documents`."""
    found = list(read_all([file], [file.report()], options, readers.MAX_BYTES))
    _raise_first([item for item in found if isinstance(item, Skipped)], ())
    return [item for item in found if isinstance(item, Document)]


def _expect_readable(corpus: Corpus) -> None:
    _raise_first(corpus.skipped, corpus.files)
    if not corpus.documents:
        reasons = f"; skipped {describe_skipped(corpus.skipped)}" if corpus.skipped else ""
        message = f"data = {corpus.spec!r}: expected at least one document with text{reasons}"
        raise UnreadableCorpus(message, corpus.files)


def _raise_first(skipped: Sequence[Skipped], files: Sequence[FileReport]) -> None:
    """Raise an error for what is not as its file's name says, if there is any such item."""
    broken = [item for item in skipped if item.message]
    if broken:
        reasons = dict.fromkeys(item.reason for item in broken)
        counts = {reason: sum(item.reason == reason for item in broken) for reason in reasons}
        more = f"; in all {describe_counts(counts)}" if len(broken) > 1 else ""
        raise UnreadableCorpus(f"{broken[0].message}{more}", files)
