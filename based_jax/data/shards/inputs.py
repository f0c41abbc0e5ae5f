"""Find the files that are tokenized, and record their state."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from based_jax.data.hub import HUB, hub_fingerprint
from based_jax.data.report import FileReport
from based_jax.data.shards.blocks import Unit
from based_jax.data.shards.manifest import SourceRecord
from based_jax.data.shards.megatron import INDEX, TOKENS
from based_jax.data.sources import find_files, status_of
from based_jax.validate import expect


class Sources(NamedTuple):
    """All files of all sources, in order."""

    units: list[Unit]
    records: tuple[SourceRecord, ...]
    others: list[FileReport]  # about directories that cannot be listed, and files that are not read

    @property
    def size(self) -> int:
        return sum(unit.size for unit in self.units)


def find_sources(specs: Sequence[str], include: str | None = None) -> Sources:
    """Find the files that the specs name (see `based_jax.data.sources`); a pair .bin and .idx is one file.

    Errors: see `load_documents`.
    """
    found, others = Sources([], (), []), list[FileReport]()
    for spec in specs:
        expect(bool(spec), "data", spec, "a file, a directory, a glob, 'stdlib' or 'hf:NAME'")
        units, digest = list[Unit](), hashlib.sha256()
        if spec.startswith(HUB):
            units.append(Unit(spec, None, 0))
            digest.update(hub_fingerprint(spec).encode())
        else:
            path = Path(spec)
            is_pair = path.suffix == TOKENS and path.with_suffix(INDEX).is_file()
            spec_of_files = str(path.with_suffix(INDEX)) if is_pair else spec
            files = find_files(spec_of_files, include, (INDEX,))
            for name, path, is_plain in files.found:
                if is_plain and path.suffix.lower() == TOKENS and path.with_suffix(INDEX).is_file():
                    continue  # read with its index
                pair = [path.with_suffix(TOKENS)] if path.suffix.lower() == INDEX else []
                states = [state for path in (path, *pair) if (state := status_of(path))]
                units.append(Unit(name, path, sum(state.st_size for state in states), is_plain))
                times = [(state.st_size, state.st_mtime_ns) for state in states]
                digest.update(f"{name}\0{times}\n".encode("utf-8", errors="replace"))
            others += files.others
        size, count = sum(unit.size for unit in units), sum(unit.path is not None for unit in units)
        record = SourceRecord(spec, include, count, size, digest.hexdigest())
        found = found._replace(units=found.units + units, records=(*found.records, record))
    if any(unit.name.lower().endswith(INDEX) for unit in found.units):
        others = [other for other in others if other.is_read or not other.file.lower().endswith(TOKENS)]
    return found._replace(others=others)
