"""All layers are drawn by one program: the same distribution, independent layers, the right shapes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

import based_jax as bj
from based_jax.mixers.draws import draw_standard_normal, draw_standard_uniform
from based_jax.models import MixerSpec
from based_jax.models.initial import draw_by_kind, draw_layers, draw_tables
from based_jax.models.language_model import layer_kinds
from based_jax.models.stream import draw_by_stream
from based_jax.models.threefry import normal_values, threefry, uniform_values
from based_jax.models.traced_init import ROW, trace

TOKENS = jnp.zeros((1, 4), jnp.int32)
CONFIG = bj.ModelConfig(
    vocab_size=32,
    d_model=32,
    schedule="CCSRRC",
    mixers={
        "C": MixerSpec("gated_conv"),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
        "R": MixerSpec("rwkv4"),
    },
    mlp_hidden=32,
)


@pytest.fixture(scope="module")
def params():
    return jax.jit(bj.LanguageModel(CONFIG).init)(jax.random.key(0), TOKENS)["params"]


def test_kinds_of_layers():
    """RWKV's initial values depend on the depth."""
    assert layer_kinds(CONFIG) == [[0, 1, 5], [2], [3], [4]]


def test_draws_do_not_depend_on_other_layers(params):
    """So that a program for some layers, as for `param_shapes`, agrees."""
    shorter = bj.LanguageModel(CONFIG.replace(schedule="CCS", init_std=CONFIG.init_std))
    own = jax.jit(shorter.init)(jax.random.key(0), TOKENS)["params"]
    for layer in ("layers_0", "layers_1"):
        kernels = [jax.tree.leaves(each[layer]["mixer"]["in_proj"]["kernel"])[0] for each in (params, own)]
        np.testing.assert_array_equal(*kernels)


def test_layers_are_independent_with_the_configured_deviation(params):
    kernels = [
        np.asarray(jax.tree.leaves(params[f"layers_{layer}"]["mixer"]["in_proj"]["kernel"])[0]).ravel()
        for layer in (0, 1, 5)
    ]
    assert np.std(kernels, axis=1) == pytest.approx(CONFIG.init_std, rel=0.1)
    assert np.abs(np.corrcoef(kernels) - np.eye(3)).max() < 0.1


def test_init_with_output_is_apply_of_init():
    model = bj.LanguageModel(CONFIG.replace(schedule="CSC"))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    (logits, _), others = jax.jit(model.init_with_output)(jax.random.key(0), TOKENS)
    chex.assert_trees_all_equal(variables, others)
    np.testing.assert_allclose(logits, jax.jit(model.apply)(variables, TOKENS)[0], atol=1e-5)


def draw(key):
    return {
        "normal": 3 * draw_standard_normal(key, (2, ROW)),
        "ones": jnp.ones(2),
        "key": jax.random.bits(key, (2,)),
        "uniform": draw_standard_uniform(key, (5,)),
    }


@pytest.fixture(scope="module")
def drawn():
    """Two layers of `draw` and one of another kind, and tables by the same function."""
    kinds = [[0, 4], [2]]

    @jax.jit
    def run(key):
        layers = draw_layers([draw, lambda key: draw(key)["normal"][:, :3]], kinds, key)
        return layers, draw_tables(draw, 7, key)

    return run(jax.random.key(1))


@pytest.mark.parametrize("number", [0, 4, 7])
def test_draws_are_those_of_the_counters(drawn, number):
    """Normal draws count from 0, uniform ones from the next full row."""
    layers, table = drawn
    own, key = table if number == 7 else layers[number], jax.random.key(1)
    words, index = jax.random.key_data(key), np.arange(3 * ROW, dtype=np.uint32)
    np.testing.assert_allclose(
        own["normal"].ravel(), 3 * normal_values(words, number, index[: 2 * ROW]), rtol=1e-5
    )
    assert own["uniform"].tolist() == uniform_values(words, number, index[2 * ROW :][:5]).tolist()
    assert own["ones"].tolist() == [1, 1]
    assert own["key"].tolist() == jax.random.bits(jax.random.fold_in(key, number), (2,)).tolist()


def test_devices_draw_what_one_cpu_draws():
    """Without the stream; the tolerance is that of the products, which XLA may fuse otherwise."""
    key, kinds = jax.random.key(1), [[0, 3], [1]]
    found = [
        jax.jit(lambda key, draws=draws: draws([trace(draw, key)] * 2, kinds, key, jax.random.key_data(key)))(
            key
        )
        for draws in (draw_by_stream, draw_by_kind)
    ]
    chex.assert_trees_all_close(*found, rtol=1e-5)


def test_layers_of_other_kinds_have_their_own_draws(drawn):
    words = jax.random.key_data(jax.random.key(1))
    both = [
        3 * normal_values(words, 2, np.uint32(start) + np.arange(3, dtype=np.uint32)) for start in (0, ROW)
    ]
    np.testing.assert_allclose(drawn[0][2], both, rtol=1e-5)


def test_values_have_their_distributions():
    """Kolmogorov-Smirnov distances below 1.63 / sqrt(n), the 1 % level; the seed is fixed."""
    count = 100_000
    words, index = jax.random.key_data(jax.random.key(0)), np.arange(count, dtype=np.uint32)
    for values, distribution in ((normal_values, "norm"), (uniform_values, stats.uniform(-1, 2).cdf)):
        drawn = np.asarray(jax.jit(values)(words, 1, index), np.float64)
        assert stats.kstest(drawn, distribution).statistic < 1.63 / count**0.5
        assert np.abs(drawn).max() > (4 if values is normal_values else 1 - 1e-4)
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / count**0.5


def test_threefry_is_that_of_jax():
    words, high = jax.random.key_data(jax.random.key(3)), np.full(9, 5, np.uint32)
    low = np.arange(9, dtype=np.uint32)
    expected = threefry_2x32(words, np.concatenate([high, low]))[:9]
    assert threefry(words, 5, low).tolist() == expected.tolist()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_runs_under_vmap_draw_as_alone(implementation):
    """Keys of jax's other generators seed the same one, which does not mix the runs of a batch."""
    model = bj.LanguageModel(CONFIG.replace(schedule="CC"))
    keys = jax.vmap(lambda seed: jax.random.key(seed, impl=implementation))(jnp.arange(2))
    together = jax.jit(jax.vmap(model.init, (0, None)))(keys, TOKENS)
    alone = jax.jit(model.init)(keys[1], TOKENS)
    jax.tree.map(lambda both, one: np.testing.assert_array_equal(both[1], one), together, alone)
