"""The filters of long convolutions beyond what the authors' numbers show (tests/parity)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax.mixers.long_filters import SineFilter
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


def test_positions_may_be_frozen():
    module = SineFilter(2, l_max=3, filter_order=2, learned_positions=False)
    params = meta.unbox(normals(functools.partial(module.init, taps=2)))
    gradients = jax.grad(lambda params: jnp.sum(module.apply(params, 3)))(params)["params"]
    assert not np.any(gradients["embedding"])
    assert np.any(gradients["out"]["kernel"])


@pytest.mark.parametrize("name", ["base_conv", "long_conv"])
def test_mixers_with_hyenas_filter(name):
    """The papers' language models have it in BaseConv (Zoology, Table 9)."""
    options = {"l_max": 5, "implicit": True, "sine_frequency": 14.0, "filter_order": 4, "slow_decay": 1.2}
    options |= {"kernel_size": -1} if name == "base_conv" else {}
    run = runner(name, d_model=2, **options)
    params = meta.unbox(run.variables)["params"]
    h = np.asarray(SineFilter(2, 5, filter_order=4, slow_decay=1.2).apply({"params": params["filter"]}, 5))
    x = laws.inputs(1, 8, 2, 0)
    conv = [sum(h[lag] * x[:, t - lag] for lag in range(min(t + 1, 5))) + x[:, t] for t in range(8)]
    conv = np.stack(conv, axis=1)
    gate = params["projection"] if name == "base_conv" else None
    expected = conv if gate is None else conv * (x @ gate["kernel"] + gate["bias"]) + x
    assert_close(run(x)[0], expected, FLOAT32)


def test_an_explicit_filter_has_no_sines():
    with pytest.raises(ValueError, match=r"sine_frequency = 1\.0: expected None for an explicit filter"):
        runner("long_conv", d_model=2, sine_frequency=1.0)


@pytest.mark.parametrize(("name", "options"), [("long_conv", {}), ("base_conv", {"kernel_size": -1})])
def test_a_filter_longer_than_the_text_gives_its_first_taps(name, options):
    long, short = (runner(name, d_model=4, l_max=taps, implicit=False, **options) for taps in (40, 6))
    params = meta.unbox(long.variables)["params"]
    short.variables = {"params": params | {"filter": {"taps": params["filter"]["taps"][:6]}}}
    x = laws.inputs(2, 6, 4, 0)
    assert_close(long(x)[0], short(x)[0], FLOAT32)


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
