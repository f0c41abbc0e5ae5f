"""Where text comes from: one short string names a corpus.

=================  ==========================================================================================
spec               documents
=================  ==========================================================================================
``stdlib``         the ``.py`` files of the running Python's standard library, without its tests
a file             the file; one document per line of a ``.jsonl`` file; a FASTA file's records (see `fasta`)
a directory        every known file below it
a glob             every known file that matches; ``**`` crosses directories
``hf:NAME``        rows of a Hugging Face data set (split "train", field "text"); or ``hf:NAME:CONFIG``
=================  ==========================================================================================

Known files end in .txt .py .md .jsonl .fa .fasta .fna, each also with .gz or .zst. The order is that of the
sorted paths. To load a file that is itself called ``stdlib``, write ``./stdlib``.
"""

import glob
import logging
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from based_jax.data.documents import Corpus, Document, Skipped, describe_skipped
from based_jax.data.readers import KNOWN_FILES, import_optional, is_known_file, read_file
from based_jax.validate import expect

_LOGGER = logging.getLogger(__name__)

_ARGUMENT = "data spec"
_EXPECTED = "'stdlib', a file, a directory, a glob that matches files, or 'hf:NAME'"
# Tests are left out because much of them is generated tables; packages because they differ between machines.
_STDLIB_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def load_documents(spec: str) -> Corpus:
    """Load the documents that `spec` names (see the module's table) and log one line about them.

    Empty, binary, undecodable, unreadable and damaged files are skipped and listed in `Corpus.skipped`.

    Raises:
        FileNotFoundError: a path that does not exist, or a glob without a match.
        ValueError: no document at all, a file of an unknown kind, or a broken line of a ``.jsonl`` file.
        ImportError: `spec` needs a package of the ``data`` extra that is not installed.
    """
    expect(isinstance(spec, str) and bool(spec), _ARGUMENT, spec, _EXPECTED)
    if spec.startswith("hf:"):
        documents, skipped = _load_hugging_face(spec)
    else:
        documents, skipped = _load_files(spec)
    reasons = f"; skipped {describe_skipped(skipped)}" if skipped else ""
    expect(bool(documents), _ARGUMENT, spec, f"at least one document with text{reasons}")
    corpus = Corpus(spec, tuple(documents), tuple(skipped))
    level = logging.INFO if all(item.reason == "empty" for item in skipped) else logging.WARNING
    _LOGGER.log(level, "%s", corpus.summary())
    return corpus


def _load_files(spec: str) -> tuple[list[Document], list[Skipped]]:
    documents: list[Document] = []
    skipped: list[Skipped] = []
    for name, path in find_files(spec, skipped):
        found, left_out = read_file(path, name)
        documents += found
        skipped += left_out
    return documents, skipped


def find_files(spec: str, skipped: list[Skipped]) -> list[tuple[str, Path]]:
    """Sorted (name, path) pairs of a spec that names files; directories that cannot be listed are added to
    `skipped`.

    Raises:
        FileNotFoundError, ValueError: as `load_documents`.
    """
    if spec == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        files = _walk(root, skipped, _STDLIB_EXCLUDED)
        return sorted((name, path) for name, path in files if path.suffix == ".py")
    path = Path(spec)
    if os.path.isfile(path):
        expect(is_known_file(path), _ARGUMENT, spec, f"a file with an extension of {KNOWN_FILES}")
        return [(path.name, path)]
    if os.path.isdir(path):
        found = sorted((name, file) for name, file in _walk(path, skipped) if is_known_file(file))
        expect(bool(found or skipped), _ARGUMENT, spec, f"a directory with a file of {KNOWN_FILES} in it")
        return found
    if not any(wildcard in spec for wildcard in "*?["):
        raise FileNotFoundError(f"{_ARGUMENT} = {spec!r}: expected {_EXPECTED}; there is no such path")
    matches = sorted(match for match in glob.glob(spec, recursive=True) if os.path.isfile(match))
    if not matches:
        raise FileNotFoundError(f"{_ARGUMENT} = {spec!r}: expected {_EXPECTED}; this glob matches no file")
    found = [(match, Path(match)) for match in matches if is_known_file(Path(match))]
    expect(bool(found), _ARGUMENT, spec, f"a glob that matches a file of {KNOWN_FILES}")
    return found


def _walk(
    root: Path, skipped: list[Skipped], excluded: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Path]]:
    """Every file below `root` with its name relative to it; links to directories are not followed."""

    def unlistable(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), "unreadable"))

    for directory, subdirectories, files in os.walk(root, onerror=unlistable):
        subdirectories[:] = sorted(set(subdirectories) - excluded)
        for file in files:
            path = Path(directory, file)
            # A broken link is kept, so that reading it accounts for it; a named pipe would block for ever.
            if os.path.isfile(path) or not os.path.exists(path):
                yield path.relative_to(root).as_posix(), path


def _load_hugging_face(spec: str) -> tuple[list[Document], list[Skipped]]:
    _, name, *config = spec.split(":")
    expect(bool(name) and len(config) <= 1 and all(config), _ARGUMENT, spec, "hf:NAME or hf:NAME:CONFIG")
    datasets = import_optional("datasets", _ARGUMENT, spec)
    try:
        rows = datasets.load_dataset(name, *config, split="train")
    except Exception as error:  # the library raises many kinds: network, configuration, format, permission
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{_ARGUMENT} = {spec!r}: expected a data set with a split 'train' that can be loaded; "
            f"{type(error).__name__}: {reason}"
        ) from error
    documents, skipped = [], []
    for number, row in enumerate(rows):
        text = row.get("text")
        if not isinstance(text, str):
            expect(
                False, _ARGUMENT, spec, f"a string field 'text'; row {number} has {', '.join(sorted(row))}"
            )
        if text:
            documents.append(Document(f"{name}:{number}", text))
        else:
            skipped.append(Skipped(f"{name}:{number}", "empty"))
    return documents, skipped
