"""BigBird: its pattern of local, global and random cells."""

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers.bigbird import random_cells
from based_jax.testing import laws
from tests.mixers.built import runner


def test_random_cells_are_squares_below_the_diagonal():
    cells = np.asarray(random_cells(jax.random.key(3), 30, 12))
    assert not np.any(np.triu(cells, 1))
    assert 4 <= cells.sum() <= 48
    corners = cells[:-1, :-1] & cells[1:, :-1] & cells[:-1, 1:] & cells[1:, 1:]
    covered = np.zeros_like(cells)
    for i, j in np.argwhere(corners):
        covered[i : i + 2, j : j + 2] = True
    assert np.array_equal(cells, covered | (cells & np.eye(30, dtype=bool)))
    assert not np.any(random_cells(jax.random.key(0), 1, 5))


def test_it_sees_its_pattern_and_redraws_with_an_rng():
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
