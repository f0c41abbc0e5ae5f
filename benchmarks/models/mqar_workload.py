"""Define one model of the MQAR sweep with its data: compiled for any number of learning rates at once."""

import functools
from dataclasses import dataclass

import jax
import numpy as np

from based_jax.data.tasks import MQAR
from based_jax.models import LanguageModel, ModelConfig, mqar_backbone
from based_jax.training.mqar.data import Part, load
from based_jax.training.mqar.grid import Grid, GridState, VmappedRuns
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
