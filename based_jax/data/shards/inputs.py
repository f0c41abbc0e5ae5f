"""Find the files that are tokenized, and record their state."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from based_jax.data.hub import HUB, hub_fingerprint
from based_jax.data.report import FileReport
from based_jax.data.shards.manifest import SourceRecord
from based_jax.data.sources import File, find_files, status_of
from based_jax.validate import expect


class Sources(NamedTuple):
    """All files of all sources, in order."""

    files: list[File]
    records: tuple[SourceRecord, ...]
    others: list[FileReport]  # about directories that cannot be listed, and files that are not read

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_sources(specs: Sequence[str], include: str | None = None) -> Sources:
    """Find the files that the specs name (see `based_jax.data.sources`).

    Errors: see `load_documents`.
    """
    files, records, others = list[File](), list[SourceRecord](), list[FileReport]()
    for spec in specs:
        expect(bool(spec), "data", spec, "a file, a directory, a glob, 'stdlib' or 'hf:NAME'")
        digest, own = hashlib.sha256(), list[File]()
        if spec.startswith(HUB):
            files.append(File(spec, None))
            digest.update(hub_fingerprint(spec).encode())
        else:
            own, left_out = find_files(spec, include)
            others += left_out
            for file in own:
                state = file.path and status_of(file.path)
                times = [(state.st_size, state.st_mtime_ns)] if state else []
                digest.update(f"{file.name}\0{times}\n".encode("utf-8", errors="replace"))
        size = sum(file.size for file in own)
        records.append(SourceRecord(spec, include, len(own), size, digest.hexdigest()))
        files += own
    return Sources(files, tuple(records), others)
