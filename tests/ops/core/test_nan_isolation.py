"""Which values count as numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.ops.core.nan_isolation import is_number
from tests.arrays import array


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_infinity_is_no_number(dtype):
    x = array([0, -6e4, np.inf, -np.inf, np.nan], dtype)
    assert is_number(x).tolist() == [True, True, False, False, False]
