"""AdamW as in the papers, or Muon: warm-up and decay, weight-decay groups, global-norm clipping.

Muon makes the momentum of each matrix orthogonal (K. Jordan et al. 2024; Liu et al. 2025, 2502.16982).
Matrices are the kernels of layers. Embeddings, heads, norms, biases, convolutions, filters of long
convolutions and parameters of a recurrence get Adam's steps.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from based_jax.typing import Params
from based_jax.validate import expect, expect_choice, expect_ranges

FILTER = "filter"
"""Name of the filter of every long convolution in the tree of parameters."""

RMS = 0.2
"""Root mean square of a matrix's step at a learning rate of 1. That of AdamW's steps is about the same, so
that both share a learning rate and a weight decay (2502.16982, section 2.2)."""

_LARGEST = float(jnp.finfo(jnp.float32).max)

_Axes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then decay; the defaults are Based's language-model recipe."""

    optimizer: str = "adamw"
    """adamw, or muon for the matrices of layers and AdamW for other parameters"""
    learning_rate: float = 8e-4
    """peak learning rate"""
    final_learning_rate_share: float = 0.1
    """final learning rate as a share of the peak"""
    schedule: str = "cosine"
    """after the warm-up: cosine or linear to the final rate, constant, or wsd (constant, then linear over
    --cooldown)"""
    cooldown: float = 0.2
    """share of the steps over which wsd decays at the end"""
    schedule_steps: int | None = None
    """length of the schedule in steps; default: --steps of the first launch"""
    filter_learning_rate_share: float = 1.0
    """learning rate of long convolutions' filters as a share of that of the other parameters"""
    warmup: float = 0.01
    """share of the steps for the linear warm-up from 1e-6"""
    beta1: float = 0.9
    """decay of the first moment"""
    beta2: float = 0.95
    """decay of the second moment"""
    eps: float = 1e-8
    """Adam's epsilon"""
    weight_decay: float = 0.1
    """decoupled weight decay; never on biases and the embedding"""
    decay_norms: bool = False
    """also decay the scales of norms, as the authors' code does by oversight"""
    clip: float = 1.0
    """maximum global norm of the gradients, which are clipped to it"""
    moment_dtype: str = "float32"
    """dtype of the first moment: float32 or bfloat16 (2 bytes less per parameter)"""

    def __post_init__(self) -> None:
        rate, decay = self.learning_rate, self.weight_decay
        expect(0 < rate <= _LARGEST, "learning_rate", rate, "above 0 and finite in float32")
        expect(0 <= decay < math.inf, "weight_decay", decay, "at least 0 and finite")
        expect(0 < self.eps < math.inf, "eps", self.eps, "above 0 and finite")
        for name in ("beta1", "beta2"):
            expect(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to below 1")
        rates = dict.fromkeys(("final_learning_rate_share", "filter_learning_rate_share"), "learning rate")
        for name, whole in (rates | {"warmup": "steps", "cooldown": "steps"}).items():
            share = getattr(self, name)
            expect(0 <= share <= 1, name, share, f"0 to 1, a share of the {whole}")
        expect_choice("optimizer", self.optimizer, ("adamw", "muon"))
        expect_choice("schedule", self.schedule, ("cosine", "linear", "constant", "wsd"))
        expect_choice("moment_dtype", self.moment_dtype, ("float32", "bfloat16"))
        expect_ranges(self, 1, "schedule_steps")
        expect(self.clip > 0, "clip", self.clip, "above 0")


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Build the schedule: linear warm-up from 1e-6 to the peak, then the decay that `config.schedule` names.

    An extended run keeps its `config.schedule_steps`: warm-up, cosine and linear do not change, and the added
    steps use the final rate. Only the decay of wsd moves to the new end.
    """
    horizon = config.schedule_steps or steps
    warmup = round(config.warmup * horizon)
    peak, share, rest = config.learning_rate, config.final_learning_rate_share, max(horizon - warmup, 1)
    if config.schedule == "cosine":
        fall = optax.cosine_decay_schedule(peak, rest, alpha=share)
    elif config.schedule == "linear":
        fall = optax.linear_schedule(peak, share * peak, rest)
    elif config.schedule == "constant":
        fall = optax.constant_schedule(peak)
    else:
        cooldown = min(round(config.cooldown * steps), max(steps - warmup, 0))
        begin = max(steps - cooldown - warmup, 0)
        fall = optax.linear_schedule(peak, share * peak, max(cooldown, 1), begin)
    if warmup == 0:
        return fall
    rise = optax.linear_schedule(min(1e-6, peak), peak, warmup)
    return optax.join_schedules([rise, fall], [warmup])


def decay_mask(params: Params, decay_norms: bool = False) -> Any:
    """Return a mask, True where weight decay applies: weight matrices and taps of short convolutions.

    Not biases, embeddings, filters of long convolutions, parameters of a recurrence (decays, step sizes,
    skips, token-shift weights) or, by default, norm scales.
    """
    endings = ("kernel", "_conv", "head", *(("scale",) if decay_norms else ()))

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        names = names_of(path)
        return names[-1].endswith(endings) and FILTER not in names

    return jax.tree_util.tree_map_with_path(decays, params)


def filter_mask(params: Params) -> Any:
    """Return a mask, True for filters of long convolutions: their taps, or the networks that make them."""
    return jax.tree_util.tree_map_with_path(lambda path, _: FILTER in names_of(path), params)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Combine gradient clipping and AdamW, or Muon, in one transformation.

    Only the first moment may be kept in bfloat16. A step changes the second by 1 - beta2 of itself or less,
    0.001 at beta2 = 0.999, and bfloat16's relative spacing is 1/256 at best: the mean would stop moving.
    """
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.eps, mu_dtype=config.moment_dtype)
    mask = functools.partial(decay_mask, decay_norms=config.decay_norms)
    scaled = optax.chain(
        muon_or(adam, config.moment_dtype) if config.optimizer == "muon" else adam,
        optax.add_decayed_weights(config.weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate_schedule(config, steps)),
    )
    parts = [clip_by_global_norm(config.clip), scaled]
    if config.filter_learning_rate_share != 1:
        parts.append(optax.masked(optax.scale(config.filter_learning_rate_share), filter_mask))
    return optax.chain(*parts)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scale the gradients down to a global norm of `limit`, as `optax.clip_by_global_norm`, by one factor.

    A product with a scalar fuses with the moments that it goes into. Optax divides each array by the norm,
    and XLA stores the quotients, since it repeats no division: a program and an array per parameter.
    """

    def clipped(updates: Any, params: Any) -> Any:
        del params
        factor = jnp.minimum(1, limit / optax.tree.norm(updates))
        return jax.tree.map(lambda array: array * factor.astype(array.dtype), updates)

    return optax.stateless(clipped)


def muon_or(adam: optax.GradientTransformation, moment_dtype: str) -> optax.GradientTransformation:
    """Return Muon's steps for matrices and those of `adam` for other parameters, without learning rate."""

    def numbers(params: Params) -> Any:
        return _map(lambda axes, _: axes and MuonDimensionNumbers(*axes), params)

    def labels(params: Params) -> Any:
        return _map(lambda axes, _: "adam" if axes is None else "muon", params)

    orthogonal = scale_by_muon(mu_dtype=moment_dtype, weight_dimension_numbers=numbers)
    rescaled = optax.stateless(lambda steps, params: _map(_rescale, steps))
    return optax.partition({"muon": optax.chain(orthogonal, rescaled), "adam": adam}, labels)


