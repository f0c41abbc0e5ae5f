"""What the tests of kernels rely on: where kernels are interpreted, and that unwritten elements show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_kernels.launch import interpreted, is_interpreted, launch, load, store
from tests.kernels.toy import run_whole


def test_interpreted_is_scoped():
    assert not is_interpreted()
    with interpreted():
        with interpreted():
            assert is_interpreted()
        assert is_interpreted()
    assert not is_interpreted()


def test_without_a_gpu_a_kernel_does_not_run_in_silence():
    with pytest.raises(ValueError, match="interpret"):
        run_whole(lambda x, y: store(y, (slice(None),), x[...]), jnp.ones(8), size=(8,))


def test_elements_that_nobody_writes_are_nan():
    def body(x_ref, y_ref):
        store(y_ref, (slice(None),), x_ref[...], jnp.arange(8) < 5)

    with interpreted():
        y = run_whole(body, jnp.ones(8), size=(8,))
    assert np.array_equal(np.isnan(y), np.arange(8) >= 5)


def test_masked_elements_are_not_read():
    """A block larger than the array: behind the edge is NaN here and another array on a GPU."""

    def body(x_ref, y_ref):
        store(y_ref, (slice(None),), load(x_ref, (pl.ds(0, 8),), jnp.arange(8) < 5, other=2))

    with interpreted():
        y = launch(
            body,
            jnp.arange(5.0),
            grid=(1,),
            in_specs=[pl.BlockSpec((8,), lambda i: (0,))],
            out_specs=pl.BlockSpec((8,), lambda i: (0,)),
            out_shape=jax.ShapeDtypeStruct((8,), jnp.float32),
            warps=1,
            name="test",
        )
    assert y.tolist() == [0, 1, 2, 3, 4, 2, 2, 2]
