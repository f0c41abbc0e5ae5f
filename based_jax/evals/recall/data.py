"""Read the recall tasks' published data: rows of a prompt's text, the key that it asks for, and the answer.

=================  ==========================  =====================
task               on the hub                  columns
=================  ==========================  =====================
swde               hazyresearch/based-swde-v2  text, key, value
fda                hazyresearch/based-fda      text, key, value
squad_completion   hazyresearch/based-squad    text, question, value
=================  ==========================  =====================

All rows are in the split "validation". Prompts that repeat the passage of SQuAD also need its column context.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data.optional import import_optional
from based_jax.files import parse_json
from based_jax.validate import expect, expect_choice

SPLIT = "validation"


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
    passage: str | None = None
    """SQuAD's passage, if it was read"""


def read_examples(task: str, data: str, *, passages: bool = False) -> list[Example]:
    """Read all rows of a task.

    Args:
        passages: also read SQuAD's column context.
        data: a .jsonl or .parquet file, "hub" (the published data set) or "hf:NAME" (another one there).

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, a missing column, or a field that is not a text.
        ImportError: .parquet without pyarrow, or the hub without datasets.
    """
    expect_choice("task", task, tuple(TASKS))
    columns = ("text", TASKS[task].key, "value")
    if passages and task == "squad_completion":
        columns += ("context",)
    if data == "hub" or data.startswith("hf:"):
        rows = _from_hub(data, TASKS[task].hub if data == "hub" else data.removeprefix("hf:"))
    else:
        rows = read_rows(data, columns)
    examples = []
    for number, row in enumerate(rows):
        fields = [_text(data, number, row, column) for column in columns]
        expect(bool(fields[0]), f"{data}, row {number}", fields[0], "a text that is not empty")
        examples.append(Example(number, *fields))
    expect(bool(examples), "data", data, "at least one row")
    return examples


def read_rows(path: str | Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of a .jsonl or .parquet file, which must have all of `columns`."""
    file = Path(path)
    expect(file.suffix in (".jsonl", ".parquet"), "data", str(path), "a .jsonl or .parquet file")
    if not file.is_file():
        raise FileNotFoundError(f"data = {str(path)!r}: expected a file, and there is none")
    if file.suffix == ".parquet":
        return _from_parquet(file, columns)
    rows = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            row = parse_json(line, f"{path}, line {number}")
            expect(isinstance(row, dict), f"{path}, line {number}", line[:60], "a JSON object")
            _expect_columns(f"{path}, line {number}", row, columns)
            rows.append(row)
    return rows


def _from_parquet(file: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    parquet: Any = import_optional("pyarrow.parquet", "data", str(file), "eval")
    try:
        opened = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise ValueError(f"data = {str(file)!r}: expected a Parquet file ({error})") from error
    with opened:
        _expect_columns(str(file), opened.schema_arrow.names, columns)
        return opened.read(columns=list(columns)).to_pylist()


def _from_hub(data: str, name: str) -> Iterable[Mapping[str, Any]]:
    datasets = import_optional("datasets", "data", data)
    try:
        return datasets.load_dataset(name, split=SPLIT)
    except Exception as error:  # the library raises many kinds: network, configuration, format, permission
        reason = (str(error) or "no reason given").partition("\n")[0]
        raise ValueError(
            f"data = {data!r}: expected a data set {name!r} with a split {SPLIT!r} that can be loaded; "
            f"{type(error).__name__}: {reason}"
        ) from error


def _expect_columns(where: str, found: Iterable[str], wanted: Sequence[str]) -> None:
    names = list(found)
    missing = [column for column in wanted if column not in names]
    expect(not missing, where, sorted(names), f"columns {', '.join(wanted)}; no {', '.join(missing)} here")


def _text(data: str, number: int, row: Mapping[str, Any], column: str) -> str:
    _expect_columns(f"{data}, row {number}", row, (column,))
    value = row[column]
    expect(isinstance(value, str), f"{data}, row {number}, {column}", value, "a text")
    return value
