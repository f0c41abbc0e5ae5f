"""Load data sets with the library `datasets`, from the Hugging Face hub or a directory of files.

A spec is ``hf:NAME`` (its split "train"), ``hf:NAME:SPLIT`` or ``hf:NAME:CONFIG:SPLIT``, for example
``hf:HuggingFaceFW/fineweb:sample-10BT:train``. Each row is a document: its field "text", or another one.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from based_jax.data.documents import describe_fields, find_field
from based_jax.imports import import_optional
from based_jax.validate import expect

HUB = "hf:"
"""Prefix of the spec of such a data set."""

_EXPECTED = "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"


class HubSpec(NamedTuple):
    """The parts of a spec."""

    name: str
    config: str | None
    split: str


def parse_hub(spec: str) -> HubSpec:
    """Parse a spec that begins with `HUB`."""
    name, *rest = spec.removeprefix(HUB).split(":")
    expect(bool(name) and len(rest) <= 2 and all(rest), "data", spec, _EXPECTED)
    *config, split = rest or ["train"]
    return HubSpec(name, config[0] if config else None, split)


def load_rows(spec: str, *, streams: bool = False) -> Any:
    """Return the rows of a data set, after downloading all of it if it is not on disk.

    Args:
        streams: download while reading, and keep nothing on disk.

    Raises:
        ImportError: `datasets` is not installed.
        ValueError: no such data set, configuration or split.
    """
    return _call(spec, "load_dataset", split=parse_hub(spec).split, streaming=streams)


def read_texts(spec: str, first: int = 0, field: str = "text", *, streams: bool = True) -> Iterator[str]:
    """Yield the texts of `load_rows` from row `first` on; they may be empty.

    A stream downloads and drops the rows before `first`, as the formats do not allow access to row n alone.

    Raises:
        ImportError, ValueError: see `load_rows`, or a row without a text.
        OSError: the stream breaks off.
    """
    rows = load_rows(spec, streams=streams)
    rows, number = iter(rows.skip(first) if first else rows), first
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # the library raises many kinds
            raise OSError(f"data = {spec!r}: reading ended after {number} rows; {_reason(error)}") from error
        if row is None:
            return
        yield _text(row, field, spec, number)
        number += 1


def hub_fingerprint(spec: str) -> str:
    """Return a SHA-256 of the names of a split's files and the revision, ETag or modification time of each.

    Errors: see `load_rows`.
    """
    hub = parse_hub(spec)
    builder = _call(spec, "load_dataset_builder")
    files = (builder.config.data_files or {}).get(hub.split)
    found = (hub, builder.config.name, files and (list(files), files.origin_metadata))
    return hashlib.sha256(repr(found).encode("utf-8", errors="replace")).hexdigest()


def _call(spec: str, function: str, **options: Any) -> Any:
    """Call a function of `datasets` for the data set of a spec."""
    hub = parse_hub(spec)
    datasets = import_optional("datasets", "data", spec)
    try:
        return getattr(datasets, function)(hub.name, hub.config, **options)
    except Exception as error:  # the library raises many kinds: network, configuration, format, permission
        expected = f"a data set with a split {hub.split!r} that can be loaded; {_reason(error)}"
        raise ValueError(f"data = {spec!r}: expected {expected}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _text(row: dict[str, Any], field: str, spec: str, number: int) -> str:
    text = find_field(row, field)
    is_null = field in row and text is None
    found = f"a string field {field!r}; of row {number}, {describe_fields(row)}"
    expect(isinstance(text, str) or is_null, "data", spec, found)
    return text or ""
