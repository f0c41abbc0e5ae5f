"""AdamW as the papers train: warm-up and decay, weight-decay groups, global-norm clipping."""

import dataclasses
import functools
from typing import Any

import jax
import optax

from based_jax.typing import Params
from based_jax.validate import expect, expect_choice, expect_ranges

SCHEDULES = ("cosine", "linear", "constant", "wsd")
"""Schedules of the learning rate after the warm-up."""

MOMENT_DTYPES = ("float32", "bfloat16")
"""Dtypes in which AdamW may keep its first moment."""

FILTER = "filter"
"""Name of the filter of every long convolution in the tree of parameters."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and a decay after it; defaults are Based's language-model recipe."""

    learning_rate: float = 8e-4
    """peak learning rate"""
    final_learning_rate_share: float = 0.1
    """final learning rate as a share of the peak"""
    schedule: str = "cosine"
    """after the warm-up: cosine or linear to the final rate, constant, or wsd (constant, then linear over
    --cooldown)"""
    cooldown: float = 0.2
    """share of the steps, the last ones, over which wsd falls"""
    schedule_steps: int | None = None
    """steps of the warm-up's share and of the fall; default: --steps of the first launch"""
    filter_learning_rate_share: float = 1.0
    """rate of long convolutions' filters as a share of the others'"""
    warmup: float = 0.01
    """share of the steps for a linear warm-up from 1e-6"""
    beta1: float = 0.9
    """decay of the first moment"""
    beta2: float = 0.95
    """decay of the second moment"""
    eps: float = 1e-8
    """Adam's epsilon"""
    weight_decay: float = 0.1
    """decoupled weight decay; never on biases and the embedding"""
    decay_norms: bool = False
    """decay the norms' scales too, as the authors' code does by oversight"""
    clip: float = 1.0
    """global norm to which gradients are clipped"""
    moment_dtype: str = "float32"
    """of the first moment: float32 or bfloat16 (2 bytes per parameter less)"""

    def __post_init__(self) -> None:
        expect(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        rates = dict.fromkeys(("final_learning_rate_share", "filter_learning_rate_share"), "learning rate")
        for name, whole in (rates | {"warmup": "steps", "cooldown": "steps"}).items():
            share = getattr(self, name)
            expect(0 <= share <= 1, name, share, f"0 to 1, a share of the {whole}")
        expect_choice("schedule", self.schedule, SCHEDULES)
        expect_choice("moment_dtype", self.moment_dtype, MOMENT_DTYPES)
        expect_ranges(self, 1, "schedule_steps")
        expect(self.clip > 0, "clip", self.clip, "above 0")
        expect(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """1e-6 rising linearly to the peak over the warm-up, then what `config.schedule` names.

    A run that is extended keeps its `config.schedule_steps`: warm-up, cosine and linear stay as they were,
    and the final rate holds for the steps that were added. Only wsd's fall moves to the new end.
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
        cooldown = round(config.cooldown * steps)
        begin = max(steps - cooldown - warmup, 0)
        fall = optax.linear_schedule(peak, share * peak, max(cooldown, 1), begin)
    if warmup == 0:
        return fall
    rise = optax.linear_schedule(min(1e-6, peak), peak, warmup)
    return optax.join_schedules([rise, fall], [warmup])


def decay_mask(params: Params, decay_norms: bool = False) -> Any:
    """True where weight decay applies: on maps and on the taps of short convolutions.

    Not on biases, embeddings, the filters of long convolutions, whatever describes a recurrence (decays, step
    sizes, skips, mixes of neighbouring tokens) and, by default, norm scales.
    """
    endings = ("kernel", "_conv", "head", *(("scale",) if decay_norms else ()))

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        names = _names(path)
        return names[-1].endswith(endings) and FILTER not in names

    return jax.tree_util.tree_map_with_path(decays, params)


def filter_mask(params: Params) -> Any:
    """True for the filters of long convolutions: their taps, or the networks that make them."""
    return jax.tree_util.tree_map_with_path(lambda path, _: FILTER in _names(path), params)


def _names(path: tuple[Any, ...]) -> list[str]:
    """Names on the way to a parameter; one with logical axis names is a box, whose own entry has no key."""
    return [str(entry.key) for entry in path if getattr(entry, "key", "")]


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping and AdamW in one transformation.

    Only the first moment may be kept in bfloat16. A step moves the second by 1 - beta2 of itself and less, at
    0.999 by a thousandth; bfloat16's steps are 1/256 apart at best, and the mean would stand still.
    """
    moments = {"b1": config.beta1, "b2": config.beta2, "eps": config.eps, "mu_dtype": config.moment_dtype}
    mask = functools.partial(decay_mask, decay_norms=config.decay_norms)
    decay: Any = {"weight_decay": config.weight_decay, "mask": mask}
    adamw = optax.adamw(learning_rate_schedule(config, steps), **moments, **decay)
    parts = [optax.clip_by_global_norm(config.clip), adamw]
    if config.filter_learning_rate_share != 1:
        scale = optax.scale(config.filter_learning_rate_share)
        parts.append(optax.masked(scale, filter_mask))
    return optax.chain(*parts)
