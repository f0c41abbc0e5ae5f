"""Selective lookups: their softmax over time."""

import jax
import numpy as np
from flax.linen import meta

from based_jax.testing import laws
from tests.mixers.built import runner
from tests.mixers.selection import IDS, MASK, WIDTH, X


def test_a_softmax_over_time_sums_to_one_in_each_document():
    """With equal attention outputs the update is the weight."""
    mixer = runner("selective_lookups", d_model=WIDTH, causal=False)
    params = jax.tree.map(np.asarray, meta.unbox(mixer.variables))["params"]
    for name in "qkv":
        params[name] = jax.tree.map(np.zeros_like, params[name])
    params["out"]["bias"] = np.ones_like(params["out"]["bias"])
    mixer.variables = {"params": params}
    for context, totals in (({}, [1, 1]), ({"mask": MASK}, [1, 1]), ({"segment_ids": IDS}, [2, 2])):
        update = (laws.packed(mixer, X, **context) - X)[..., 0]
        if "mask" in context:
            update = np.where(MASK, update, 0)
        np.testing.assert_allclose(update.sum(1), totals, rtol=1e-5)
