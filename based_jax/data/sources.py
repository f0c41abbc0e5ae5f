"""Load a corpus from a short string, its spec.

=================  ==========================================================================================
spec               documents
=================  ==========================================================================================
``stdlib``         the ``.py`` files of the running Python's standard library, without its tests
a file             the file; one document per line of a ``.jsonl`` file, object of a ``.json`` file or row of
                   a ``.parquet`` file; a FASTA file's records (see `fasta`)
a directory        every known file in it, recursively, and those that match `include`
a glob             every such file that matches; ``**`` crosses directories
``hf:NAME``        rows of a Hugging Face data set; its split and configuration may follow (see `hub`)
=================  ==========================================================================================

Each file is read once, however many links lead to it, under the first of its names. Links to directories are
followed if the spec or a component of a glob names them, but not by ``**`` or inside a directory.
Known files end in .txt .py .md .jsonl .json .fa .fasta .fna, each also with .gz or .zst, or in .parquet. Most
.json files are not text, so they are read only if the spec itself ends so. Other files are not read but
counted by suffix, unless `include` matches their names: these are read as UTF-8 text, .json files too. Files
are in the order of their sorted paths. To load a file that is itself called ``stdlib``, write ``./stdlib``.
"""

import fnmatch
import logging
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from based_jax.data import readers
from based_jax.data.documents import Corpus, Document, Skipped, describe_skipped
from based_jax.data.hub import HUB, load_texts, parse_hub
from based_jax.validate import expect

_LOGGER = logging.getLogger(__name__)

_ARGUMENT = "data spec"
_EXPECTED = "'stdlib', a file, a directory, a glob that matches files, or 'hf:NAME'"
# Without tests, which contain large generated tables, and packages, which differ between machines.
_STDLIB_EXCLUDED = ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__")


class File(NamedTuple):
    """A file to read, and the name of its documents."""

    name: str
    path: Path
    is_plain: bool = False  # matched only by `include`: one document of UTF-8 text, whatever its suffix


class Files(NamedTuple):
    """The result of `find_files`: files sorted by name, and counts of other files by suffix ("" for none)."""

    found: list[File]
    left_out: dict[str, int]


def load_documents(spec: str, include: str | None = None, *, max_bytes: int = readers.MAX_BYTES) -> Corpus:
    """Load the documents that `spec` names (see the module's table) and log one line about them.

    Empty, binary, undecodable, unreadable and damaged files are skipped and listed in `Corpus.skipped`; files
    with other suffixes are counted in `Corpus.left_out`.

    Args:
        include: patterns of file names, separated by commas, such as "*.rst,README": matching files in a
            directory or glob are read as UTF-8 text whatever their suffix; "*" is every file.
        max_bytes: limit of one file's decompressed text, as a file is in memory as a whole.

    Raises:
        FileNotFoundError: a path that does not exist, or a glob without a match.
        ValueError: no document at all, a file of an unknown kind, a broken line of a ``.jsonl`` file, or a
            file with more text than `max_bytes`, or than 100 times its own size (beyond 64 MiB).
        ImportError: `spec` needs a package of the ``data`` extra that is not installed.
    """
    expect(isinstance(spec, str) and bool(spec), _ARGUMENT, spec, _EXPECTED)
    has_files = not (spec == "stdlib" or spec.startswith(HUB))
    expected = f"a file, a directory or a glob as data, not {spec!r}"
    expect(include is None or has_files, "include", include, expected)
    documents, skipped, files = list[Document](), list[Skipped](), Files([], {})
    if spec.startswith(HUB):
        documents, skipped = _load_hugging_face(spec)
    else:
        files = find_files(spec, skipped, include)
        for name, path, is_plain in files.found:
            found, unusable = readers.read_file(path, name, max_bytes, is_plain=is_plain)
            documents += found
            skipped += unusable
    reasons = f"; skipped {describe_skipped(skipped)}" if skipped else ""
    expect(bool(documents), _ARGUMENT, spec, f"at least one document with text{reasons}")
    corpus = Corpus(spec, tuple(documents), tuple(skipped), len(files.found), files.left_out)
    expected = all(item.reason == "empty" for item in skipped) and not files.left_out
    _LOGGER.log(logging.INFO if expected else logging.WARNING, "%s", corpus.summary())
    return corpus


