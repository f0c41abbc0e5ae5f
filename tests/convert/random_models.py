"""Models with random parameters, and other values for the entries of a config."""

from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

import based_jax as bj
from based_jax.convert.pretrained import language_model_shapes
from tests.arrays import array


def drawn(model: bj.LanguageModel, seed: int = 0) -> dict:
    """Random parameters without compiling their initialisation."""
    rng = np.random.default_rng(seed)
    shapes = language_model_shapes(model.config)
    leaves = {path: array(rng.standard_normal(shape, np.float32)) for path, shape in shapes.items()}
    return {"params": unflatten_dict(leaves, sep="/")}


def changed(value: Any) -> Any:
    """Return a value of the same type that is not `value`; a number for None."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value or 1
        case None:
            return 8
    return "other" if isinstance(value, str) else [2, 3]
