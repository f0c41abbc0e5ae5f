"""Fetch checkpoints from the Hugging Face hub: choose the files, fix the commit, and verify hashes.

A repository is named "owner/name", or "owner/name@revision" with a branch, tag or commit. huggingface_hub
downloads, resumes after a lost connection and caches. This module chooses the files (never code, and one set
of weights), limits their sizes, and compares every file with its hash.
"""

import contextlib
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from based_jax.convert.state_dict import WEIGHT_FILES, read_index
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.files import MAX_BYTES
from based_jax.validate import expect, shown_name

CONFIG = "config.json"
TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "generation_config.json"),
)
MAX_TOKENIZER_BYTES = 128 << 20
MAX_WEIGHT_BYTES = 64 << 30
"""Limit of all weights together: ten times the largest released model of this library's kind."""

_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*|[\w-][\w.-]*)(?:@([\w-][\w./+-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGESTS = {64: "SHA-256", 40: "git's SHA-1"}  # number of hexadecimal digits -> hash


def is_hub_id(source: str) -> bool:
    """Return whether `source` could be a repository: "owner/name" or "name", optionally with "@revision"."""
    return _ID.fullmatch(source) is not None


def parse_id(source: str, revision: str | None = None) -> tuple[str, str | None]:
    """Return the repository and the revision in `source` and `revision`; None is the main branch."""
    match = _ID.fullmatch(source)
    expect(match is not None, "repository", source, "owner/name or owner/name@revision")
    assert match is not None
    repository, own = match.groups()
    expect(None in (own, revision), "revision", revision, f"None with {source!r}, which has its own")
    wanted = own or revision
    fits = wanted is None or (bool(re.fullmatch(r"[\w-][\w./+-]*", wanted)) and ".." not in wanted)
    expect(fits, "revision", wanted, "a branch, tag or commit")
    return repository, wanted


def fetch(source: str, revision: str | None, check: Callable[[Path], object]) -> Path:
    """Download a repository's files at one commit, or find them in the cache; return the local directory.

    All files are of the same commit, even if a branch moves meanwhile. A full commit hash whose files are in
    the cache needs no network; if the hub cannot be reached, a branch or tag is resolved from the cache.

    Args:
        source: "owner/name" or "owner/name@revision".
        revision: branch, tag or commit, instead of after the @; None is the main branch.
        check: called with the directory after config.json is fetched and before any weights are.

    Raises:
        ImportError: huggingface_hub is not installed.
        FileNotFoundError: no such repository, revision or file; or the hub cannot be reached and the files
            are not in the cache.
        PermissionError: the hub refuses access.
        CheckpointError: a file that differs from its hash, or that is too large.
        ValueError: an invalid name; also whatever `check` raises.
    """
    repository, revision = parse_id(source, revision)
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        expected = "to reach the hub, install huggingface_hub (pip install 'based-jax[hub]')"
        raise ImportError(f"{repository!r} is not a directory; {expected}") from error
    if revision is not None and _COMMIT.fullmatch(revision):
        with contextlib.suppress(FileNotFoundError, CheckpointError):
            return _cached(hub, repository, revision, check)
    try:
        found = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:  # from the library, its HTTP client or the system
        if (problem := refusal(error, repository, revision)) is not None:
            raise problem from error
        try:
            return _cached(hub, repository, revision, check)
        except FileNotFoundError as missing:
            reason = f"no such directory, the hub cannot be reached ({_first_line(error)})"
            raise FileNotFoundError(f"{repository!r}: {reason}, and {missing}") from error
    sizes = {file.rfilename: file.size or 0 for file in found.siblings or []}
    return _download(hub, repository, revision, sizes, check)


def refusal(error: Exception, repository: str, revision: str | None) -> Exception | None:
    """Return the error to raise if the hub's response is final; None if the failure may be temporary."""
    kinds = importlib.import_module("huggingface_hub.errors")
    if isinstance(error, kinds.GatedRepoError):
        terms = "accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN"
        return FileNotFoundError(f"{repository!r} is gated: {terms}")
    if isinstance(error, kinds.RepositoryNotFoundError):
        private = "if it is private, log in with `hf auth login` or set HF_TOKEN"
        return FileNotFoundError(
            f"{repository!r}: no such directory, and no such model on the hub; {private}"
        )
    if isinstance(error, kinds.RevisionNotFoundError):
        expected = f"expected a branch, tag or commit of {repository!r} on the hub"
        return FileNotFoundError(f"revision = {revision!r}: {expected}")
    if isinstance(error, kinds.HFValidationError):
        return ValueError(f"repository = {repository!r}: {_first_line(error)}")
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status in (401, 403):
        token = "log in with `hf auth login` or set HF_TOKEN, to a token that may do this"
        return PermissionError(f"{repository!r}: the hub refuses access (status {status}); {token}")
    return None


def _download(
    hub: Any, repository: str, revision: str | None, sizes: Mapping[str, int], check: Callable[[Path], object]
) -> Path:
    """Fetch config.json, tokenizer and index, check them, then fetch the weights of the same commit."""
    weights = next((name for name in WEIGHT_FILES if name in sizes), None)
    for name, wanted in ((CONFIG, CONFIG in sizes), (" or ".join(WEIGHT_FILES), weights is not None)):
        if not wanted:
            has = ", ".join(shown_name(name) for name in sorted(sizes)[:10]) or "nothing"
            raise FileNotFoundError(f"{repository!r} on the hub has no {name}, but {has}")
    assert weights is not None
    small = dict.fromkeys((CONFIG, weights) if weights.endswith(".json") else (CONFIG,), MAX_BYTES)
    tokenizer = (name for name in sizes if any(Path(name).match(pattern) for pattern in TOKENIZER_FILES))
    small |= dict.fromkeys((name for name in tokenizer if "/" not in name), MAX_TOKENIZER_BYTES)
    for name, most in small.items():
        _expect_size(repository, name, sizes[name], most)
    directory = _snapshot(hub, repository, revision, small)
    _expect_intact(directory, small)
    check(directory)
    files = _weight_files(directory, weights)
    if missing := sorted(files - sizes.keys()):
        raise FileNotFoundError(
            f"{repository!r} on the hub has no {', '.join(missing[:10])}, as {weights} says"
        )
    _expect_size(repository, "the weights", sum(sizes[name] for name in files), MAX_WEIGHT_BYTES)
    _snapshot(hub, repository, directory.name, files)
    _expect_intact(directory, files)
    return directory


def _snapshot(hub: Any, repository: str, revision: str | None, names: Iterable[str]) -> Path:
    """Fetch files into the cache; turn exceptions of the hub's library into one line."""
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=sorted(names)))
    except Exception as error:
        if (problem := refusal(error, repository, revision)) is not None:
            raise problem from error
        expected = f"could not be fetched from the hub: {_first_line(error)}"
        raise FileNotFoundError(f"{repository!r} {expected}") from error


def _cached(hub: Any, repository: str, revision: str | None, check: Callable[[Path], object]) -> Path:
    """Return the directory of a revision in the cache. FileNotFoundError: it is missing or incomplete."""
    name = f"{repository!r} at {revision or 'main'}"
    found = hub.try_to_load_from_cache(repository, CONFIG, revision=revision)
    if not isinstance(found, str):
        raise FileNotFoundError(f"the cache has no config.json of {name}")
    directory = Path(found).parent
    weights = next((file for file in WEIGHT_FILES if (directory / file).is_file()), None)
    files = set() if weights is None else _weight_files(directory, weights)
    if not files or any(not (directory / file).is_file() for file in files):
        raise FileNotFoundError(f"the cache has not all weights of {name}")
    _expect_intact(directory, [path.name for path in directory.iterdir()])
    check(directory)
    return directory


def _weight_files(directory: Path, weights: str) -> set[str]:
    """Return the names of the weight files: the shards of an index, or the file itself."""
    return set(read_index(directory / weights).values()) if weights.endswith(".json") else {weights}


def _expect_size(repository: str, name: str, size: int, most: int) -> None:
    if size > most:
        expected = f"at most {most:,}; for more, `hf download` it and load the directory"
        raise CheckpointError(f"{repository!r}: {name}: {size:,} bytes, expected {expected}")


def _expect_intact(directory: Path, names: Iterable[str]) -> None:
    """Check that files in the cache match the hashes that are their names.

    The cache stores a file as blobs/HASH, with links to it: the SHA-256 of large files, git's blob id of the
    others. On file systems without links there is no hash to compare with.
    """
    for path in (directory / name for name in sorted(names)):
        blob = path.resolve()
        if path.is_file() and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            digest = _digest(blob, len(blob.name))
            if digest != blob.name:
                what = f"its {_DIGESTS[len(digest)]} is {digest[:12]}..., not {blob.name[:12]}..."
                raise CheckpointError(f"{path}: damaged, {what}; remove {blob} and load it again")


def _digest(path: Path, digits: int) -> str:
    with path.open("rb") as file:
        if digits == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        start = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        return hashlib.file_digest(file, lambda: start).hexdigest()


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, and that of its cause, if any."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    cause = _first_line(error.__cause__) if error.__cause__ is not None else line
    return line if cause in line else f"{line} ({cause})"
