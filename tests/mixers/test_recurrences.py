"""GLA, RetNet, Mamba-2 and RWKV-5 beyond the contract: formulas without a fixture, and initial values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from tests.mixers import laws
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close


def parameters(mixer: mixers.Mixer) -> dict:
    return nn.meta.unbox(jax.jit(mixer.init)(jax.random.key(0), jnp.zeros((1, 2, mixer.d_model))))["params"]


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("rotary", [True, False])
def test_retnet_is_the_parallel_form_of_the_paper(rotary):
    """Equations 5, 6 and 8 of Sun et al. 2023 in float64: ((Q K^T) * D) V, group norm, gate."""
    heads, length, width = 2, 21, 6
    mixer = mixers.RetNet(12, num_heads=heads, chunk_size=8, rotary=rotary)
    run = laws.Runner(mixer)
    x = laws.inputs(2, length, 12, 0)
    weights = jax.tree.map(np.float64, nn.meta.unbox(run.variables)["params"])
    q, k, v, gate = (
        np.einsum("bnd,dhk->bnhk", x, weights[name]["kernel"]) for name in ("q", "k", "v", "gate")
    )
    if rotary:
        positions = np.arange(length)[None]
        q, k = (oracles.rotary(a, positions, width, 10000.0, interleaved=True) for a in (q, k))
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    gamma = 1 - 2.0 ** (-5 - np.arange(heads))
    D = np.where(distance >= 0, gamma[:, None, None] ** np.maximum(distance, 0), 0)
    y = np.einsum("bnhk,bmhk,hnm,bmhv->bnhv", q, k, D, v) / np.sqrt(width)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    y = (y * weights["norm_scale"] + weights["norm_bias"]) * silu(gate)
    assert_close(run(x)[0], np.einsum("bnhv,hvd->bnd", y, weights["out"]["kernel"]), FLOAT32)


def test_gla_without_convolutions_can_be_cut():
    """The contract's case has them."""
    laws.split_law(laws.Runner(mixers.GLA(12, num_heads=3)), laws.inputs(2, 9, 12, 0), [4, 5])


def test_defaults_divide():
    """The papers' numbers where they divide: 4 heads (GLA), 256 (RetNet) and 64 channels per head."""
    assert mixers.GLA(64).layout() == (4, 8, 16)
    assert mixers.GLA(6).layout() == (3, 1, 2)
    assert mixers.RetNet(2048).layout() == (8, 256, 512)
    assert mixers.RetNet(768, expand_v=5 / 3).layout() == (2, 384, 640)
    assert mixers.Mamba2(96).layout() == (3, 64)
    assert mixers.RWKV5(128).layout() == (2, 64)


def test_rwkv5_begins_as_in_the_authors_code():
    """Spec of Zoology 3.10, in the second of three layers; the blends as for RWKV-4 (3.9)."""
    params = parameters(mixers.RWKV5(12, head_size=4, layer=1, num_layers=3))
    c = np.arange(12)
    expected = {
        "decay": (-6 + 5 * (c / 11) ** (0.7 + 1.3 * 0.5)).reshape(3, 4),
        "bonus": (0.5 * (1 - c / 11) + 0.1 * ((c + 1) % 3 - 1)).reshape(3, 4),
        "mix_k": (c / 12) ** (2 / 3),
        "mix_v": (c / 12) ** (2 / 3) + 0.15,
        "mix_r": (c / 12) ** (1 / 3),
        "mix_g": (c / 12) ** (1 / 3),
    }
    for name, values in expected.items():
        assert_close(params[name], values, FLOAT32, name)


def test_mamba2_begins_with_the_papers_steps():
    """Step sizes log-uniform from 0.001 to 0.1, -A uniform from 1 to 16; torch's weights with num_layers."""
    params = parameters(mixers.Mamba2(64, head_dim=2, d_state=2, num_layers=4))
    steps = np.log1p(np.exp(params["dt_bias"]))
    assert 1e-3 * 0.99 <= steps.min() < 3e-3 < 3e-2 < steps.max() <= 0.1 * 1.01
    A = np.exp(params["A_log"])
    assert 1 <= A.min() < 4 < 13 < A.max() <= 16
    assert np.isclose(params["in_proj"]["kernel"].std(), (3 * 64) ** -0.5, rtol=0.1)
    assert np.isclose(params["out"]["kernel"].std(), (3 * 128 * 4) ** -0.5, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gla", {"num_heads": 3}, r"expand_k \* d_model = 4: expected a multiple of num_heads = 3"),
        ("gla", {"kernel_size": 0}, "kernel_size = 0: expected None or at least 1"),
        ("gla", {"gate_low_rank_dim": 0}, "gate_low_rank_dim = 0"),
        ("gla", {"gate_logit_normalizer": 0.0}, "gate_logit_normalizer = 0.0"),
        ("retnet", {"expand_v": 0.0}, "expand_v = 0.0: expected above 0"),
        ("mamba2", {"head_dim": 3}, r"expand \* d_model = 16: expected a multiple of head_dim = 3"),
        ("mamba2", {"head_dim": 4, "num_groups": 3}, "heads = 4: expected a multiple of num_groups = 3"),
        ("mamba2", {"d_state": 0}, "d_state = 0"),
        ("rwkv5", {"head_size": 3}, "d_model = 8: expected a multiple of head_size = 3"),
        ("rwkv5", {"layer": 12}, "layer = 12: expected 0 to 11"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(mixers.make(name, d_model=8, **options).init, jax.random.key(0), jnp.zeros((1, 2, 8)))
