"""Evaluate the trained model with conv-basis instead of softmax attention and unchanged weights."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data import PackedTokens
from based_jax.evals.perplexity.scoring import score_windows
from based_jax.experiments.conv_basis.approximations import UNIFORM, equal_starts, geometric_starts
from based_jax.experiments.conv_basis.settings import Setting
from based_jax.experiments.results import Row
from based_jax.models import LanguageModel
from based_jax.typing import Params

EXACT = "softmax attention"
WINDOW_LINE = "softmax over the last k keys"
"""Takes at most as many scores as k segments"""


def rows(setting: Setting, model: LanguageModel, params: Params, packed: PackedTokens) -> list[Row]:
    """Return one record per kind of attention, with `points` of (k, bits per byte of the held-out text)."""

    def bits(model: LanguageModel, params: Params) -> float:
        scores = score_windows(model, params, packed, length=setting.window, batch_size=setting.batch_size)
        return float(np.sum(scores.loss, dtype=np.float64)) / math.log(2) / packed.num_bytes

    def with_mixer(mixer: str, **options: Any) -> float:
        config = model.config.with_mixer(mixer, **model.config.layer(0).options, **options)
        return bits(LanguageModel(config), params)

    found: dict[str, list[tuple[int, float]]] = {
        EXACT: [(0, bits(model, params))],
        UNIFORM: [(0, bits(model, _without_queries(params)))],
    }
    for kind, starts_of in (("equal starts", equal_starts), ("geometric starts", geometric_starts)):
        made = [tuple(starts_of(setting.window, count).tolist()) for count in setting.window_terms]
        found[kind] = [(len(starts), with_mixer("conv_basis", starts=starts)) for starts in made]
    found[WINDOW_LINE] = [
        (keys, with_mixer("sliding_window", left=keys - 1)) for keys in setting.window_terms
    ]
    about = {"input": "language model", "length": setting.window}
    return [{**about, "line": line, "points": points} for line, points in found.items()]


def _without_queries(params: Params) -> Params:
    """Return the weights with queries of 0, so that attention is a uniform average."""

    def weight(path: Any, x: jax.Array) -> jax.Array:
        names = [getattr(part, "key", None) for part in path]
        return jnp.zeros_like(x) if names[-3:-1] == ["mixer", "q"] else x

    return jax.tree_util.tree_map_with_path(weight, params)
