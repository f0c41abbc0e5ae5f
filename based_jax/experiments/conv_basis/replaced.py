"""The trained model with conv-basis attention in the place of softmax attention, its weights as they are."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data import PackedTokens
from based_jax.evals.scoring import score_windows
from based_jax.experiments.conv_basis.approximations import UNIFORM, equal_starts, geometric_starts
from based_jax.experiments.conv_basis.settings import Setting
from based_jax.models import LanguageModel
from based_jax.typing import Params

EXACT = "softmax attention"
WINDOW_LINE = "softmax over the last k keys"
"""As many scores as k segments take, at most"""


def rows(
    setting: Setting, model: LanguageModel, params: Params, packed: PackedTokens
) -> list[dict[str, Any]]:
    """One record per kind of attention, with `points` of (k, bits per byte of the held-out text)."""

    def bits(model: LanguageModel, params: Params) -> float:
        scores = score_windows(model, params, packed, length=setting.window, batch_size=setting.batch_size)
        return float(np.sum(scores.loss, dtype=np.float64)) / math.log(2) / packed.num_bytes

    def with_mixer(mixer: str, **options: Any) -> float:
        config = model.config.with_mixer(mixer, **model.config.layer(0).options, **options)
        return bits(LanguageModel(config), params)

    kinds: dict[str, Callable[[int, int], np.ndarray]] = {
        "equal starts": equal_starts, "geometric starts": geometric_starts,
    }  # fmt: skip
    found: list[dict[str, Any]] = [
        {"line": EXACT, "points": [(0, bits(model, params))]},
        {"line": UNIFORM, "points": [(0, bits(model, _without_queries(params)))]},
    ]
    for kind, starts_of in kinds.items():
        made = [tuple(starts_of(setting.window, count).tolist()) for count in setting.window_terms]
        found.append({
            "line": kind,
            "points": [(len(starts), with_mixer("conv_basis", starts=starts)) for starts in made],
        })  # fmt: skip
    windows = [(keys, with_mixer("sliding_window", left=keys - 1)) for keys in setting.window_terms]
    found.append({"line": WINDOW_LINE, "points": windows})
    return [{"input": "language model", "length": setting.window, **row} for row in found]


def _without_queries(params: Params) -> Params:
    """The weights with queries of 0, so that attention is a uniform average."""

    def weight(path: Any, x: jax.Array) -> jax.Array:
        names = [getattr(part, "key", None) for part in path]
        return jnp.zeros_like(x) if names[-3:-1] == ["mixer", "q"] else x

    return jax.tree_util.tree_map_with_path(weight, params)
