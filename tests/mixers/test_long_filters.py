"""Long convolutions beyond what the authors' numbers show (tests/parity): their filters, and Hyena."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax.mixers.long_filters import SineFilter
from based_jax.testing import laws
from tests.arrays import normals
from tests.marks import slow_but
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


def test_positions_may_be_frozen():
    module = SineFilter(2, l_max=3, filter_order=2, learned_positions=False)
    params = meta.unbox(normals(functools.partial(module.init, taps=2)))
    gradients = jax.jit(jax.grad(lambda params: jnp.sum(module.apply(params, 3))))(params)["params"]
    assert not np.any(gradients["embedding"])
    assert np.any(gradients["out"]["kernel"])


def test_phases_keep_the_digits_of_float32():
    """A GPU multiplies in TF32 by default, and sines multiply its error: only the last product may be so."""
    module = SineFilter(2, l_max=3, filter_order=2)
    lowered = jax.jit(functools.partial(module.init_with_output, taps=3)).lower(jax.random.key(0)).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line]
    assert ["HIGHEST" in line for line in products] == [True, True, True, False]


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
        for is_finite in (True, fits):
            y, state = convolution(x[:, :1], state)
            assert np.isfinite(y).all() == is_finite


def hyena_by_hand(mixer, params, x):
    """One row, token by token and head by head, in float64; order 2 with heads, or order n without."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    length, width = x.shape
    p, parts = mixer.head_dim, mixer.order + 1
    heads = width // p
    inner = np.einsum("nd,dpe->npe", x, params["in_proj"]["kernel"]) + params["in_proj"]["bias"]
    inner = inner.reshape(length, -1)
    taps = params["conv_kernel"]
    padded = np.concatenate([np.zeros((len(taps) - 1, inner.shape[1])), inner])
    short = [(taps * padded[t : t + len(taps)]).sum(0) + params["conv_bias"] for t in range(length)]
    *gates, v = np.moveaxis(np.reshape(short, (length, parts, heads, p)), 1, 0)

    f, w = params["filter"], params["filter"]["frequency"]
    h = np.sin(w * (f["embedding"] @ f["in_proj"]["kernel"] + f["in_proj"]["bias"]))
    for layer in range(mixer.num_inner_mlps):
        h = np.sin(w * (h @ f[f"inner_{layer}"]["kernel"] + f[f"inner_{layer}"]["bias"]))
    channels = heads * (mixer.order - 1)
    decay = np.log(0.01) / np.array([mixer.slow_decay, mixer.fast_decay])
    time = np.linspace(0, 1, mixer.l_max)[:, None]
    h = h @ f["out"]["kernel"] * np.exp(time * np.linspace(*decay, channels))
    filters, skips = np.split(h, mixer.order - 1, axis=1), np.split(params["skip"], mixer.order - 1)
    for gate, h, skip, following in zip(gates, filters, skips, gates[1:], strict=False):
        product = np.einsum("nha,nhb->nhab", gate, v)
        convolved = [
            sum(h[s][:, None, None] * product[t - s] for s in range(t + 1)) + skip[:, None, None] * product[t]
            for t in range(length)
        ]
        last = following is gates[-1]
        v = np.einsum("nha,nhab->nhb", following if last else np.ones_like(following), np.array(convolved))
    return v.reshape(length, width) @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.mark.release
@pytest.mark.parametrize("options", slow_but([{"num_heads": 2}], [{"num_heads": 2}, {"order": 3}]), ids=str)
def test_hyena_with_heads_and_of_higher_order(options):
    hyena = runner("hyena", d_model=4, l_max=20, filter_order=5, emb_dim=5, **options)
    x = laws.inputs(1, 9, 4, 2)
    y = laws.packed(hyena, x)
    params = meta.unbox(hyena.variables)["params"]
    assert_close(y[0], hyena_by_hand(hyena.mixer, params, x[0]), FLOAT32)
    laws.split_law(hyena, x, [1, 4, 4])
    assert hyena.mixer.state_size(16) == 2 * 4 * 16  # p = 2, or two convolutions


@pytest.mark.release
def test_hyena_ends_at_l_max():
    hyena = runner("hyena", d_model=4, l_max=8, filter_order=5)
    x = laws.inputs(2, 9, 4, 3)
    with pytest.raises(ValueError, match="length = 9: expected at most l_max = 8 tokens, the length of the"):
        hyena.mixer.apply(hyena.variables, x)
    index = np.arange(6)
    _, state = hyena(x[:, :6], hyena.fresh(2), mask=index < np.array([[6], [3]]))
    with pytest.raises(ValueError, match="length = 9: expected at most l_max = 8 tokens"):
        hyena.mixer.apply(hyena.variables, x[:, :3], state)
    # Under jit no error is possible: NaN where the row is too long.
    y, state = hyena(x[:, :6], state, mask=index < np.array([[3], [3]]))
    assert np.isnan(y[0, :3]).all()
    assert np.isfinite(y[1, :3]).all()
    assert state.long[0].inputs.shape == (2, 8, 4)
