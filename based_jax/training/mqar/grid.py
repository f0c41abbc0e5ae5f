"""Train many models at once: every learning rate and seed is a vmapped run of one compiled program.

The runs' parameters and optimizer states are stacked along their first axis, which is sharded over the
devices; the data are replicated. Runs are independent: a NaN in one does not affect the others.

A segment is the task with one length and number of pairs. A batch never mixes segments, and nothing is
shuffled: every epoch goes through the segments in order, each from its first example to its last, as in
Zoology's code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from based_jax.data.tasks import IGNORE, Task
from based_jax.mixers.selection_heads import LOSSES, auxiliary_loss
from based_jax.models import LanguageModel
from based_jax.models.classifier import AutoEncoder
from based_jax.models.language_model import blank_inputs
from based_jax.training.step import noises, with_shardings
from based_jax.typing import Array, Float, Int, Params

MAX_LOGITS = 2**24
"""Maximum logits that a run holds at a time; more are computed in chunks and recomputed for the gradient."""

_PER_RUN, _SHARED = PartitionSpec("runs"), PartitionSpec()


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


class VmappedRuns(NamedTuple):
    """The settings in which the models of a grid differ."""

    rates: Float[Any, " R"]  # learning rates
    seeds: Int[Any, " R"]  # of initialisation and dropout
    datasets: Int[Any, " R"]  # index of the data seed


class Answers(NamedTuple):
    """A model's outputs at the labels."""

    vectors: Float[Array, "... E"]  # before the head
    logits: Float[Array, "... labels"]
    head: Float[Array, "labels E"] | None  # vectors of the labels, if they are fixed


def cross_entropy(answers: Answers, targets: Int[Array, "..."]) -> Float[Array, "..."]:
    """Return the cross-entropy of each label (nats); a target below 0 counts as 0."""
    return optax.softmax_cross_entropy_with_integer_labels(answers.logits, jnp.maximum(targets, 0))


def squared_error(answers: Answers, targets: Int[Array, "..."]) -> Float[Array, "..."]:
    """Return the mean squared difference of each output from its label's vector, as Zoology's "mse"."""
    assert answers.head is not None
    return jnp.mean(jnp.square(answers.vectors - answers.head[jnp.maximum(targets, 0)]), axis=-1)