def matrix_axes(path: tuple[Any, ...], ndim: int) -> _Axes | None:
    """Return the axes of a kernel's inputs and of its outputs; None if the parameter is no matrix.

    A kernel (inputs, parts, outputs) of a fused projection is a matrix per part. Heads and their channels
    together are the outputs of a projection, and the inputs of the last one. Kernels of four axes (parts and
    heads) are taken as no matrices.
    """
    names = names_of(path)
    if not is_matrix(names) or ndim not in (2, 3):
        return None
    if ndim == 2:
        return (0,), (1,)
    if names[-2] == "in_proj":
        return (0,), (2,)
    return ((0, 1), (2,)) if names[-2] == "out" else ((0,), (1, 2))


def is_matrix(names: Sequence[str]) -> bool:
    """Return whether the parameter on this path is the kernel of a dense layer.

    A kernel of a mixer itself is the taps of the mixer `short_conv`.
    """
    return names[-1] == "kernel" and FILTER not in names and names[-2:-1] not in ([], ["params"], ["mixer"])


def _map(function: Callable[[_Axes | None, Any], Any], tree: Params) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, x: function(matrix_axes(path, x.ndim), x), tree)


def _rescale(axes: _Axes | None, step: Any) -> Any:
    """Scale an orthogonal matrix to `RMS`: that of an (m, n) one is 1 / sqrt(max(m, n))."""
    sides = (math.prod(step.shape[axis] for axis in side) for side in axes or ())
    return step * (RMS * math.sqrt(max(sides)))


def names_of(path: tuple[Any, ...]) -> list[str]:
    """Return the keys on a parameter's path; the box of logical axis names is an entry without key."""
    return [str(entry.key) for entry in path if getattr(entry, "key", "")]


def kind_of(names: Sequence[str]) -> str:
    """Return "embeddings" (and heads), "norms", "weight matrices" or "others", by a parameter's path."""
    if len(names) == 1:
        return "embeddings"
    if any("norm" in name for name in names):
        return "norms"
    return "weight matrices" if is_matrix(names) else "others"
