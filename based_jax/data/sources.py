"""Find the files that a short string names, the spec of a corpus.

=================  ==========================================================================================
spec               documents
=================  ==========================================================================================
``stdlib``         the ``.py`` files of the running Python's standard library, without its tests
a file             the file; one document per line of a ``.jsonl`` file; a FASTA file's records (see `fasta`)
a directory        every known file in it, recursively, and those that match `include`
a glob             every such file that matches; ``**`` crosses directories
``hf:NAME``        rows of a Hugging Face data set; its split and configuration may follow (see `hub`)
=================  ==========================================================================================

Each file is read once, however many links lead to it, under the first of its names. Links to directories are
followed if the spec or a component of a glob names them, but not by ``**`` or inside a directory. Files that
are not of `readers.KNOWN_FILES` are not read but reported, unless `include` matches their names: these are
read as plain text. Files are in the order of their sorted paths. ``./stdlib`` is a file called ``stdlib``.
"""

import fnmatch
import os
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from based_jax.data import readers
from based_jax.data.documents import FileReport, Skipped, count_left_out
from based_jax.data.hub import HUB
from based_jax.validate import expect

EXPECTED = "'stdlib', a file, a directory, a glob that matches files, or 'hf:NAME'"
# Without tests, which contain large generated tables, and packages, which differ between machines.
_STDLIB_EXCLUDED = ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__")


class File(NamedTuple):
    """A file to read or, if `path` is None, a data set of the hub, named by its spec."""

    name: str
    path: Path | None
    size: int = 0  # bytes on disk
    is_plain: bool = False  # matched only by `include`: one document of text, whatever its suffix

    def report(self) -> FileReport:
        """Begin the report about it."""
        return FileReport(self.name, self.size)


class Files(NamedTuple):
    """The result of `find_files`."""

    found: list[File]  # sorted by name
    others: list[FileReport]  # about directories that cannot be listed, and files that are not read


def find_files(spec: str, include: str | None = None) -> Files:
    """Find the files that a spec names, with the errors of `load_documents`."""
    expect(isinstance(spec, str) and bool(spec), "data", spec, EXPECTED)
    others = list[FileReport]()
    if spec.startswith(HUB):
        return Files([File(spec, None)], others)
    if spec == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        files = _walk(root, others, _STDLIB_EXCLUDED)
        return Files([_file(name, path) for name, path in sorted(files) if path.suffix == ".py"], others)
    path = Path(spec)
    if os.path.isfile(path):
        kind, found = "a file", [(path.name, path)]
    elif os.path.isdir(path):
        kind, found = "a directory", sorted(_walk(path, others))
    else:
        is_glob = any(wildcard in spec for wildcard in "*?[")
        kind, found = "a glob", [(match, Path(match)) for match in _match(spec)] if is_glob else []
        if not found:
            problem = "this glob matches no file" if is_glob else "there is no such path"
            raise FileNotFoundError(f"data = {spec!r}: expected {EXPECTED}; {problem}")
    files = _by_suffix(found, include)
    left_out = " ".join(count_left_out(files.others))
    hint = f", or --include with a pattern for {left_out}" if files.others else ""
    expect(bool(files.found or others), "data", spec, f"{kind} with text ({readers.KNOWN_FILES}){hint}")
    return Files(files.found, others + files.others)


def expect_outside(argument: str, path: Path, spec: str) -> None:
    """Check that a directory to write is not inside one to read: its files would be read, and change it."""
    is_inside = (
        spec != "stdlib" and os.path.isdir(spec) and path.resolve().is_relative_to(Path(spec).resolve())
    )
    expect(not is_inside, argument, str(path), f"a directory outside of {spec!r}, whose files are read")


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


def status_of(path: Path) -> os.stat_result | None:
    """Return `os.stat` of a file; None for a broken link, which is reported when it is read."""
    try:
        return path.stat()
    except OSError:
        return None


def _by_suffix(files: Iterable[tuple[str, Path]], include: str | None) -> Files:
    """Return the files to read, and a report about the rest."""
    patterns = [pattern.strip() for pattern in include.split(",")] if include else []
    found, left_out = dict[str, File](), list[FileReport]()
    for name, path in files:
        names = (path.name, readers.without_compression(path.name), name)
        is_known = readers.kind_of(path)[0] in readers.EXTENSIONS
        if is_known or any(fnmatch.filter(names, pattern) for pattern in patterns):
            status = status_of(path)
            identity = f"{status.st_dev}:{status.st_ino}" if status else str(path)
            found.setdefault(identity, _file(name, path, is_plain=not is_known))
        else:
            left_out.append(FileReport.of_left_out(name, _file(name, path).size, path.suffix.lower()))
    return Files(list(found.values()), left_out)


def _file(name: str, path: Path, *, is_plain: bool = False) -> File:
    status = status_of(path)
    return File(name, path, status.st_size if status else 0, is_plain)


def _walk(root: Path, others: list[FileReport], excluded: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield every file under `root` with its name relative to it; links to directories are not followed.

    Directories that cannot be listed are added to `others`.
    """

    def unlistable(error: OSError) -> None:
        others.append(FileReport(str(error.filename), 0))
        others[-1].skip(Skipped(str(error.filename), "unreadable"))

    for directory, subdirectories, files in os.walk(root, onerror=unlistable):
        subdirectories[:] = sorted(set(subdirectories) - set(excluded))
        for file in files:
            path = Path(directory, file)
            # A broken link is kept, so that reading reports it; a named pipe would block forever.
            if os.path.isfile(path) or not os.path.exists(path):
                yield path.relative_to(root).as_posix(), path