LABEL_LOSSES = {"cross_entropy": cross_entropy, "mse": squared_error}
"""Losses of a label by the names of `train synthetic --loss`; "mse" needs a fixed head."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GridState:
    """The training state of all runs."""

    step: Int[Array, ""]
    params: Params  # leaves (R, ...), float32
    opt_state: Any  # leaves (R, ...)


class Grid:
    """The compiled programs of a grid of models.

    Args:
        model: the architecture of all runs.
        length: number of tokens of the input that initialises the model.
        weight_decay: decoupled, on all trained parameters, as in Zoology's code.
        loss: one of `LABEL_LOSSES`.
        head: fixed vectors of the labels, which replace the model's drawn head; None to keep that.
    """

    def __init__(
        self,
        model: LanguageModel | AutoEncoder,
        length: int,
        weight_decay: float,
        loss: str = "cross_entropy",
        head: Float[Array, "labels E"] | None = None,
    ):
        self.model, self.length, self.weight_decay = model, length, weight_decay
        self.label_loss, self.head = LABEL_LOSSES[loss], head
        self.mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
        self.adam = optax.scale_by_adam(0.9, 0.999, 1e-8)
        layout: Any = GridState(_SHARED, _PER_RUN, _PER_RUN)  # pyright: ignore[reportArgumentType]
        inputs = (layout, _PER_RUN, *[_SHARED] * 4)
        self.init = self._compiled(self._init, (_PER_RUN,), layout)
        self.train = self._compiled(self._train, inputs, (layout, _PER_RUN), donate_argnums=0)
        self.evaluate = self._compiled(self._evaluate, (_PER_RUN, _PER_RUN, _SHARED), _PER_RUN)

    def _compiled(self, function: Callable[..., Any], inputs: Any, outputs: Any, **options: Any) -> Any:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(mapped, **options)

    def _init(self, runs: VmappedRuns) -> GridState:
        """Return the initial state; runs with the same seed start from the same parameters."""

        def init(seed: Array) -> Params:
            variables = self.model.init(_keys(seed)[0], blank_inputs(self.model.config, self.length))
            params = nn.meta.unbox(variables["params"])
            return {"params": params if self.head is None else {**params, "embedding": self.head}}

        params = jax.vmap(init)(runs.seeds)
        return GridState(jnp.zeros((), jnp.int32), params, jax.vmap(self.adam.init)(params))

    def _train(
        self, state: GridState, runs: VmappedRuns, scale: Array, batches: Batches, start: Array, stop: Array
    ) -> tuple[GridState, Float[Array, " R"]]:
        """Train on batches `start` to `stop` (exclusive) with learning rates multiplied by `scale`.

        Returns the state, and each run's loss averaged over the steps.
        """

        def update(params, opt_state, run, batch, step):
            batch = jax.tree.map(lambda array: array[run.datasets], batch)
            key = jax.random.fold_in(_keys(run.seeds)[1], step)
            loss, gradients = jax.value_and_grad(self._loss)(params, batch, key)
            updates, opt_state = self.adam.update(gradients, opt_state)

            def move(param: Array, update: Array) -> Array:
                # Constants, such as the positions of a filter, have no gradient and must not decay.
                decay = jnp.where(jnp.any(update != 0), self.weight_decay, 0)
                return param - scale * run.rates * (update + decay * param)

            return jax.tree.map(move, params, updates), opt_state, loss

        def step(index: Array, carry: tuple[GridState, Array]) -> tuple[GridState, Array]:
            state, total = carry
            params, opt_state, losses = jax.vmap(update, in_axes=(0, 0, 0, None, None))(
                state.params, state.opt_state, runs, _batch(batches, index), state.step
            )
            return GridState(state.step + 1, params, opt_state), total + losses

        state, total = lax.fori_loop(start, stop, step, (state, jnp.zeros_like(runs.rates)))
        return state, total / (stop - start)

    def _loss(self, params: Params, batch: Batches, key: Array) -> Float[Array, ""]:
        """Return the mean loss over the batch's labels plus the mixers' own losses."""
        counts = batch.targets != IGNORE
        hidden, collected = self.model.apply(
            params, batch.inputs, rngs=noises(key), mutable=[LOSSES], method="hidden"
        )
        losses = self._at_labels(params, hidden[0], batch, self.label_loss)
        mean = jnp.sum(jnp.where(counts, losses, 0)) / jnp.maximum(jnp.sum(counts), 1)
        return mean + auxiliary_loss(collected)

    def _evaluate(self, params: Params, runs: VmappedRuns, batches: Batches) -> Float[Array, "R 2"]:
        """Sum each example's mean loss and its share of correct labels over all examples."""

        def scores(params: Params, run: VmappedRuns, batch: Batches) -> Float[Array, " 2"]:
            batch = jax.tree.map(lambda array: array[run.datasets], batch)
            counts = batch.targets != IGNORE
            weights = counts / jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1)
            hidden: Any = self.model.apply(params, batch.inputs, method="hidden")[0]
            values = self._at_labels(params, hidden, batch, self._losses_and_hits)
            return jnp.sum(jnp.where(counts, values * weights, 0), axis=(1, 2))

        def step(index: Array, total: Array) -> Array:
            return total + jax.vmap(scores, in_axes=(0, 0, None))(params, runs, _batch(batches, index))

        return lax.fori_loop(0, batches.inputs.shape[1], step, jnp.zeros((len(runs.rates), 2)))

    def _losses_and_hits(self, answers: Answers, targets: Array) -> Float[Array, "2 ..."]:
        hits = jnp.argmax(answers.logits, axis=-1) == targets
        return jnp.stack([self.label_loss(answers, targets), hits])

    def _at_labels(
        self, params: Params, hidden: Array, batch: Batches, score: Callable[[Answers, Array], Array]
    ) -> Float[Array, "... B L"]:
        """Return `score(answers, targets)` of one run; logits are computed at the labels only."""
        hidden = jnp.take_along_axis(hidden, batch.positions[..., None], axis=1)

        def scores(hidden: Array, targets: Array) -> Array:
            logits: Any = self.model.apply(params, hidden, method="unembed")
            return score(Answers(hidden, logits, self.head), targets)

        rows, labels = batch.targets.shape
        fits = MAX_LOGITS // (labels * self.model.config.padded_vocab_size)
        size = next(size for size in range(min(rows, max(fits, 1)), 0, -1) if rows % size == 0)
        if size == rows:
            return scores(hidden, batch.targets)
        parts = (array.reshape(-1, size, *array.shape[1:]) for array in (hidden, batch.targets))
        values = lax.map(jax.checkpoint(lambda part: scores(*part)), tuple(parts))
        return jnp.moveaxis(values, 0, -3).reshape(*values.shape[1:-2], rows, labels)

    def filled(self, runs: Sequence[int]) -> list[int]:
        """Pad `runs` with copies of the last one to a multiple of the number of devices."""
        return [*runs, *[runs[-1]] * (-len(runs) % self.mesh.size)] if runs else []

    def replicate(self, batches: Batches) -> Batches:
        return jax.device_put(batches, NamedSharding(self.mesh, _SHARED))

    def abstract(self, runs: VmappedRuns) -> GridState:
        """Return the state's shapes, dtypes and shardings, for restoring a checkpoint."""
        shapes = jax.eval_shape(self.init, runs)
        return with_shardings(shapes, self._shardings(shapes))

    def select(self, state: GridState, runs: Sequence[int]) -> GridState:
        """Return the state of the given runs only."""
        index, kept = np.asarray(runs), (state.params, state.opt_state)
        chosen = GridState(state.step, *jax.tree.map(lambda leaf: np.asarray(leaf)[index], kept))
        return jax.device_put(chosen, self._shardings(chosen))

    def _shardings(self, state: GridState) -> GridState:
        per_run, step = (NamedSharding(self.mesh, spec) for spec in (_PER_RUN, _SHARED))
        params, opt_state = jax.tree.map(lambda _: per_run, (state.params, state.opt_state))
        return GridState(cast(Any, step), params, opt_state)


def _keys(seed: Array) -> Array:
    """Return the keys of initialisation and dropout."""
    return jax.random.split(jax.random.key(seed))


def _batch(batches: Batches, index: Array) -> Batches:
    """Return one batch per data seed, leaves (S, B, ...)."""
    return jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, index, 1, keepdims=False), batches)
