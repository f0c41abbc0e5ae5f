"""Attention to some of the keys or scores: BigBird's pattern, blocks, random features, a conv basis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers
from based_jax.mixers.bigbird import random_cells
from based_jax.testing import laws
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


def test_random_cells_are_squares_below_the_diagonal():
    cells = np.asarray(random_cells(jax.random.key(3), 30, 12))
    with jax.enable_x64(True):
        assert np.array_equal(random_cells(jax.random.key(3), 30, 12), cells)
    assert not np.any(np.triu(cells, 1))
    assert 4 <= cells.sum() <= 48
    corners = cells[:-1, :-1] & cells[1:, :-1] & cells[:-1, 1:] & cells[1:, 1:]
    covered = np.zeros_like(cells)
    for i, j in np.argwhere(corners):
        covered[i : i + 2, j : j + 2] = True
    assert np.array_equal(cells, covered | (cells & np.eye(30, dtype=bool)))
    assert not np.any(random_cells(jax.random.key(0), 1, 5))


@pytest.mark.slow
def test_bigbird_sees_its_pattern_and_redraws_with_an_rng():
    """Outputs move with an input exactly where the pattern says so."""
    mixer = runner("bigbird", d_model=12, block_size=1, l_max=13)
    cells = np.asarray(random_cells(jax.random.key(0), 13, 3))
    i, j = np.indices((13, 13))
    pattern = (j <= i) & ((i - j <= 3) | (j < 2) | cells)
    jacobian = jax.jit(jax.jacobian(lambda x: mixer.mixer.apply(mixer.variables, x)[0].sum(-1)))
    of_outputs = np.asarray(jacobian(laws.inputs(1, 13, 12, 0)))[0, :, 0]
    assert np.array_equal(np.any(of_outputs != 0, axis=-1), pattern)
    wide = mixer.mixer.clone(block_size=2, l_max=60)
    long = jnp.asarray(laws.inputs(1, 60, 12, 1))
    draws = jax.jit(lambda key: wide.apply(mixer.variables, long, rngs={"pattern": key})[0])
    assert np.any(draws(jax.random.key(0)) != draws(jax.random.key(1)))


WIDTH = 5


def test_blocks_are_alone_and_begin_with_each_document():
    """Two documents of 7 tokens: blocks of 5 and 2, each as full attention over itself."""
    blocked = laws.Runner(mixers.make("blocked_window", d_model=6, num_heads=2, width=WIDTH))
    full = jax.jit(mixers.make("attention", d_model=6, num_heads=2).apply)
    x = laws.inputs(2, 14, 6, 0)
    y, _ = blocked(x, segment_ids=np.repeat([[0, 1]], 7, axis=1).repeat(2, axis=0))
    for begin, end in ((0, 5), (5, 7), (7, 12), (12, 14)):
        assert_close(y[:, begin:end], full(blocked.variables, x[:, begin:end])[0], FLOAT32)


@pytest.mark.slow
def test_random_features_are_not_trained():
    x = laws.inputs(2, 13, 12, 0)
    run = runner("scatterbrain", d_model=12, left=1, feature_dim=4)
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(run.mixer.apply(variables, x)[0] ** 2)))
    of_params = jax.device_get(meta.unbox(gradient(run.variables))["params"])
    assert not np.any(of_params["random_features"])
    assert np.any(of_params["q"]["kernel"])


def parameters(mixer, seed=0):
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, 8)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), meta.unbox(shapes))


def run(mixer, variables, x, **context):
    return jax.jit(mixer.apply, compiler_options=laws.QUICKLY)(variables, x, **context)[0]


@pytest.mark.release
def test_a_segment_per_token_is_attention_with_its_parameters():
    """Grouped heads and rotary positions included; as few segments are something else."""
    options = {"num_heads": 4, "num_kv_heads": 2, "rotary_fraction": 0.5, "qkv_bias": True}
    attention = mixers.make("attention", d_model=8, **options)
    variables, x = parameters(attention), laws.inputs(2, 9, 8, 0)
    expected = run(attention, variables, x)
    all_starts = mixers.make("conv_basis", d_model=8, starts=tuple(range(9)), **options)
    assert_close(run(all_starts, variables, x), expected, FLOAT32)
    few = mixers.make("conv_basis", d_model=8, **options)
    assert np.abs(run(few, variables, x) - expected).max() > 0.1
