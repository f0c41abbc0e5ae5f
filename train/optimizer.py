"""AdamW as the papers train: warm-up and cosine, weight-decay groups, global-norm clipping (spec 4.1)."""

import dataclasses
from typing import Any

import jax
import optax

from based_jax.typing import Params
from based_jax.validate import expect


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay; defaults are Based's language-model recipe."""

    learning_rate: float = 8e-4
    """peak learning rate"""
    final_learning_rate: float = 0.1
    """learning rate at the end, as a share of the peak"""
    warmup: float = 0.01
    """steps of linear warm-up from 1e-6, as a share of all steps"""
    beta1: float = 0.9
    """decay of the first moment"""
    beta2: float = 0.95
    """decay of the second moment"""
    eps: float = 1e-8
    """Adam's epsilon"""
    weight_decay: float = 0.1
    """decoupled weight decay; never on biases and the embedding"""
    decay_norms: bool = False
    """also decay the norms' scales, as the authors' code does by oversight"""
    clip: float = 1.0
    """global norm to which gradients are clipped"""

    def __post_init__(self) -> None:
        expect(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        expect(0 <= self.final_learning_rate <= 1, "final_learning_rate", self.final_learning_rate, "0 to 1")
        expect(0 <= self.warmup <= 1, "warmup", self.warmup, "0 to 1, a share of the steps")
        expect(self.clip > 0, "clip", self.clip, "above 0")
        expect(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """1e-6 rising linearly to the peak over the warm-up, then a half cosine to the final rate at `steps`."""
    warmup = round(config.warmup * steps)
    cosine = optax.cosine_decay_schedule(
        config.learning_rate, max(steps - warmup, 1), alpha=config.final_learning_rate
    )
    if warmup == 0:
        return cosine
    rise = optax.linear_schedule(min(1e-6, config.learning_rate), config.learning_rate, warmup)
    return optax.join_schedules([rise, cosine], [warmup])


def decay_mask(params: Params, decay_norms: bool = False) -> Any:
    """True where weight decay applies: on maps and on the taps of short convolutions.

    Not on biases, embeddings, the filters of long convolutions, whatever describes a recurrence (decays, step
    sizes, skips, mixes of neighbouring tokens) and, by default, norm scales.
    """
    endings = ("kernel", "_conv", "head", *(("scale",) if decay_norms else ()))

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        names = [str(getattr(entry, "key", "")) for entry in path]
        # A parameter with logical axis names is a box, whose own entry has no key.
        name = next(name for name in reversed(names) if name)
        return name.endswith(endings) and "filter" not in names

    return jax.tree_util.tree_map_with_path(decays, params)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping and AdamW in one transformation."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            learning_rate_schedule(config, steps),
            b1=config.beta1,
            b2=config.beta2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=lambda params: decay_mask(params, config.decay_norms),
        ),
    )
