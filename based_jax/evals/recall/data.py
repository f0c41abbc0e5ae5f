"""Read the recall tasks' published data: rows of a prompt's text, the key that it asks for, and the answer.

=================  ==========================  =====================
task               on the hub                  columns
=================  ==========================  =====================
swde               hazyresearch/based-swde-v2  text, key, value
fda                hazyresearch/based-fda      text, key, value
squad_completion   hazyresearch/based-squad    text, question, value
=================  ==========================  =====================

All rows are in the split "validation".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data.hub import HUB, load_rows
from based_jax.data.optional import import_optional
from based_jax.files import read_json_lines
from based_jax.validate import expect, expect_choice

SPLIT = "validation"

_MAX_BYTES = 1 << 30  # of a .jsonl file


class Task(NamedTuple):
    """A task's data set on the hub, and the name of its key column."""

    hub: str
    key: str


TASKS = {
    "swde": Task("hazyresearch/based-swde-v2", "key"),
    "fda": Task("hazyresearch/based-fda", "key"),
    "squad_completion": Task("hazyresearch/based-squad", "question"),
}


class Example(NamedTuple):
    """One row."""

    id: int
    """row number in the data, from 0"""
    text: str
    """the prompt as stored"""
    key: str
    """the attribute, or SQuAD's question"""
    value: str
    """the answer"""


def read_examples(task: str, data: str) -> list[Example]:
    """Read all rows of a task.

    Args:
        data: a .jsonl or .parquet file, "hub" (the published data set) or "hf:NAME" (another one there).

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, a missing column, or a field that is not a text.
        ImportError: .parquet without pyarrow, or the hub without datasets.
    """
    expect_choice("task", task, tuple(TASKS))
    columns = ("text", TASKS[task].key, "value")
    if data == "hub" or data.startswith(HUB):
        name = TASKS[task].hub if data == "hub" else data.removeprefix(HUB)
        rows = _checked(data, load_rows(f"{HUB}{name}:{SPLIT}"), columns)
    else:
        rows = read_rows(data, columns)
    examples = []
    for number, row in enumerate(rows):
        for column in columns:
            is_text = isinstance(row[column], str)
            expect(is_text, f"{data}, row {number}, {column}", row[column], "a text")
        expect(bool(row["text"]), f"{data}, row {number}", row["text"], "a text that is not empty")
        examples.append(Example(number, *(row[column] for column in columns)))
    expect(bool(examples), "data", data, "at least one row")
    return examples


def read_rows(path: str | Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of a .jsonl or .parquet file, which must have all of `columns`."""
    file = Path(path)
    expect(file.suffix in (".jsonl", ".parquet"), "data", str(path), "a .jsonl or .parquet file")
    if not file.is_file():
        raise FileNotFoundError(f"data = {str(path)!r}: expected a file, and there is none")
    if file.suffix == ".jsonl":
        rows = read_json_lines(file, max_bytes=_MAX_BYTES)
    else:
        parquet: Any = import_optional("pyarrow.parquet", "data", str(file), "eval")
        try:
            rows = parquet.read_table(file).to_pylist()
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            raise ValueError(f"data = {str(file)!r}: expected a Parquet file ({error})") from error
    return list(_checked(str(path), rows, columns))


def _checked(source: str, rows: Iterable[Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows; ValueError: one without all of the columns."""
    for number, row in enumerate(rows):
        where = f"{source}, row {number}"
        expect(isinstance(row, Mapping), where, row, "a JSON object")
        missing = [column for column in columns if column not in row]
        wanted = f"columns {', '.join(columns)}; no {', '.join(missing)} here"
        expect(not missing, where, sorted(row), wanted)
        yield row
