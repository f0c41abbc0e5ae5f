"""Models with random parameters."""

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
