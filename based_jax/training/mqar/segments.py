"""Make the segments that a sweep trains and tests on: one task with several lengths or numbers of pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

from based_jax.data.tasks import Task, make_task, task_settings
from based_jax.validate import expect, expect_range

AXES = {"length": "length", "pairs": "num_pairs"}
"""Columns of --train and --test, and the settings that they are; a task may lack one of them."""

EXAMPLES = "num_examples"


def columns(task: str) -> list[str]:
    """Return the columns of a task's segments besides the number of examples."""
    return [column for column, setting in AXES.items() if setting in task_settings(task)]


def make_segments(
    task: str, settings: Mapping[str, Any], rows: Sequence[Sequence[int]], examples: int | None = None
) -> list[Task]:
    """Return one task per row of `parse_segments`, all with the same `settings`.

    A row has values of `columns(task)`, and the number of examples if `examples` is None.
    """
    names = [*(AXES[column] for column in columns(task)), EXAMPLES]
    count = () if examples is None else (examples,)
    return [make_task(task, {**settings, **dict(zip(names, (*row, *count), strict=True))}) for row in rows]


def parse_segments(argument: str, text: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Parse segments such as ``64:4:1000,128:8:500``, each with the columns `names`; or ValueError."""
    found = []
    for part in text.split(","):
        numbers = part.split(":")
        is_fine = len(numbers) == len(names) and all(number.strip().isdigit() for number in numbers)
        example = ":".join(("64", "4", "1000")[: len(names)])
        expect(is_fine, argument, part, f"{':'.join(names)}, such as {example}")
        for number in numbers:
            expect_range(argument, int(number), 0)
        found.append(tuple(int(number) for number in numbers))
    return found
