"""Keep the records of an evaluation by their id, so that the same command resumes."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from based_jax import command
from based_jax.evals.options import progress
from based_jax.files import JsonLines
from based_jax.validate import expect


class Records:
    """The records so far, in a file or in memory: JSON objects with an `id` and the digest of their `run`.

    Args:
        path: a .jsonl file, created if needed; see `JsonLines` for damaged lines. None for memory only.
        run: digest of everything that affects a record, see `checkpoint.digest`.
        kind: type of the ids.
        settings: description of what `run` depends on, for the error.

    Raises:
        ValueError: the file has records of another run.
    """

    def __init__(self, path: Path | None, run: str, kind: type[int] | type[str], settings: str):
        self.run = run
        self.by_id: dict[Any, dict[str, Any]] = {}
        self._path, self._file = path, None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = JsonLines(path, {"id": kind, "run": str})
            self.by_id = {row["id"]: row for row in self._file.rows}
            is_same = all(row["run"] == run for row in self._file.rows)
            expect(is_same, "records", str(path), f"a new file or one of this run: of the same {settings}")

    def add(self, records: Iterable[dict[str, Any]]) -> int:
        """Append the records that are new, with their run, and return their number."""
        new = [{**record, "run": self.run} for record in records if record["id"] not in self.by_id]
        self.by_id.update({record["id"]: record for record in new})
        if self._file is not None:
            self._file.append(new)
        return len(new)

    def collect(
        self, prog: str, label: str, unit: str, ids: Sequence[Any], batches: Iterable[int]
    ) -> list[dict[str, Any]]:
        """Run the batches and return the records of `ids`; an interrupt ends the process with what is saved.

        Args:
            prog, label, unit: of the command, and of its progress.
            batches: adds the missing records; yields the number of new ones after each batch.
        """
        done = sum(name in self.by_id for name in ids)
        if done:
            print(f"{self._path} has {done:,} of {len(ids):,} {unit}", file=sys.stderr)
        try:
            with progress(label, len(ids) - done, unit) as advance:
                for count in batches:
                    done += count
                    advance(count)
        except KeyboardInterrupt:
            kept = f"; {self._path} has them; run the same command to resume" if self._path else ""
            command.fail(prog, f"interrupted after {done} of {len(ids)} {unit}{kept}", status=130)
        return [self.by_id[name] for name in ids]
