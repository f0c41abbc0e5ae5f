"""LongConv: explicit and implicit filters, and states of another length than the filter's."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import meta

from based_jax.testing import laws
from tests.mixers.built import runner, with_first_taps
from tests.tolerances import FLOAT32, assert_close


def test_a_filter_longer_than_the_text_gives_its_first_taps():
    long, short = (runner("long_conv", d_model=4, l_max=length, implicit=False) for length in (40, 6))
    x = laws.inputs(2, 6, 4, 0)
    assert_close(long(x)[0], with_first_taps(short, long)(x)[0], FLOAT32)


def test_implicit_filters_are_mlps_and_their_positions_stay():
    convolution = runner("long_conv", d_model=4, l_max=9, implicit=True)
    params = jax.tree.map(np.asarray, meta.unbox(convolution.variables))["params"]["filter"]
    hidden = np.maximum(params["embedding"] @ params["in_proj"]["kernel"] + params["in_proj"]["bias"], 0)
    taps = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    x = laws.inputs(1, 7, 4, 1)
    expected = x[0] + [sum(taps[s] * x[0, t - s] for s in range(t + 1)) for t in range(7)]
    assert_close(convolution(x)[0][0], expected, FLOAT32)

    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(convolution.mixer.apply(variables, x)[0] ** 2)))
    of_filter = meta.unbox(gradient(convolution.variables))["params"]["filter"]
    assert not np.any(of_filter["embedding"])
    assert np.any(of_filter["in_proj"]["kernel"])


def test_a_state_shorter_than_the_filter():
    """It holds max_length inputs; a filter of that many taps needs no more, however long the text is."""
    x = laws.inputs(1, 3, 4, 4)
    for taps, fits in ((9, False), (4, True)):
        convolution = runner("long_conv", d_model=4, l_max=taps)
        state = convolution.mixer.init_state(1, 4)
        assert state.inputs.shape == (1, 4, 4)
        _, state = convolution(x, state)
        y, _ = convolution(x, state)
        assert np.isfinite(y).all() == fits
