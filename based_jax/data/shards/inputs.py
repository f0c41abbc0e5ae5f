"""Find the files that are tokenized, and record their state."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from based_jax.data.hub import HUB, hub_fingerprint
from based_jax.data.report import FileReport
from based_jax.data.shards.blocks import Unit, units_of
from based_jax.data.shards.manifest import SourceRecord
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
    """Find the files that the specs name (see `based_jax.data.sources`).

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
            files = find_files(spec, include)
            units += units_of(files.found)
            for file in files.found:
                state = status_of(file.path)
                times = [(state.st_size, state.st_mtime_ns)] if state else []
                digest.update(f"{file.name}\0{times}\n".encode("utf-8", errors="replace"))
            others += files.others
        size, count = sum(unit.size for unit in units), sum(unit.path is not None for unit in units)
        record = SourceRecord(spec, include, count, size, digest.hexdigest())
        found = found._replace(units=found.units + units, records=(*found.records, record))
    return found._replace(others=others)
