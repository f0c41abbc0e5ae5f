"""Make tasks by name, from settings that a command line gives."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from based_jax.data.tasks import circuits, compositional, mad
from based_jax.data.tasks.mqar import MQAR, Forgetting, RecallProbe, RepeatedContext
from based_jax.data.tasks.single_query import SingleQuery
from based_jax.data.tasks.stacked import StackedMQAR
from based_jax.data.tasks.task import Task
from based_jax.validate import expect, expect_choice, nearest

TASKS: Mapping[str, type[Task]] = MappingProxyType(
    {
        "mqar": MQAR,
        "repeated_context": RepeatedContext,
        "compositional": compositional.Compositional,
        "forgetting": Forgetting,
        "recall_probe": RecallProbe,
        "single_query": SingleQuery,
        "stacked": StackedMQAR,
        "joint_recall": compositional.JointRecall,
        "in_context_recall": mad.InContextRecall,
        "noisy_in_context_recall": mad.NoisyInContextRecall,
        "fuzzy_in_context_recall": mad.FuzzyInContextRecall,
        "selective_copying": mad.SelectiveCopying,
        "compression": mad.Compression,
        "memorization": mad.Memorization,
        "permutations": circuits.Permutations,
        "parity": circuits.Parity,
        "majority": circuits.Majority,
        "cumulative_parity": circuits.CumulativeParity,
        "cumulative_majority": circuits.CumulativeMajority,
        "vocab_majority": circuits.VocabMajority,
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
        expected = f"one of {', '.join(map(repr, known))}{nearest(key, list(known))}"
        expect(key in known, f"setting of {name}", key, expected)
        kind = type(known[key])
        fits = type(value) is kind or (kind is float and type(value) is int)
        expect(fits, f"{key} of {name}", value, f"a value of type {kind.__name__}")
    return TASKS[name](**settings)
