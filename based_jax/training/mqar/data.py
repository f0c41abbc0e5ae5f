"""Make the segments that a sweep trains and tests on, and batch them with the positions of their labels.

A segment is the task with one length and number of pairs.
A batch never mixes segments, and nothing is shuffled: every epoch goes through the segments in order, each
from its first example to its last, as in Zoology's code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from based_jax.data.tasks import IGNORE, Task, make_task, task_settings
from based_jax.typing import Float, Int
from based_jax.validate import expect, expect_range

AXES = {"length": "length", "pairs": "num_pairs"}
"""Columns of --train and --test, and the settings that they are; a task may lack one of them."""

EXAMPLES = "num_examples"


class Batches(NamedTuple):
    """One segment for each of S data seeds, split into batches of B rows with up to L labels per row.

    Padding rows after the last example have no labels, so they do not count.
    """

    inputs: Int[Any, "S steps B N"] | Float[Any, "S steps B N E"]  # vectors in a task on embeddings
    positions: Int[Any, "S steps B L"]  # of each label in its row; 0 for none
    targets: Int[Any, "S steps B L"]  # labels; IGNORE for none


@dataclass(frozen=True)
class Part:
    """A segment of a data set, in batches."""

    batches: Batches
    examples: int
    slices: Mapping[str, Any]  # properties that the examples share, such as the number of pairs

    @property
    def steps(self) -> int:
        return self.batches.inputs.shape[1]

    @property
    def length(self) -> int:
        return self.batches.inputs.shape[3]

    @property
    def rows(self) -> int:
        return self.batches.inputs.shape[2]

    def examples_between(self, start: int, stop: int) -> int:
        """Count the examples in batches `start` to `stop` (exclusive)."""
        return min(stop * self.rows, self.examples) - min(start * self.rows, self.examples)


def data_seeds(seed: int, train: int, test: int) -> tuple[list[int], list[int]]:
    """Derive a seed for each segment; the test seeds come from a separate range."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 2**30, train).tolist(), generator.integers(2**30, 2**31, test).tolist()


def load(task: Task, seeds: Sequence[int], *, rows: int | None = None, tokens: int | None = None) -> Part:
    """Build `task` once per seed, on the host, in batches of at most `rows` examples and `tokens` tokens."""
    segments = [task.build(seed) for seed in seeds]
    inputs = np.stack([np.asarray(segment.inputs) for segment in segments])
    positions, targets = _labels(np.stack([np.asarray(segment.labels) for segment in segments]))
    examples, length = inputs.shape[1:3]
    size = min(rows or examples, examples, max((tokens or examples * length) // length, 1))

    def cut(array: np.ndarray, fill: int) -> np.ndarray:
        padding = [(0, 0), (0, -examples % size), *[(0, 0)] * (array.ndim - 2)]
        array = np.pad(array, padding, constant_values=fill)
        dtype = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
        return array.reshape(len(segments), -1, size, *array.shape[2:]).astype(dtype)

    batches = Batches(cut(inputs, 0), cut(positions, 0), cut(targets, IGNORE))
    return Part(batches, examples, segments[0].slices)


def _labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and values of the labels, (S, examples, L) for at most L labels per row."""
    labelled = labels != IGNORE
    most = max(int(labelled.sum(axis=-1).max()), 1)
    positions = np.argsort(~labelled, axis=-1, kind="stable")[..., :most]  # labelled positions come first
    targets = np.take_along_axis(labels, positions, axis=-1)
    return np.where(targets == IGNORE, 0, positions), targets


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
