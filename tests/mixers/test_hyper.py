"""HyperAttention and HyperFeatureAttention: their definitions, maps, mixed orders, steps and sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers, ops
from based_jax.mixers.linear_hyper_feature_attention import SIGNED
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers.built import float64_weights, parameter_count, runner
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12


def test_shared_maps_are_as_many_as_attentions():
    """4 D^2 whatever the order, and 2 n D^2 with a map per slot (table 3 of the paper: both of order D^2)."""
    assert parameter_count("attention", d_model=24) == 4 * 24**2
    for order in (2, 4):
        assert parameter_count("hyper_attention", d_model=24, order=order, num_heads=3) == 4 * 24**2
        assert parameter_count("hyper_attention", d_model=24, order=order, shared=False) == 2 * order * 24**2
        options = {"d_model": 24, "order": order, "num_heads": 3, "feature_dim": 8}
        assert parameter_count("linear_hyper_attention", **options) == 4 * 24**2
        assert parameter_count("linear_hyper_attention", **options, shared=False) == 2 * order * 24**2


def test_token_by_token_is_the_parallel_form(x64):
    """float64, a map per slot; without a tuple outputs are 0, and NaN beyond the end of the state."""
    options = {"shared": False, "strict": True, "num_heads": 2, "dtype": jnp.float64}
    mixer = mixers.make("hyper_attention", d_model=6, **options)
    x = np.random.default_rng(0).normal(size=(2, 7, 6))
    run = jax.jit(mixer.apply, compiler_options=laws.QUICKLY)
    params = meta.unbox(normals(mixer.init, x))
    whole, _ = run(params, x)
    state, tokens = mixer.init_state(2, 7), []
    for t in range(7):
        y, state = run(params, x[:, t : t + 1], state)
        tokens.append(y)
    assert_close(np.concatenate(tokens, axis=1), whole, 1e-12)
    assert not np.any(whole[:, :1])
    assert np.all(whole[:, 1:])
    assert np.all(np.isnan(run(params, x[:, :1], state)[0]))


@pytest.fixture(scope="module")
def mixed() -> laws.Runner:
    """Ordinary heads beside heads of order 2, neighbours or not, with products of values."""
    options = {"orders": (2, 1, 2), "value_product": True, "chunk_size": 5}
    return runner("hyper_feature_attention", d_model=WIDTH, **options)


def test_definition_f3_with_mixed_orders(mixed):
    """Definition F.3 and Remark F.5, head by head in float64; causal, scores over sqrt(d_a) each."""
    length, orders, channels = 9, (2, 1, 2), 4
    x = laws.inputs(1, length, WIDTH, 0)
    weights = float64_weights(mixed)
    q, k, v = (np.einsum("bnd,dhc->bnhc", np.float64(x), weights[name]) for name in "qkv")
    positions, visible = np.arange(length)[None], np.tri(length, dtype=bool)
    heads, first = [], 0
    for head, order in enumerate(orders):
        width = channels // order
        scores = np.ones((1, length, length))
        for a in range(order):
            part = slice(a * width, (a + 1) * width)
            turned = [
                oracles.rotary(h[:, :, head : head + 1, part], positions, width, 10000.0, False)
                for h in (q, k)
            ]
            scores = scores * np.einsum("bnc,bmc->bnm", *(h[:, :, 0] for h in turned)) / np.sqrt(width)
        weight = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        weight /= weight.sum(-1, keepdims=True)
        values = v[:, :, first : first + order].prod(axis=2)
        heads.append(weight @ values)
        first += order
    assert_close(mixed(x)[0], np.einsum("bnhc,hcd->bnd", np.stack(heads, 2), weights["out"]), FLOAT32)


def test_whole_rows_see_the_future():
    """The paper's form without a mask; it packs documents, and has no state."""
    run = runner("hyper_feature_attention", d_model=WIDTH, causal=False, rotary_fraction=0.0)
    x = laws.inputs(1, 6, WIDTH, 2)
    ids = np.array([[0, 0, 0, 1, 1, 1]])
    y, _ = run(x, segment_ids=ids)
    turned = x[:, [2, 1, 0, 3, 4, 5]]  # without positions the first document is a set
    assert_close(run(turned, segment_ids=ids)[0][:, [2, 1, 0, 3, 4, 5]], y, laws.TOLERANCE)
    with pytest.raises(ValueError, match="causal = False: expected True for a state"):
        run.mixer.init_state(1, 4)


def test_an_odd_head_is_of_order_1():
    assert mixers.make("hyper_feature_attention", d_model=7).layout == ((1,), 7)
    assert mixers.make("hyper_feature_attention", d_model=128).layout == ((2, 2), 64)


@pytest.mark.parametrize(
    "options",
    [
        {"order": 2, "feature_dim": 3, "norm": "none", "value_product": True},
        pytest.param({"order": 3, "feature_dim": 2}, marks=pytest.mark.release),
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
        variables = jax.tree.map(np.float64, meta.unbox(run.variables))
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
