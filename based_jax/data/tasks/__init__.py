"""Synthetic tasks that measure recall, drawn on the device from a seed.

segment = MQAR(num_examples=100_000, length=64, num_pairs=4).build(seed=0)
segment.inputs, segment.labels      # int32 (100000, 64); labels are IGNORE except at the queries
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from based_jax.data.tasks.circuits import (
    CumulativeMajority,
    CumulativeParity,
    Majority,
    Parity,
    Permutations,
    VocabMajority,
)
from based_jax.data.tasks.compositional import Compositional, JointRecall, StackedMQAR
from based_jax.data.tasks.mad import (
    Compression,
    FuzzyInContextRecall,
    InContextRecall,
    Memorization,
    NoisyInContextRecall,
    SelectiveCopying,
)
from based_jax.data.tasks.mqar import MQAR, Forgetting, RecallProbe, RepeatedContext, SingleQuery
from based_jax.data.tasks.task import IGNORE as IGNORE
from based_jax.data.tasks.task import Segment as Segment
from based_jax.data.tasks.task import Task as Task
from based_jax.validate import expect, expect_choice

TASKS: Mapping[str, type[Task]] = MappingProxyType(
    {
        "mqar": MQAR,
        "repeated_context": RepeatedContext,
        "compositional": Compositional,
        "forgetting": Forgetting,
        "recall_probe": RecallProbe,
        "single_query": SingleQuery,
        "stacked": StackedMQAR,
        "joint_recall": JointRecall,
        "in_context_recall": InContextRecall,
        "noisy_in_context_recall": NoisyInContextRecall,
        "fuzzy_in_context_recall": FuzzyInContextRecall,
        "selective_copying": SelectiveCopying,
        "compression": Compression,
        "memorization": Memorization,
        "permutations": Permutations,
        "parity": Parity,
        "majority": Majority,
        "cumulative_parity": CumulativeParity,
        "cumulative_majority": CumulativeMajority,
        "vocab_majority": VocabMajority,
    }
)
"""Tasks by the names that commands use."""


def task_settings(name: str) -> dict[str, Any]:
    """Return the settings of a task with their defaults, in order.

    Raises:
        ValueError: an unknown name.
    """
    expect_choice("task", name, tuple(TASKS))
    fields: Any = dataclasses.fields(TASKS[name])  # pyright: ignore[reportArgumentType]
    return {field.name: field.default for field in fields}


def make_task(name: str, settings: Mapping[str, Any]) -> Task:
    """Return the task with this name and these settings.

    Raises:
        ValueError: an unknown name or setting, or a value that the task refuses.
    """
    known = task_settings(name)
    for key, value in settings.items():
        expect_choice(f"setting of {name}", key, list(known))
        kind = type(known[key])
        fits = type(value) is kind or (kind is float and type(value) is int)
        expect(fits, f"{key} of {name}", value, f"a value of type {kind.__name__}")
    return TASKS[name](**settings)
