"""The feature maps: formulas and gradients, the Taylor map's two layouts, attention, and those of users."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import based_jax as bj
from based_jax import ops
from based_jax.mixers import LinearAttention
from based_jax.ops.feature_maps import MAPS
from based_jax.testing import check_mixer
from based_jax.testing.laws import QUICKLY
from tests.arrays import array
from tests.marks import release_but
from tests.ops import draw, oracles
from tests.tolerances import FINITE_DIFFERENCE, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close


@jax.jit
def everything(q, k):
    """One small program per width."""
    symmetric = ops.symmetric_taylor_features(q)
    return {
        "full": ops.taylor_features(q),
        "symmetric": symmetric,
        "converted": ops.symmetric_to_full(symmetric, q.shape[-1]),
        "converted sum": ops.symmetric_to_full(symmetric.sum(0), q.shape[-1]),
        "products": [
            features(q) @ features(k).T
            for features in (ops.taylor_features, ops.symmetric_taylor_features, ops.TAYLOR.features)
        ],
        "similarity": ops.TAYLOR.similarity(q @ k.T, q.shape[-1]),
    }


@pytest.mark.parametrize("width", release_but([3], [1, 2, 3, 5, 8]))
def test_features_factor_the_polynomial_in_both_layouts(width):
    """phi(q) . phi(k) = 1 + s + s^2 / 2 >= 1/2 with s = q . k / sqrt(K); the layouts are the papers'."""

    @given(draw.seeds)
    def law(seed):
        q, k = np.random.default_rng(seed).normal(size=(2, 4, width))
        s = q @ k.T / np.sqrt(width)
        polynomial = 1 + s + s**2 / 2
        assert polynomial.min() >= 0.5
        full = oracles.taylor_features(q)
        with jax.enable_x64(True):
            got = everything(array(q), array(k))
        expected = {
            "full": full,
            "symmetric": oracles.symmetric_taylor_features(q),
            "converted": full,
            "converted sum": full.sum(0),  # the conversion is linear: sums, such as states, convert too
            "products": [polynomial] * 3,
            "similarity": polynomial,
        }
        assert_close(got, expected, FLOAT64)

    law()


# The other maps. (B, N, H, K) = (2, 11, 2, 3); `projections` are those of performer and all_poly, F = 5.

WIDTH, FEATURES, LENGTH = 3, 5, 11


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _performer(x, projections):
    x = x / WIDTH**0.25
    norm = np.exp(-(x**2).sum(-1, keepdims=True) / 2)
    return norm / np.sqrt(FEATURES) * np.exp(x @ projections[0].T)


def _cosformer(x, projections):
    angle = (np.pi / 2 * np.arange(1, LENGTH + 1) / (2 * LENGTH))[:, None, None]
    x = np.maximum(x, 0)
    return np.concatenate([x * np.sin(angle), x * np.cos(angle)], axis=-1)


