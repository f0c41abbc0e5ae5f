"""HyperFeatureAttention's mixers beyond the contract: formulas, parameter counts, mixed orders, safety."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers, ops
from based_jax.mixers.linear_hyper_feature_attention import SIGNED
from tests.mixers import laws
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12


def weights_of(run: laws.Runner) -> dict[str, np.ndarray]:
    """Kernels and scales by name, in float64."""
    params = nn.meta.unbox(run.variables)["params"]
    return {name: np.float64(jax.tree.leaves(value)[0]) for name, value in params.items()}


def parameters(name: str, **options) -> int:
    mixer = mixers.make(name, **options)
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, mixer.d_model)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4 * 64**2),
        ({"num_heads": 4, "orders": 4}, 4 * 64**2),
        ({"orders": (1, 1, 2, 2)}, 4 * 64**2),
        ({"num_heads": 2, "orders": 4, "value_product": True}, (3 + 4) * 64**2),
        ({"orders": (1, 2, 4, 1), "value_product": True}, 3 * 64**2 + 64 * 8 * 16),
    ],
)
def test_parameters_are_the_papers(options, expected):
    """Remark F.4: as many as attention; a product of values costs d d_h for each factor of each head."""
    assert parameters("hyper_feature_attention", d_model=64, **options) == expected


def test_order_1_is_the_attention_mixer():
    """The same parameters, rotary embeddings and outputs."""
    run = laws.Runner(mixers.make("hyper_feature_attention", d_model=WIDTH, num_heads=2, orders=1))
    attention = laws.Runner(mixers.make("attention", d_model=WIDTH, num_heads=2))
    x = laws.inputs(2, 9, WIDTH, 0)
    assert_close(*(nn.meta.unbox(runner.variables) for runner in (run, attention)), 0.0)
    assert_close(run(x)[0], attention(x)[0], 1e-6)  # the same sums, blocked differently


@pytest.fixture(scope="module")
def mixed() -> laws.Runner:
    """Ordinary heads beside heads of order 2, neighbours or not, with products of values."""
    mixer = mixers.make(
        "hyper_feature_attention", d_model=WIDTH, orders=(2, 1, 2), value_product=True, chunk_size=5
    )
    return laws.Runner(mixer)


def test_definition_f3_with_mixed_orders(mixed):
    """Definition F.3 and Remark F.5, head by head in float64; causal, scores over sqrt(d_a) each."""
    length, orders, channels = 9, (2, 1, 2), 4
    x = laws.inputs(1, length, WIDTH, 0)
    weights = weights_of(mixed)
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


def test_mixed_orders_continue_from_their_caches(mixed):
    x = laws.inputs(laws.ROWS, laws.LENGTH, WIDTH, 1)
    laws.split_law(mixed, x, [6, 1, 6])
    caches = mixed.fresh(1).caches
    assert len(caches) == 3
    floats = sum(cache.k.size + cache.v.size for cache in caches)
    assert floats == mixed.mixer.state_size(laws.MAX_LENGTH) == 2 * WIDTH * laws.MAX_LENGTH


def test_whole_rows_see_the_future():
    """The paper's form without a mask; it packs documents, and has no state."""
    mixer = mixers.make("hyper_feature_attention", d_model=WIDTH, causal=False, rotary_fraction=0.0)
    run = laws.Runner(mixer)
    x = laws.inputs(1, 6, WIDTH, 2)
    ids = np.array([[0, 0, 0, 1, 1, 1]])
    y, _ = run(x, segment_ids=ids)
    turned = x[:, [2, 1, 0, 3, 4, 5]]  # without positions the first document is a set
    assert_close(run(turned, segment_ids=ids)[0][:, [2, 1, 0, 3, 4, 5]], y, laws.TOLERANCE)
    with pytest.raises(ValueError, match="causal = False: expected True for a state"):
        mixer.init_state(1, 4)


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
    run = laws.Runner(mixers.make("linear_hyper_feature_attention", d_model=WIDTH, num_heads=2, **options))
    length, order, width = 7, options["order"], options["feature_dim"]
    x = laws.inputs(2, length, WIDTH, 0)
    weights = weights_of(run)
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
    for name, phi in ops.FEATURE_MAPS.items():
        q, k = (np.asarray(phi.features(jnp.asarray(part)), np.float64) for part in x)
        assert (name in SIGNED) == np.any(q @ k.T < 0), name


@pytest.mark.parametrize(
    ("options", "length", "expected"),
    [
        ({"d_model": 64}, 100, 256 * 64),
        ({"d_model": 64, "order": 3, "feature_map": "relu", "norm": "sum"}, 100, 512 * (64 + 1)),
        ({"d_model": 128, "num_heads": 2, "feature_dim": 8, "norm": "none"}, 100, 2 * 64 * 64),
    ],
)
def test_the_linear_state_has_a_row_for_each_product(options, length, expected):
    mixer = mixers.make("linear_hyper_feature_attention", **options)
    assert mixer.state_size(length) == expected
    state = jax.eval_shape(lambda: mixer.init_state(1))
    assert state.kv.size + state.k.size * (mixer.norm == "sum") == expected


def test_an_odd_head_is_of_order_1():
    assert mixers.make("hyper_feature_attention", d_model=7).layout == ((1,), 7)
    assert mixers.make("hyper_feature_attention", d_model=128).layout == ((2, 2), 64)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "hyper_feature_attention",
            {"orders": 3},
            "channels of a head = 8: expected a mult.* order = 3",
        ),
        (
            "hyper_feature_attention",
            {"orders": 0},
            "orders = 0: expected None or at least 1",
        ),
        (
            "hyper_feature_attention",
            {"num_heads": 4, "orders": (1, 2)},
            r"orders = \(1, 2\): expected an order for each of the 4 heads",
        ),
        ("hyper_feature_attention", {"orders": (1, 1, 2)}, "d_model = 8: expected a multiple of num_heads"),
        ("hyper_feature_attention", {"rotary_fraction": 1.5}, "rotary_fraction = 1.5: expected at least 0"),
        (
            "linear_hyper_feature_attention",
            {"norm": "sum"},
            "norm = 'sum': expected 'rms' or 'none' with feature_map = 'identity'",
        ),
        ("linear_hyper_feature_attention", {"feature_map": "softmax"}, "feature_map = 'softmax': expected"),
        ("linear_hyper_feature_attention", {"norm": "batch"}, "norm = 'batch': expected one of"),
        ("linear_hyper_feature_attention", {"order": 0}, "order = 0: expected at least 1"),
        ("linear_hyper_feature_attention", {"feature_dim": 0}, "feature_dim = 0: expected .*at least 1"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(mixers.make(name, d_model=8, **options).init, jax.random.key(0), jnp.zeros((1, 2, 8)))
