"""Synthetic tasks that measure recall, drawn on the device from a seed.

segment = MQAR(num_examples=100_000, length=64, num_pairs=4).build(seed=0)
segment.inputs, segment.labels      # int32 (100000, 64); labels are IGNORE except at the queries
"""

from based_jax.data.tasks.circuits import CumulativeMajority as CumulativeMajority
from based_jax.data.tasks.circuits import CumulativeParity as CumulativeParity
from based_jax.data.tasks.circuits import Majority as Majority
from based_jax.data.tasks.circuits import Parity as Parity
from based_jax.data.tasks.circuits import Permutations as Permutations
from based_jax.data.tasks.circuits import VocabMajority as VocabMajority
from based_jax.data.tasks.compositional import Compositional as Compositional
from based_jax.data.tasks.compositional import JointRecall as JointRecall
from based_jax.data.tasks.mad import Compression as Compression
from based_jax.data.tasks.mad import FuzzyInContextRecall as FuzzyInContextRecall
from based_jax.data.tasks.mad import InContextRecall as InContextRecall
from based_jax.data.tasks.mad import Memorization as Memorization
from based_jax.data.tasks.mad import NoisyInContextRecall as NoisyInContextRecall
from based_jax.data.tasks.mad import SelectiveCopying as SelectiveCopying
from based_jax.data.tasks.mqar import MQAR as MQAR
from based_jax.data.tasks.mqar import Forgetting as Forgetting
from based_jax.data.tasks.mqar import RecallProbe as RecallProbe
from based_jax.data.tasks.mqar import RepeatedContext as RepeatedContext
from based_jax.data.tasks.named import TASKS as TASKS
from based_jax.data.tasks.named import make_task as make_task
from based_jax.data.tasks.named import task_settings as task_settings
from based_jax.data.tasks.single_query import SingleQuery as SingleQuery
from based_jax.data.tasks.stacked import StackedMQAR as StackedMQAR
from based_jax.data.tasks.task import IGNORE as IGNORE
from based_jax.data.tasks.task import Segment as Segment
from based_jax.data.tasks.task import Task as Task
