"""Hyena with heads and of higher order against a loop over tokens, and its longest text."""

import jax
import numpy as np
import pytest
from flax.linen import meta

from based_jax.testing import laws
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


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


@pytest.mark.parametrize("options", [{"num_heads": 2}, {"order": 3}], ids=str)
def test_hyena_with_heads_and_of_higher_order(options):
    hyena = runner("hyena", d_model=4, l_max=20, filter_order=5, emb_dim=5, **options)
    x = laws.inputs(1, 9, 4, 2)
    y, _ = hyena(x)
    params = meta.unbox(hyena.variables)["params"]
    assert_close(y[0], hyena_by_hand(hyena.mixer, params, x[0]), FLOAT32)
    laws.split_law(hyena, x, [1, 4, 4])
    assert hyena.mixer.state_size(16) == 2 * 4 * 16  # p = 2, or two convolutions


def test_hyena_ends_at_l_max():
    hyena = runner("hyena", d_model=4, l_max=8, filter_order=5)
    x = laws.inputs(2, 9, 4, 3)
    with pytest.raises(ValueError, match="length = 9: expected at most l_max = 8 tokens, the length of the"):
        hyena.mixer.apply(hyena.variables, x)
    _, state = hyena(x[:, :6], hyena.fresh(2), mask=np.arange(6) < np.array([[6], [3]]))
    with pytest.raises(ValueError, match="length = 9: expected at most l_max = 8 tokens"):
        hyena.mixer.apply(hyena.variables, x[:, :3], state)
    y, state = hyena(x[:, :3], state)  # under jit no error is possible: NaN where the row is too long
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()
    assert state.long[0].inputs.shape == (2, 8, 4)
