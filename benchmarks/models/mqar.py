"""`mqar`: measure training examples per second: learning rates one by one and many at once."""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np

from based_jax import mixers
from based_jax.data.tasks import MQAR
from based_jax.models import LanguageModel, ModelConfig, mqar_backbone
from based_jax.models.backbones import ALIASES
from based_jax.training.mqar.grid import Grid, GridState, Part, VmappedRuns, load
from based_jax.validate import expect
from benchmarks.flags import comma_list
from benchmarks.models import training, training_tables
from benchmarks.ops.candidates import Program, compile_jitted

SEED = 0
"""Seed of the data, the initialisation and the dropout."""


@dataclass(frozen=True)
class Recipe:
    """Model, data and training: the papers' setting by default (Zoology's study of MQAR)."""

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
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay of every parameter."""
    dropout: float = 0.1
    """Dropout of the embeddings, a share of 1."""
    steps: int = 3
    """Training steps per timed call."""

    @property
    def task(self) -> MQAR:
        """Return a batch for every step. Raises ValueError for settings that do not fit together."""
        return MQAR(self.vocab_size, self.steps * self.batch_size, self.length, self.pairs)

    def architecture(self, mixer: str) -> ModelConfig:
        """Return the two-layer model of `mixer`: a short gated convolution, then the mixer."""
        return mqar_backbone(mixer, self.d_model, self.vocab_size, self.length, dropout=self.dropout)


class Workload:
    """The training that every candidate of one mixer runs."""

    def __init__(self, recipe: Recipe, mixer: str):
        self.recipe = recipe
        self.architecture = recipe.architecture(mixer)
        self.part: Part = load(recipe.task, [SEED], rows=recipe.batch_size)

    def program(self, models: int) -> Program:
        """Return the sweep's training program with `models` learning rates; a call makes `steps` steps."""
        grid = self._grid(self.architecture)
        batches = grid.replicate(self.part.batches)
        arguments = [self._copies(grid, models), _lanes(models), 1.0, batches, 0, self.recipe.steps]
        return compile_jitted(grid.train, arguments, carried=0, result=0)

    @functools.cached_property
    def start(self) -> GridState:
        """Return one model before the first step, NumPy arrays (1, ...)."""
        state = self._grid(self.architecture).init(_lanes(1))
        return jax.tree.map(np.array, state)  # copied: training takes the buffers

    def _copies(self, grid: Grid, models: int) -> GridState:
        """Return the state of `grid.init`: models of one seed start alike."""
        return grid.select(self.start, [0] * models)

    def _grid(self, architecture: ModelConfig) -> Grid:
        return Grid(LanguageModel(architecture), self.recipe.length, self.recipe.weight_decay)


def _lanes(models: int) -> VmappedRuns:
    """Return learning rates from 1e-3 up to Based's largest, all with one seed."""
    zeros = np.zeros(models)
    rates = np.logspace(-3, -1.5, models, dtype=np.float32)
    return VmappedRuns(rates, zeros.astype(np.uint32) + SEED, zeros.astype(np.int32))


@dataclass(frozen=True)
class Mqar(training.Flags, Recipe):
    """Training throughput of the MQAR sweep, on CPU in float32, with AdamW.

    The papers' two-layer models: the sweep's own program with one learning rate, so that models train one
    after another, and with more of them at once. All candidates of a mixer take turns. Compile times are
    separate: a sweep compiles once for any number of learning rates.
    """

    samples: int = 7
    """Timed calls per candidate; the table shows their median and quartile range."""
    mixers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ("attention", "based")
    """Mixers of the second layer."""
    vmapped_runs: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (1, 2, 4)
    """Numbers of learning rates trained at once; 1 is one by one."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        counts = {name: getattr(self, name) for name in ("d_model", "batch_size", "steps")}
        known = (*ALIASES, *mixers.names())
        for value in self.vmapped_runs:
            expect(value >= 1, "--vmapped-runs", value, "at least 1")
        expect(0 <= self.dropout < 1, "--dropout", self.dropout, "from 0 to below 1")
        expect(0 <= self.weight_decay < math.inf, "--weight-decay", self.weight_decay, "at least 0")
        self.check(counts, {"--mixers": (self.mixers, known), "--vmapped-runs": (self.vmapped_runs, ())})
        _ = self.task, [self.architecture(name) for name in self.mixers]
        return training.run(self.plan(), self, command)

    def plan(self) -> training.Plan:
        """Return what to train."""
        sizes = ("d_model", "vocab_size", "length", "pairs", "batch_size", "weight_decay", "dropout", "steps")
        settings = {name: getattr(self, name) for name in (*sizes, "mixers")}
        counts = sorted(self.vmapped_runs)
        labels = {count: f"{count} learning rates at once" if count > 1 else "one by one" for count in counts}

        return training.Plan(
            training_tables.MQAR,
            settings | {"vmapped_runs": counts},
            self.mixers,
            self.length,
            lambda mixer: Workload(self, mixer),
            {f"jax_{count}": (f"based_jax, {label}", count) for count, label in labels.items()},
            self._row,
        )

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of training to a case of the study: a call is `steps` steps."""
        models = int(row["candidate"].removeprefix("jax_"))
        step = row["seconds"] and row["seconds"] / self.steps
        each = step and self.batch_size / step
        return {
            "models": models,
            **row,
            "step_seconds": step,
            "examples_per_second": each and models * each,
            "examples_per_second_per_model": each,
        }
