"""Linear HyperFeatureAttention: its definition, the signs of its maps, the size of its state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import ops
from based_jax.mixers.linear_hyper_feature_attention import SIGNED
from based_jax.testing import laws
from tests.mixers.built import float64_weights, runner
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12


@pytest.mark.parametrize(
    "options",
    [
        {"order": 2, "feature_dim": 3, "norm": "none", "value_product": True},
        {"order": 3, "feature_dim": 2},
        {"order": 2, "feature_dim": 3, "feature_map": "pos_elu", "norm": "sum", "chunk_size": 4},
    ],
    ids=["paper", "rms", "sum"],
)
def test_definition_51(options):
    """Definition 5.1, causal, in float64; token by token it is the same to 1e-12."""
    run = runner("linear_hyper_feature_attention", d_model=WIDTH, num_heads=2, **options)
    length, order, width = 7, options["order"], options["feature_dim"]
    x = laws.inputs(2, length, WIDTH, 0)
    weights = float64_weights(run)
    q, k, v = (np.einsum("bnd,dhac->bnhac", np.float64(x), weights[name]) for name in "qkv")
    if "feature_map" in options:
        q, k = (np.where(h > 0, h + 1, np.exp(h)) for h in (q, k))
    scores = np.einsum("bnhac,bmhac->bahnm", q, k).prod(axis=1) * width ** (-order / 2)
    scores = np.where(np.tri(length, dtype=bool), scores, 0)
    y = np.einsum("bhnm,bmhv->bnhv", scores, v.prod(axis=3))
    norm = options.get("norm", "rms")
    if norm == "sum":
        y = y / scores.sum(-1).swapaxes(1, 2)[..., None]
    elif norm == "rms":
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * weights["norm_scale"]
    expected = np.einsum("bnhv,hvd->bnd", y, weights["out"])
    assert_close(run(x)[0], expected, FLOAT32)
    with jax.enable_x64(True):
        wide = run.mixer.clone(dtype=jnp.float64)
        variables = jax.tree.map(np.float64, nn.meta.unbox(run.variables))
        step = jax.jit(wide.apply, compiler_options=laws.QUICKLY)
        state, outputs = wide.init_state(2), []
        for t in range(length):
            y, state = step(variables, np.float64(x[:, t : t + 1]), state)
            outputs.append(y)
    tolerance = 1e-11 if norm == "sum" else 1e-12  # the normaliser's 1e-12 is in y
    assert_close(np.concatenate(outputs, axis=1), expected, tolerance)


def test_maps_that_a_sum_may_normalise_have_no_negative_scores():
    x = np.random.default_rng(0).normal(size=(2, 50, 4)).astype(np.float32) * 3
    for name, phi in ops.feature_maps.FEATURE_MAPS.items():
        q, k = (np.asarray(phi.features(jnp.asarray(part)), np.float64) for part in x)
        assert (name in SIGNED) == np.any(q @ k.T < 0), name
