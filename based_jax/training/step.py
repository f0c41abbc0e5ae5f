"""The training step: loss, gradients over micro-batches, update; one jitted program with donated state."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from based_jax.mixers.initializers import initial_shapes
from based_jax.mixers.selection_heads import LOSSES, auxiliary_loss
from based_jax.models.language_model import LanguageModel
from based_jax.models.sharding import batch_sharding, shardings_of
from based_jax.ops import cross_entropy
from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.cross_entropy import IGNORED
from based_jax.training.devices import hosts
from based_jax.typing import Array, Int, Params

Batch = Mapping[str, Any]
"""Arrays (B, N): integer `inputs` and `targets`; optionally a boolean `mask` of the real tokens and of the
targets that count (default: all); optionally `segment_ids`.

Batches without padding have no mask: a program with a mask pays for it even if it is all True."""

NOISES = ("dropout", "pattern", "selection")
"""Random streams that models use in training; see BigBird and SelectedAttention."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes."""

    step: Int[Array, ""]
    params: Params
    """float32 master weights"""
    opt_state: Any


def noises(key: Array) -> dict[str, Array]:
    """Return the `rngs` of a model in training: name -> key, a scalar. Without them it is deterministic."""
    return dict(zip(NOISES, jax.random.split(key, len(NOISES)), strict=True))


Losses = Callable[..., tuple[tuple[Array, Array], Mapping[str, Any]]]
"""(model, params, batch, **options of `apply`) -> (sum of the losses in nats, number of targets), and the
collection `LOSSES` of the mixers. A batch's mask, if it has one, applies to its targets; everything else is
up to this function."""


def counted(batch: Batch) -> Any:
    """Return a boolean mask of the targets that count: all but -100, of the batch's mask if it has one."""
    mask = batch.get("mask")
    return batch["targets"] != IGNORED if mask is None else mask & (batch["targets"] != IGNORED)


