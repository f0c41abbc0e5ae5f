"""Many models at once: every learning rate and seed is a lane of one vmap, of one compiled program.

The lanes' parameters and optimizer states are stacked along their first axis, which is cut over the devices;
the data are on every device. No lane sees another: a lane that turns NaN stays alone with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from based_jax.data.tasks import IGNORE
from based_jax.mixers.selection_heads import LOSSES, auxiliary_loss
from based_jax.models import LanguageModel
from based_jax.typing import Array, Float, Int, Params
from train.mqar_data import Batches
from train.step import noises

MAX_LOGITS = 2**24
"""logits that a lane holds at a time; more are made part by part, and made again for the gradient"""

_LANES, _SHARED = PartitionSpec("lanes"), PartitionSpec()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """What distinguishes the models of a grid."""

    rates: Float[Any, " R"]
    """learning rates"""
    seeds: Int[Any, " R"]
    """of the initialisation and the dropout"""
    datasets: Int[Any, " R"]
    """which data seed, counted from 0"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GridState:
    """Everything that a step changes."""

    step: Int[Array, ""]
    params: Params
    """leaves (R, ...), float32"""
    opt_state: Any
    """leaves (R, ...)"""


class Grid:
    """The compiled programs of a grid of models.

    Args:
        model: the architecture, the same in all lanes.
        length: tokens of some example, for the initialisation.
        weight_decay: decoupled, on all parameters that are trained, as in the authors' code.
    """

    def __init__(self, model: LanguageModel, length: int, weight_decay: float):
        self.model = model
        self.length = length
        self.mesh = jax.make_mesh((jax.device_count(),), ("lanes",), axis_types=(jax.sharding.AxisType.Auto,))
        self.weight_decay = weight_decay
        self.adam = optax.scale_by_adam(0.9, 0.999, 1e-8)
        layout: Any = GridState(_SHARED, _LANES, _LANES)  # pyright: ignore[reportArgumentType]
        self._layout = layout
        self.init = self._compiled(self._init, (_LANES,), layout)
        self.train = self._compiled(
            self._train, (layout, _LANES, *[_SHARED] * 4), (layout, _LANES), donate_argnums=0
        )
        self.evaluate = self._compiled(self._evaluate, (_LANES, _LANES, _SHARED), _LANES)

    def _compiled(self, function: Callable[..., Any], inputs: Any, outputs: Any, **options: Any) -> Any:
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(mapped, **options)

    def _init(self, lanes: Lanes) -> GridState:
        """The state before the first step; lanes of one seed start alike."""

        def init(seed: Array) -> Params:
            variables = self.model.init(_keys(seed)[0], jnp.zeros((1, self.length), jnp.int32))
            return nn.meta.unbox({"params": variables["params"]})

        params = jax.vmap(init)(lanes.seeds)
        return GridState(jnp.zeros((), jnp.int32), params, jax.vmap(self.adam.init)(params))

    def _train(
        self, state: GridState, lanes: Lanes, scale: Array, batches: Batches, start: Array, stop: Array
    ) -> tuple[GridState, Float[Array, " R"]]:
        """Train on the batches from `start` to before `stop` with learning rates times `scale`.

        Returns:
            the state, and each lane's loss, averaged over the steps.
        """

        def update(params, opt_state, lane, batch, step):
            batch = jax.tree.map(lambda array: array[lane.datasets], batch)
            key = jax.random.fold_in(_keys(lane.seeds)[1], step)
            loss, gradients = jax.value_and_grad(self._loss)(params, batch, key)
            updates, opt_state = self.adam.update(gradients, opt_state)

            def move(param: Array, update: Array) -> Array:
                # Constants, such as the positions of a filter, have never had a gradient and do not decay.
                decay = jnp.where(jnp.any(update != 0), self.weight_decay, 0)
                return param - scale * lane.rates * (update + decay * param)

            return jax.tree.map(move, params, updates), opt_state, loss

        def step(index: Array, carry: tuple[GridState, Array]) -> tuple[GridState, Array]:
            state, total = carry
            params, opt_state, losses = jax.vmap(update, in_axes=(0, 0, 0, None, None))(
                state.params, state.opt_state, lanes, _batch(batches, index), state.step
            )
            return GridState(state.step + 1, params, opt_state), total + losses

        state, total = lax.fori_loop(start, stop, step, (state, jnp.zeros_like(lanes.rates)))
        return state, total / (stop - start)

    def _loss(self, params: Params, batch: Batches, key: Array) -> Float[Array, ""]:
        """Cross-entropy (nats), averaged over the batch's labels, and the mixers' own losses."""
        counts = batch.targets != IGNORE
        hidden, collected = self.model.apply(
            params, batch.inputs, rngs=noises(key), mutable=[LOSSES], method="hidden"
        )
        losses = self._at_labels(params, hidden[0], batch, _cross_entropies)
        mean = jnp.sum(jnp.where(counts, losses, 0)) / jnp.maximum(jnp.sum(counts), 1)
        return mean + auxiliary_loss(collected)

    def _evaluate(self, params: Params, lanes: Lanes, batches: Batches) -> Float[Array, "R 2"]:
        """Sums over all examples of an example's mean loss, and of its share of right labels."""

        def scores(params: Params, lane: Lanes, batch: Batches) -> Float[Array, " 2"]:
            batch = jax.tree.map(lambda array: array[lane.datasets], batch)
            counts = batch.targets != IGNORE
            weights = counts / jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1)
            hidden: Any = self.model.apply(params, batch.inputs, method="hidden")[0]
            values = self._at_labels(params, hidden, batch, _losses_and_hits)
            return jnp.sum(jnp.where(counts, values * weights, 0), axis=(1, 2))

        def step(index: Array, total: Array) -> Array:
            return total + jax.vmap(scores, in_axes=(0, 0, None))(params, lanes, _batch(batches, index))

        return lax.fori_loop(0, batches.inputs.shape[1], step, jnp.zeros((len(lanes.rates), 2)))

    def _at_labels(
        self, params: Params, hidden: Array, batch: Batches, score: Callable[[Array, Array], Array]
    ) -> Float[Array, "... B L"]:
        """`score(logits, targets)` of one lane; logits are made where labels are, and nowhere else."""
        hidden = jnp.take_along_axis(hidden, batch.places[..., None], axis=1)

        def scores(hidden: Array, targets: Array) -> Array:
            logits: Any = self.model.apply(params, hidden, method="unembed")
            return score(logits, targets)

        rows, labels = batch.targets.shape
        fits = MAX_LOGITS // (labels * self.model.config.padded_vocab_size)
        size = next(size for size in range(min(rows, max(fits, 1)), 0, -1) if rows % size == 0)
        if size == rows:
            return scores(hidden, batch.targets)
        parts = (array.reshape(-1, size, *array.shape[1:]) for array in (hidden, batch.targets))
        values = lax.map(jax.checkpoint(lambda part: scores(*part)), tuple(parts))
        return jnp.moveaxis(values, 0, -3).reshape(*values.shape[1:-2], rows, labels)

    def filled(self, lanes: Sequence[int]) -> list[int]:
        """`lanes` and as many copies of the last that every device has equally many."""
        return [*lanes, *[lanes[-1]] * (-len(lanes) % self.mesh.size)] if lanes else []

    def place(self, batches: Batches) -> Batches:
        """Copy data to every device."""
        return jax.device_put(batches, NamedSharding(self.mesh, _SHARED))

    def abstract(self, lanes: Lanes) -> GridState:
        """Shapes, dtypes and shardings of the state, for a checkpoint."""
        shapes = jax.eval_shape(self.init, lanes)
        shardings = self._shardings(shapes)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            shardings,
        )

    def select(self, state: GridState, lanes: Sequence[int]) -> GridState:
        """The state of some lanes only."""
        index = np.asarray(lanes)
        params, opt_state = jax.tree.map(
            lambda leaf: np.asarray(leaf)[index], (state.params, state.opt_state)
        )
        chosen = GridState(state.step, params, opt_state)
        return jax.device_put(chosen, self._shardings(chosen))

    def _shardings(self, state: GridState) -> GridState:
        per_lane = NamedSharding(self.mesh, _LANES)
        params, opt_state = jax.tree.map(lambda _: per_lane, (state.params, state.opt_state))
        step: Any = NamedSharding(self.mesh, _SHARED)
        return GridState(step, params, opt_state)


def _keys(seed: Array) -> Array:
    """Keys of the initialisation and of the dropout."""
    return jax.random.split(jax.random.key(seed))


def _batch(batches: Batches, index: Array) -> Batches:
    """One batch for each data seed, leaves (S, B, ...)."""
    return jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, index, 1, keepdims=False), batches)


def _cross_entropies(logits: Array, targets: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))


def _losses_and_hits(logits: Array, targets: Array) -> Array:
    return jnp.stack([_cross_entropies(logits, targets), jnp.argmax(logits, axis=-1) == targets])
