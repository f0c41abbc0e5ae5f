import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.ops.tiled_attention import row_max, row_sum


@pytest.mark.parametrize("size", [32, 96, 100])
def test_rows_are_reduced_as_by_numpy(size):
    x = np.random.default_rng(0).standard_normal((3, 2, size)).astype(np.float32)
    np.testing.assert_array_equal(row_max(jnp.asarray(x)), x.max(axis=-1))
    np.testing.assert_allclose(row_sum(jnp.asarray(x)), x.sum(axis=-1), rtol=1e-5, atol=1e-5)


def test_long_rows_are_not_reduced_in_windows():
    """XLA's CPU compiler rewrites a reduction of more than 32 neighbours into windows, which are slow."""
    compiled = jax.jit(row_max).lower(jax.ShapeDtypeStruct((64, 256), np.float32)).compile().as_text()
    assert compiled is not None
    assert "reduce-window" not in compiled