def next_token_losses(
    model: LanguageModel, params: Params, batch: Batch, **options: Any
) -> tuple[tuple[Array, Array], Mapping[str, Any]]:
    """Compute a language model's `Losses`: cross-entropies over the padded vocabulary.

    Returns:
        (sum of the losses in nats, number of targets), float32 scalars; and the mixers' own losses.
    """
    options |= {"segment_ids": batch.get("segment_ids"), "mask": batch.get("mask"), "mutable": [LOSSES]}
    (hidden, _), collected = model.apply(params, batch["inputs"], method="hidden", **options)
    weights = counted(batch).astype(accumulation_dtype(hidden))
    nats = cross_entropy(hidden, model.output_embedding(params), batch["targets"], weights)
    return (nats, jnp.sum(weights)), collected


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    accumulate: int = 1,
    seed: int = 0,
    losses_of: Losses = next_token_losses,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """Build a pure training step, (state, batch) -> (state, metrics).

    Minimises the mean of `losses_of` (the metric `loss`) plus the mixers' own losses (the metric
    `auxiliary_loss`), if there are any. The noise depends only on `seed` and the step.

    With `accumulate` > 1 the batch is split into that many micro-batches whose gradients are summed: loss and
    gradients agree up to rounding, with the activations of only one micro-batch in memory. Each micro-batch
    draws its own noise. Its auxiliary loss is weighted by its share of the targets: a mean over tokens
    (SelectedAttention) then equals that of the whole batch; a convex function of such a mean (SigmoidLookups)
    can only be larger.
    """

    def gradients(params: Params, batch: Batch, key: Array) -> tuple[Params, dict[str, Array]]:
        total = jnp.maximum(jnp.sum(counted(batch)), 1)

        def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, dict[str, Array]]:
            (nats, targets), collected = losses_of(model, params, batch, rngs=noises(key))
            losses = {"loss": nats / total}
            if LOSSES in collected:
                losses["auxiliary_loss"] = auxiliary_loss(collected) * targets / total
            return sum(losses.values(), jnp.zeros(())), losses

        if accumulate == 1:
            return jax.grad(loss, has_aux=True)(params, batch, key)

        def micro(grads: Params, part: tuple[Batch, Array]) -> tuple[Params, dict[str, Array]]:
            more, losses = jax.grad(loss, has_aux=True)(params, *part)
            return jax.tree.map(jnp.add, grads, more), losses

        # Every accumulate-th row goes to the same micro-batch, so rows stay on their devices.
        parts = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), dict(batch))
        start, keys = jax.tree.map(jnp.zeros_like, params), jax.random.split(key, accumulate)
        grads, losses = lax.scan(micro, start, (parts, keys))
        return grads, jax.tree.map(jnp.sum, losses)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, losses = gradients(state.params, batch, key)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            norm = optax.tree.norm(grads)
        metrics = {
            **losses,
            "grad_norm": norm,
            "learning_rate": schedule(state.step),
        }
        return TrainState(state.step + 1, params, opt_state), metrics

    return step


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of a run and the shardings of their arrays."""

    init: Callable[[Array], TrainState]
    """key, a scalar -> state before the first step"""
    train: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
    """(state, batch) -> (next state, metrics by name, scalars)"""
    evaluate: Callable[[Params, Batch], tuple[Array, Array]]
    """(params, batch) -> (sum of the losses in nats, number of targets), scalars"""
    abstract_state: TrainState
    """shapes, dtypes and shardings, for restoring a checkpoint"""
    place_batch: Callable[[Batch], Batch]
    """put a batch of this process on its devices, its rows sharded"""
    rows: Sharding
    """sharding of (B, N) arrays"""


def build_programs(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    accumulate: int = 1,
    seed: int = 0,
    mesh: Mesh | None = None,
    losses_of: Losses = next_token_losses,
) -> Programs:
    """Compile init, train step and evaluation with `jax.jit`, sharded by the rules if a mesh is given.

    `accumulate`, `seed` and `losses_of` are those of `make_train_step`; evaluation draws no noise.
    """

    def init(key: Array, boxed: bool = False) -> TrainState:
        params = model.init(key, jnp.zeros((1, 1), jnp.int32))
        params = params if boxed else nn.meta.unbox(params)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    boxed = initial_shapes(lambda key: init(key, boxed=True), jax.random.key(0))
    abstract = nn.meta.unbox(boxed)
    tokens = None if mesh is None else batch_sharding(mesh)
    step_anywhere = make_train_step(model, optimizer, schedule, accumulate, seed, losses_of)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        with sharding.over(tokens):
            return step_anywhere(state, batch)

    def evaluate(params: Params, batch: Batch) -> tuple[Array, Array]:
        with sharding.over(tokens):
            return losses_of(model, params, batch)[0]

    if tokens is None or mesh is None:
        # Without an explicit sharding of the state, the step would compile twice: for the initial state and
        # for the sharding of its own output.
        rows = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: rows, abstract)
        of_step: dict[str, Any] = {}
        of_evaluation: dict[str, Any] = {}
    else:
        rows, shardings = tokens, shardings_of(boxed, mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        of_step = {"in_shardings": (shardings, rows), "out_shardings": (shardings, everywhere)}
        of_evaluation = {"in_shardings": (shardings.params, rows), "out_shardings": everywhere}
    compiled = (
        jax.jit(init, out_shardings=shardings),
        jax.jit(step, donate_argnums=0, **of_step),
        jax.jit(evaluate, **of_evaluation),
    )
    place_batch = functools.partial(hosts.place_batch, rows=rows)
    abstract = with_shardings(abstract, shardings)
    return Programs(*compiled, abstract_state=abstract, place_batch=place_batch, rows=rows)


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """Attach a tree of shardings to the shapes and dtypes of arrays."""
    shape = jax.ShapeDtypeStruct
    return jax.tree.map(lambda x, sharding: shape(x.shape, x.dtype, sharding=sharding), abstract, shardings)
