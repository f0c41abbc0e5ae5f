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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data.hub import HUB, load_rows
from based_jax.files import read_json_lines
from based_jax.validate import expect, expect_choice

SPLIT = "validation"

_MAX_BYTES = 1 << 30  # of a .jsonl file


TASKS = {
    "swde": ("hazyresearch/based-swde-v2", "key"),
    "fda": ("hazyresearch/based-fda", "key"),
    "squad_completion": ("hazyresearch/based-squad", "question"),
}
"""Task -> its data set on the hub, and its key column."""


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
        data: a .jsonl file, "hub" (the published data set) or "hf:NAME" (another one there).

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, a missing column, or a field that is not a text.
        ImportError: the hub without datasets.
    """
    expect_choice("task", task, tuple(TASKS))
    hub, key = TASKS[task]
    if data == "hub" or data.startswith(HUB):
        rows = load_rows(f"{HUB}{hub if data == 'hub' else data.removeprefix(HUB)}:{SPLIT}")
    else:
        expect(data.endswith(".jsonl"), "data", data, "hub, hf:NAME or a .jsonl file")
        if not Path(data).is_file():
            raise FileNotFoundError(f"data = {data!r}: expected a file, and there is none")
        rows = read_json_lines(data, max_bytes=_MAX_BYTES)
    examples = [_example(number, row, ("text", key, "value"), data) for number, row in enumerate(rows)]
    expect(bool(examples), "data", data, "at least one row")
    return examples


def _example(number: int, row: Any, columns: Sequence[str], data: str) -> Example:
    where = f"{data}, row {number}"
    expect(isinstance(row, Mapping), where, row, "a JSON object")
    missing = [column for column in columns if column not in row]
    wanted = f"columns {', '.join(columns)}; no {', '.join(missing)} here"
    expect(not missing, where, sorted(row), wanted)
    for column in columns:
        expect(isinstance(row[column], str), f"{where}, {column}", row[column], "a text")
    expect(bool(row["text"]), where, row["text"], "a text that is not empty")
    return Example(number, *(row[column] for column in columns))
