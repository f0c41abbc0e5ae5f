"""Models without an MLP: blocks of a norm and a mixer, as Mamba's, and RWKV's of two such layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import Block, MixerSpec
from tests.arrays import normals
from tests.tolerances import assert_close

CONFIG = bj.ModelConfig(
    vocab_size=11,
    d_model=8,
    schedule="TK",
    mixers={"T": MixerSpec("rwkv4"), "K": MixerSpec("rwkv_channel_mix", {"expand": 2})},
    mlp="none",
    norm="layer",
)


def test_the_stream_is_the_sum_of_all_mixers():
    """An RWKV block: time mixing and channel mixing, each after a norm and added to the stream."""
    model = bj.LanguageModel(CONFIG)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    params = nn.meta.unbox(normals(model.init, tokens))
    tree = params["params"]
    assert set(tree) == {"embedding", "layers_0", "layers_1", "final_norm"}
    assert set(tree["layers_0"]) == {"norm1", "mixer"}

    def norm(x, scale):
        return bj.ops.layer_norm(x, scale["scale"], scale["bias"])

    @jax.jit
    def by_hand(tree):
        stream = tree["embedding"][tokens]
        for name, mixer, options in (
            ("rwkv4", "layers_0", {}),
            ("rwkv_channel_mix", "layers_1", {"expand": 2}),
        ):
            layer = tree[mixer]
            made = bj.mixers.make(name, d_model=8, **options)
            stream += made.apply({"params": layer["mixer"]}, norm(stream, layer["norm1"]))[0]
        return norm(stream, tree["final_norm"]) @ tree["embedding"].T

    apply = jax.jit(model.apply)
    assert_close(apply(params, tokens)[0], by_hand(tree), 2e-6)
    state, logits = model.init_state(2), []
    for t in range(6):
        y, state = apply(params, tokens[:, t : t + 1], state)
        logits.append(y)
    assert_close(jnp.concatenate(logits, 1), by_hand(tree), 2e-6)


def test_the_width_of_no_mlp_does_not_matter():
    assert bj.param_count(CONFIG) == bj.param_count(CONFIG.replace(mlp_hidden=64))


def test_parallel_blocks_need_an_mlp():
    block = Block(mixer=bj.mixers.make("short_conv", d_model=4), mlp=None, kind="parallel")
    with pytest.raises(ValueError, match="mlp = None: expected an MLP in a parallel block"):
        block.init(jax.random.key(0), jnp.zeros((1, 2, 4)))
