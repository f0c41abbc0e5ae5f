"""Keep records of a recall task, one JSON object per example, so that a run can resume."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from based_jax.json_lines import JsonLines
from based_jax.validate import expect


class Record(TypedDict):
    """The result of one example."""

    id: int
    """row number in the data"""
    tokens: int
    """tokens of the prompt before truncation"""
    truncated: bool
    """whether the prompt was truncated on the left"""
    answer: str
    """gold value"""
    generated: str
    """the model's answer, up to the first newline"""
    score: int
    """1 if the generated text contains the value"""
    run: str
    """digest of everything that affects the answers"""


class RecordFile:
    """The records so far, in a file or in memory.

    Args:
        path: a .jsonl file, created if needed; see `JsonLines` for damaged lines. None for memory only.
        run: see `Record`.

    Raises:
        ValueError: the file has records of another run.
    """

    def __init__(self, path: Path | None, run: str):
        self.run = run
        self.records: dict[int, Record] = {}
        self._file: JsonLines | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = JsonLines(path, {"id": int, "run": str})
            rows: Any = self._file.rows
            self.records = {row["id"]: row for row in rows}
            expected = (
                "a new file or one of this run; it is of another model, tokenizer, data, prompt, context, "
                "dtype or padding (or, with the authors' padding, batch size or limit)"
            )
            expect(all(row["run"] == run for row in rows), "records", str(path), expected)

    def add(self, records: Iterable[Record]) -> int:
        """Append the records that are new, and return their number."""
        new: list[Any] = [record for record in records if record["id"] not in self.records]
        self.records.update({record["id"]: record for record in new})
        if self._file is not None:
            self._file.append(new)
        return len(new)
