"""Keep records of a recall task, one JSON object per example, so that a run can resume."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from based_jax.files import parse_json
from based_jax.whole_file import whole_file


class Record(TypedDict):
    """The result of one example."""

    id: int | str
    """row number in the data, or another name of the example"""
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
        path: a .jsonl file, created if needed; a truncated last line is dropped. None for memory only.

    Raises:
        ValueError: the file is not a file of records, or has records of another run.
    """

    def __init__(self, path: Path | None, run: str):
        self.path, self.run = path, run
        self.records: dict[int | str, Record] = {}
        if path is None:
            return
        if path.exists():
            self._read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write("".join(map(_line, self.records.values())).encode())

    def add(self, records: Iterable[Record]) -> int:
        """Append the records that are new, and return their number."""
        new = [record for record in records if record["id"] not in self.records]
        self.records.update({record["id"]: record for record in new})
        if self.path is not None and new:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(map(_line, new)))
        return len(new)

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines[:-1], start=1):  # the last entry is empty or incomplete
            try:
                record = parse_json(line, "line")
                run, example = record["run"], record["id"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: expected a record, got {line[:60]!r}") from error
            if run != self.run:
                raise ValueError(
                    f"records = {str(path)!r}: expected a new file or one of this run; it is of another "
                    "model, tokenizer, data, prompt, context, dtype or padding (or, with the authors' "
                    "padding, batch size or limit)"
                )
            self.records[example] = record


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
