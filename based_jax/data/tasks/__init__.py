"""Synthetic tasks that measure recall, drawn on the device from a seed.

segment = MQAR(num_examples=100_000, length=64, num_pairs=4).build(seed=0)
segment.inputs, segment.labels      # int32 (100000, 64); labels are IGNORE except at the queries
"""

from based_jax.data.tasks.circuits import (
    CumulativeMajority,
    CumulativeParity,
    Majority,
    Parity,
    VocabMajority,
)
from based_jax.data.tasks.compositional import Compositional
from based_jax.data.tasks.forgetting import Forgetting
from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.recall_probe import RecallProbe
from based_jax.data.tasks.repeated_context import RepeatedContext
from based_jax.data.tasks.single_query import SingleQuery
from based_jax.data.tasks.stacked import StackedMQAR
from based_jax.data.tasks.task import IGNORE, Segment, Task

__all__ = [
    "IGNORE",
    "MQAR",
    "Compositional",
    "CumulativeMajority",
    "CumulativeParity",
    "Forgetting",
    "Majority",
    "Parity",
    "RecallProbe",
    "RepeatedContext",
    "Segment",
    "SingleQuery",
    "StackedMQAR",
    "Task",
    "VocabMajority",
]