def _positive_part(x):
    e = np.exp(np.abs(x) - np.abs(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _exp_sum(x, p):
    """Both features of a channel side by side."""
    sides = np.stack([x >= 0, x < 0], axis=-1) * _positive_part(x)[..., None]
    return np.maximum(sides.reshape(*x.shape[:-1], -1), 1e-12)


def _exp_max(x, p):
    x = x - x.max(-1, keepdims=True)
    return np.exp(np.maximum(np.concatenate([x, -x], -1), 1e-12))


FORMULAS = {
    "all_poly": lambda x, p: ((x @ p[0].T) ** 2 + x**2 @ p[1].T) / np.sqrt(2),
    "cosformer": _cosformer,
    "exp_dim": lambda x, p: np.exp(np.maximum(np.concatenate([x, -x], -1), 1e-12)),
    "exp_half": lambda x, p: np.exp(x),
    "exp_max": _exp_max,
    "exp_max_half": lambda x, p: np.exp(x - x.max(-1, keepdims=True)),
    "exp_sum": _exp_sum,
    "exp_sum_half": lambda x, p: np.maximum((x >= 0) * _positive_part(x), 1e-12),
    "full_space": lambda x, p: np.maximum(np.concatenate([x, -x], -1), 1e-12),
    "identity": lambda x, p: x,
    "performer": _performer,
    "pos_elu": lambda x, p: np.where(x > 0, x, np.expm1(x)) + 1,
    "relu": lambda x, p: np.maximum(x, 1e-12),
    "softmax_dim": lambda x, p: np.concatenate([_softmax(x), _softmax(-x)], -1),
    "softmax_half": lambda x, p: _softmax(x),
    "square": lambda x, p: x**2,
    "squared_map": lambda x, p: x**2 / np.sqrt(2),
    "taylor": lambda x, p: oracles.symmetric_taylor_features(x),
}
"""In NumPy, as the papers write them."""


def ours(name, projections) -> ops.FeatureMap:
    match name:
        case "performer":
            return ops.performer_map(projections[0])
        case "all_poly":
            return ops.all_poly_map(*projections)
        case "cosformer":  # of whole rows that are half as long as the longest
            positions = array(np.arange(LENGTH, dtype=np.int32)[None])
            return ops.FeatureMap(
                lambda x: ops.cosformer_features(x, positions, 2 * LENGTH), None, lambda width: 2 * width
            )
    return ops.feature_maps.FEATURE_MAPS[name]


def test_a_floor_that_most_features_are_below():
    for name in ops.feature_maps.FLOORED:
        x = np.random.default_rng(0).normal(size=(4, WIDTH)).astype(np.float32)
        features = np.asarray(ops.feature_map(name).features(array(x)))
        # exp_dim and exp_max have the floor in the exponent.
        floored = np.maximum(features, np.exp(0.9) if name in ("exp_dim", "exp_max") else 0.9)
        assert np.any(floored != features)
        assert_close(ops.feature_map(name, 0.9).features(array(x)), floored, FLOAT32)


def test_every_map_has_a_formula():
    assert set(ops.feature_maps.FEATURE_MAPS) | {"all_poly", "cosformer", "performer"} == set(FORMULAS)


@functools.partial(jax.jit, static_argnames="name", compiler_options=QUICKLY)
def value_and_slope(x, projections, weights, *, name):
    """Features, and the gradient of their weighted sum."""

    def loss(x, projections):
        features = ours(name, projections).features(x)
        return (weights * features).sum(), features

    (_, features), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, projections)
    return features, gradients


@pytest.mark.parametrize("name", FORMULAS)
def test_features_are_the_formulas(name):
    """Values, sizes, gradients by central differences along a random direction; float32."""

    @given(draw.seeds)
    def law(seed):
        rng = np.random.default_rng(seed)
        x, dx = rng.normal(size=(2, 2, LENGTH, 2, WIDTH))
        projections, dp = rng.normal(size=(2, 2, FEATURES, WIDTH))
        expected = FORMULAS[name](x, projections)
        weights = rng.normal(size=expected.shape)
        assert ours(name, array(projections)).size(WIDTH) == expected.shape[-1]
        with jax.enable_x64(True):
            features, (gx, gp) = value_and_slope(x, projections, weights, name=name)
        assert_close(features, expected, FLOAT64)
        step = 1e-5
        ahead, after = (
            (weights * FORMULAS[name](x + s * dx, projections + s * dp)).sum() for s in (step, -step)
        )
        slope = np.vdot(gx, dx) + np.vdot(gp, dp)
        assert_close(slope, (ahead - after) / (2 * step), FINITE_DIFFERENCE, magnitude=np.abs(weights).sum())

        single = (np.asarray(array, np.float32) for array in (x, projections, weights))
        features32, (gx32, _) = value_and_slope(*single, name=name)
        assert features32.dtype == jnp.float32
        assert_close(features32, expected, FLOAT32)
        assert_close(gx32, gx, FLOAT32_GRADIENT)

    law()


EXTREMES = np.array([0.0, 1e-8, -1e-8, 20.0, -20.0, 1e3, -1e3], np.float32)


@pytest.mark.parametrize(
    "name",
    release_but(["cosformer", "performer"], ["cosformer", "exp_max", "exp_sum", "performer", "taylor"]),
)
def test_extreme_queries_and_keys(name):
    """Features that vanish or saturate: everything is finite, gradients too, and y is an average of v."""
    rng = np.random.default_rng(0)
    q, k = rng.choice(EXTREMES, size=(2, 2, LENGTH, 2, WIDTH))
    q[:, 3], k[:, 3], q[0, 5], k[:, :2] = 0, -20, -1e3, 0
    v = rng.normal(size=q.shape).astype(np.float32)
    projections = ops.orthogonal_features(jax.random.key(0), (FEATURES, WIDTH))

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def run(q, k, v):
        phi = ours(name, [projections])
        y = ops.linear_attention(phi.features(q), phi.features(k), v)
        return y.sum(), y

    (_, y), gradients = run(q, k, v)
    assert np.all(np.abs(y) <= 1.001 * np.abs(v).max())
    chex.assert_tree_all_finite(gradients)


@pytest.mark.parametrize(("size", "width", "dtype"), [(10, 4, jnp.float32), (3, 4, jnp.bfloat16)])
def test_random_directions_are_orthogonal(size, width, dtype):
    """Blocks of K rows; Performer's features in Zoology: |W_f|^2 = K / F."""
    rows = ops.orthogonal_features(jax.random.key(1), (size, width), dtype)
    assert rows.shape == (size, width)
    assert rows.dtype == dtype
    rows = np.asarray(rows, np.float64)
    products = rows @ rows.T * size / width
    block = np.arange(size) // width
    same = block[:, None] == block
    # 8 bits of bfloat16 in each of two factors
    assert_close(np.where(same, products, 0), np.eye(size), FLOAT32 if dtype == jnp.float32 else 2**-7)


def test_cosformer_weighs_by_distance():
    """phi(q_i).phi(k_j) = relu(q_i).relu(k_j) cos(pi (i - j) / (2 M)); wherever the text begins."""
    rng = np.random.default_rng(3)
    q, k = array(rng.normal(size=(2, 1, 6, 2, WIDTH)), jnp.float32)
    index = jnp.arange(6)[None]
    cosformer = jax.jit(ops.cosformer_features, static_argnames="max_length", compiler_options=QUICKLY)
    for begin in (0, 4):
        phi_q, phi_k = (cosformer(x, index + begin, 10) for x in (q, k))
        products = jnp.einsum("bihf,bjhf->bhij", phi_q, phi_k)
        distance = np.arange(6)[:, None] - np.arange(6)
        plain = np.einsum("bihf,bjhf->bhij", np.maximum(q, 0), np.maximum(k, 0))
        assert_close(products, plain * np.cos(np.pi * distance / 20), FLOAT32)
    assert np.all(np.isnan(cosformer(q, index, 5)[:, 5]))
    np.testing.assert_array_equal(cosformer(q, index.astype("int8"), 256), cosformer(q, index, 256))


@pytest.fixture
def registered(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(MAPS, "entries", dict(MAPS.entries))


def doubled(x):
    return jnp.concatenate([jnp.exp(x), jnp.exp(-x)], axis=-1)


def test_a_registered_map_is_that_of_the_op_and_the_mixer(registered):
    bj.feature_maps.register("doubled")(doubled)
    assert "doubled" in bj.feature_maps.names()
    mixer = LinearAttention(12, num_heads=2, feature_dim=4, feature_map="doubled")
    assert mixer.init_state(3).kv.shape == (3, 2, 8, 6)
    q, k, v = np.float32(np.random.default_rng(0).normal(size=(3, 2, LENGTH, 2, WIDTH)))
    phi_q, phi_k = (np.exp(np.concatenate([x, -x], axis=-1)) for x in (q, k))
    y = jax.jit(functools.partial(ops.linear_attention, feature_map=ops.feature_map("doubled")))(q, k, v)
    assert_close(y, oracles.linear_attention(phi_q, phi_k, v)[0], FLOAT32)


def test_a_map_that_reads_other_tokens_breaks_a_law(registered):
    bj.feature_maps.register("wrong")(lambda x: jnp.exp(x - x.max(axis=-2, keepdims=True)))
    with pytest.raises(AssertionError):
        check_mixer(LinearAttention, num_heads=2, feature_dim=4, feature_map="wrong")


def test_a_config_takes_it_at_once(registered):
    bj.feature_maps.register("doubled")(doubled)
    config = bj.presets.get("based-tiny").with_mixer("linear_attention", feature_map="doubled")
    assert bj.ModelConfig.from_dict(config.to_dict()) == config
    bj.feature_maps.register("doubled")(doubled)  # again, as a notebook does


@pytest.mark.release
def test_a_map_registered_again_replaces_compiled_ones(registered):
    def define(factor):
        def phi(x):
            return jnp.exp(factor * x)

        bj.feature_maps.register("scaled")(phi)

    define(1.0)
    mixer, x = LinearAttention(8, feature_map="scaled", init_std=1.0), jnp.arange(32.0).reshape(1, 4, 8) / 32
    variables = mixer.init(jax.random.key(0), x)
    first, _ = mixer.apply(variables, x)
    define(-2.0)
    second, _ = mixer.apply(variables, x)
    assert_close(second, jax.jit(mixer.apply)(variables, x)[0], FLOAT32)
    assert jnp.abs(first - second).max() > 1e-2


def test_a_feature_map_with_a_similarity(registered):
    phi = bj.ops.FeatureMap(lambda x: x * x, None, lambda width: width)
    assert bj.feature_maps.register("mine")(phi) is phi
    assert bj.ops.feature_map("mine") is phi


@pytest.mark.parametrize("name", ["relu", "performer"])
def test_a_name_that_is_taken_is_refused(name, registered):
    with pytest.raises(ValueError, match=f"name = '{name}': expected a"):
        bj.feature_maps.register(name)(doubled)
    bj.feature_maps.register("doubled")(doubled)
    with pytest.raises(ValueError, match=r"name = 'doubled': expected a name that .*doubled does not have"):
        bj.feature_maps.register("doubled")(lambda x: x)


@pytest.mark.parametrize("phi", [lambda q, k: q * k, lambda: 1, 3])
def test_what_is_not_a_function_of_one_array_is_refused(phi, unchecked, registered):
    with pytest.raises(TypeError, match=r"feature map 'x' = .*: expected a function of one array"):
        bj.feature_maps.register("x")(phi)


@pytest.mark.parametrize("phi", [lambda x: x.sum(-1), lambda x: x[0], lambda x: x > 0, lambda x: (x, x)])
def test_results_of_another_shape_or_dtype_are_refused(phi, registered):
    bj.feature_maps.register("x")(phi)
    mixer = LinearAttention(12, num_heads=2, feature_dim=4, feature_map="x")
    with pytest.raises(ValueError, match=r"feature map 'x' of x, \(2, 3, 4\), = .*: expected floating"):
        mixer.init_state(1)
