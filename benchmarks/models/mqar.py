"""`mqar`: measure training examples per second: learning rates one by one and many at once."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from based_jax import mixers
from based_jax.data.tasks import MQAR
from based_jax.models import LanguageModel, mqar_backbone
from based_jax.models.backbones import ALIASES
from based_jax.training.mqar.grid import Grid, GridState, VmappedRuns, load
from benchmarks.flags import Counts, Names
from benchmarks.models import training
from benchmarks.study import Candidate, Flags, Program, compile_jitted

SEED = 0
"""Seed of the data, the initialisation and the dropout."""

WEIGHT_DECAY, DROPOUT = 0.1, 0.1
"""AdamW's decoupled decay of every parameter, and the dropped share of the embeddings, of Zoology's study."""


@dataclass(frozen=True)
class Mqar(Flags):
    """Training throughput of the MQAR sweep, on CPU in float32, with AdamW.

    The papers' two-layer models: the sweep's own program with one learning rate, so that models train one
    after another, and with more of them at once. All candidates of a mixer take turns. Compile times are
    separate: a sweep compiles once for any number of learning rates.
    """

    d_model: int = 64
    """Width of the model."""
    vocab_size: int = 8192
    """Tokens of the vocabulary."""
    length: int = 64
    """Tokens per example."""
    pairs: int = 4
    """Key-value pairs per example, which is also the number of labels."""
    batch_size: int = 256
    """Examples per step and model."""
    steps: int = 3
    """Training steps per timed call."""
    mixers: Names = ("attention", "based")
    """Mixers of the second layer."""
    vmapped_runs: Counts = (1, 2, 4)
    """Numbers of learning rates trained at once; 1 is one by one."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        sizes = ("d_model", "batch_size", "steps", "vmapped_runs")
        self.check(*sizes, mixers=(*ALIASES, *mixers.names()))
        training.expect_one_cpu()
        names = (*sizes, "vocab_size", "length", "pairs", "mixers")
        settings = {name: getattr(self, name) for name in names}
        settings |= {"weight_decay": WEIGHT_DECAY, "dropout": DROPOUT}
        workloads = {name: Workload(self, name) for name in self.mixers}
        return training.run(self, training.MQAR, settings, workloads, self._quantities, command)

    def _quantities(self, row: dict[str, Any]) -> dict[str, Any]:
        models = int(row["candidate"].removeprefix("jax_"))
        each = row["step_seconds"] and self.batch_size / row["step_seconds"]
        speeds = {"examples_per_second": each and models * each, "examples_per_second_per_model": each}
        return {"models": models, **speeds}


class Workload:
    """The training that every candidate of one mixer runs: a call makes `steps` steps."""

    def __init__(self, flags: Mqar, mixer: str):
        self.flags = flags
        # A batch for every step; it raises ValueError for settings that do not fit together.
        task = MQAR(flags.vocab_size, flags.steps * flags.batch_size, flags.length, flags.pairs)
        config = mqar_backbone(mixer, flags.d_model, flags.vocab_size, flags.length, dropout=DROPOUT)
        self.grid = Grid(LanguageModel(config), flags.length, WEIGHT_DECAY)
        self.part = load(task, [SEED], rows=flags.batch_size)

    def candidates(self) -> list[Candidate]:
        """List one for each number of learning rates."""
        return [
            Candidate(
                f"jax_{count}",
                f"based_jax, {count} learning rates at once" if count > 1 else "based_jax, one by one",
                "jax",
                functools.partial(self.program, count),
            )
            for count in sorted(set(self.flags.vmapped_runs))
        ]

    def program(self, models: int, *_: Any) -> Program:
        """Return the sweep's training program with `models` learning rates; a call makes `steps` steps."""
        batches = self.grid.replicate(self.part.batches)
        state = self.grid.select(self.start, [0] * models)  # models of one seed start alike
        arguments = [state, _runs(models), 1.0, batches, 0, self.flags.steps]
        return compile_jitted(self.grid.train, arguments, carried=0, result=0)

    @functools.cached_property
    def start(self) -> GridState:
        """Return one model before the first step, NumPy arrays (1, ...)."""
        return jax.tree.map(np.array, self.grid.init(_runs(1)))  # copied: training takes the buffers


def _runs(models: int) -> VmappedRuns:
    """Return learning rates from 1e-3 up to Based's largest, all with one seed."""
    zeros = np.zeros(models)
    rates = np.logspace(-3, -1.5, models, dtype=np.float32)
    return VmappedRuns(rates, zeros.astype(np.uint32) + SEED, zeros.astype(np.int32))