def find_files(
    spec: str, skipped: list[Skipped], include: str | None = None, suffixes: Collection[str] = ()
) -> Files:
    """Find the files that a spec names; directories that cannot be listed are added to `skipped`.

    Files that end in one of `suffixes` are found like known files.
    """
    if spec == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        files = _walk(root, skipped, _STDLIB_EXCLUDED)
        return Files(sorted(File(name, path) for name, path in files if path.suffix == ".py"), {})
    path = Path(spec)
    if os.path.isfile(path):
        kind, found = "a file", [(path.name, path)]
    elif os.path.isdir(path):
        kind, found = "a directory", sorted(_walk(path, skipped))
    else:
        is_glob = any(wildcard in spec for wildcard in "*?[")
        kind, found = "a glob", [(match, Path(match)) for match in _match(spec)] if is_glob else []
        if not found:
            problem = "this glob matches no file" if is_glob else "there is no such path"
            raise FileNotFoundError(f"{_ARGUMENT} = {spec!r}: expected {_EXPECTED}; {problem}")
    asks_for_json = kind != "a directory" and readers.without_compression(spec).endswith(".json")
    files = _by_suffix(found, include, suffixes, () if asks_for_json else (readers.JSON_EXTENSION,))
    once: dict[str, File] = {}
    for file in files.found:  # a broken link, which has no identity, is reported when it is read
        once.setdefault(_identity(file.path), file)
    files = Files(list(once.values()), files.left_out)
    others = f", or --include with a pattern for {' '.join(files.left_out)}" if files.left_out else ""
    expect(bool(files.found or skipped), _ARGUMENT, spec, f"{kind} with text ({readers.KNOWN_FILES}){others}")
    return files


def _match(pattern: str) -> list[str]:
    """Return the sorted files that match a glob; hidden names only match a component with a dot, too.

    ``**`` does not follow links, in which `glob.glob` may go around in circles.
    """
    parts = [part if part == "**" else re.sub(r"\*+", "*", part) for part in Path(pattern).parts]
    parts = [part for part, before in zip(parts, ["", *parts], strict=False) if not part == before == "**"]
    hidden = [part for part in parts if part.startswith(".")]
    root = Path(parts.pop(0)) if os.path.isabs(pattern) else Path()
    found = []
    for path in root.glob(os.path.join(*parts, *["*"] * (parts[-1] == "**"))):
        dots = [name for name in path.relative_to(root).parts if name.startswith(".")]
        if all(any(fnmatch.fnmatch(name, part) for part in hidden) for name in dots) and path.is_file():
            found.append(f"./{path}" if pattern.startswith("./") else str(path))
    return sorted(found)


def _identity(path: Path) -> str:
    """Return the same string for every path to a file; the path itself if nothing is there."""
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return f"{status.st_dev}:{status.st_ino}"


def _by_suffix(
    files: Iterable[tuple[str, Path]], include: str | None, suffixes: Collection[str], other: Collection[str]
) -> Files:
    """Return the files to read, and counts of the rest by suffix; `other` suffixes are not read."""
    patterns = [pattern.strip() for pattern in include.split(",")] if include else []
    found, left_out = [], Counter[str]()
    for name, path in files:
        names = (path.name, readers.without_compression(path.name), name)
        extension, _ = readers.kind_of(path)
        is_known = readers.is_known_file(path) and extension not in other
        is_known = is_known or path.suffix.lower() in suffixes
        if is_known or any(fnmatch.filter(names, pattern) for pattern in patterns):
            found.append(File(name, path, not is_known))
        else:
            left_out[path.suffix.lower()] += 1
    return Files(found, dict(left_out.most_common()))


def _walk(root: Path, skipped: list[Skipped], excluded: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield every file under `root` with its name relative to it; links to directories are not followed."""

    def unlistable(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), "unreadable"))

    for directory, subdirectories, files in os.walk(root, onerror=unlistable):
        subdirectories[:] = sorted(set(subdirectories) - set(excluded))
        for file in files:
            path = Path(directory, file)
            # A broken link is kept, so that reading reports it; a named pipe would block forever.
            if os.path.isfile(path) or not os.path.exists(path):
                yield path.relative_to(root).as_posix(), path


def _load_hugging_face(spec: str) -> tuple[list[Document], list[Skipped]]:
    name, documents, skipped = parse_hub(spec, _ARGUMENT).name, list[Document](), list[Skipped]()
    for number, text in enumerate(load_texts(spec, _ARGUMENT)):
        if text:
            documents.append(Document(f"{name}:{number}", text))
        else:
            skipped.append(Skipped(f"{name}:{number}", "empty"))
    return documents, skipped
