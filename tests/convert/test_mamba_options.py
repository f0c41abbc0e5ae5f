"""Mamba's models with attention, an MLP or an untied head: the stream's sums, names and both ways."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import based_jax as bj
from based_jax.convert import from_torch, load_pretrained, save_pretrained, to_torch
from based_jax.convert.configs import model_config
from based_jax.convert.layouts import flatten, to_tensors
from based_jax.convert.state_dict import write_safetensors
from based_jax.convert.tables import AUTHORS, mixer_rules, model_rules
from tests.arrays import array, normals
from tests.convert import numpy_gpt
from tests.convert.random_models import write
from tests.convert.torch_files import same
from tests.tolerances import FLOAT32, assert_close

CONFIG = {
    "d_model": 8,
    "n_layer": 3,
    "vocab_size": 11,
    "pad_vocab_size_multiple": 4,
    "ssm_cfg": {"d_state": 3, "bias": True, "conv_bias": False},
    "d_intermediate": 100,
    "attn_layer_idx": [1],
    "attn_cfg": {"causal": True, "num_heads": 2, "head_dim": 6, "rotary_emb_dim": 4, "softmax_scale": 0.7},
    "tie_embeddings": False,
    "rms_norm": False,
    "residual_in_fp32": True,
    "fused_add_norm": False,
}
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 7)).astype(np.int32)


@pytest.fixture(scope="module")
def model():
    return bj.LanguageModel(model_config(CONFIG, {}))


@pytest.fixture(scope="module")
def params(model):
    return jax.tree.map(np.asarray, nn.meta.unbox(normals(model.init, jnp.asarray(TOKENS))))


@pytest.fixture(scope="module")
def tensors(params):
    return to_torch({"kind": "mamba", "config": CONFIG}, params)


def test_names(tensors):
    """Those of Mamba's code; `d_intermediate` adds a norm and an MLP whose width is a multiple of 128."""
    attention = {name: t.shape for name, t in tensors.items() if name.startswith("backbone.layers.1.")}
    assert attention == {
        **{
            f"backbone.layers.1.{norm}.{kind}": (8,)
            for norm in ("norm", "norm2")
            for kind in ("weight", "bias")
        },
        "backbone.layers.1.mixer.in_proj.weight": (36, 8),
        "backbone.layers.1.mixer.in_proj.bias": (36,),
        "backbone.layers.1.mixer.out_proj.weight": (8, 12),
        "backbone.layers.1.mixer.out_proj.bias": (8,),
        "backbone.layers.1.mlp.fc1.weight": (256, 8),
        "backbone.layers.1.mlp.fc2.weight": (8, 128),
    }
    assert tensors["backbone.embedding.weight"].shape == tensors["lm_head.weight"].shape == (12, 8)
    assert "backbone.norm_f.bias" in tensors
    assert tensors["backbone.layers.2.mixer.A_log"].shape == (16, 3)
    assert tensors["backbone.layers.2.mixer.in_proj.bias"].shape == (32,)
    assert "backbone.layers.2.mixer.conv1d.bias" not in tensors


def test_logits(model, params, tensors):
    """Sums, norms, MLPs and attention in NumPy; Mamba's mixer is compared with theirs in tests/parity."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}

    linear, norm = (functools.partial(f, weights) for f in (numpy_gpt.linear, numpy_gpt.norm))

    def attention(name, x):
        # Heads of 6 channels: those of a GPT of width 12, with its scale.
        gpt = {"n_embd": 12, "n_head": 2, "rotary_emb_fraction": 4 / 6}
        packed = linear(f"{name}.in_proj", x)
        packed[..., :12] *= 0.7 * 6**0.5
        return linear(f"{name}.out_proj", numpy_gpt.attention(gpt, packed, 0))

    def mamba(index, x):
        mixer = bj.mixers.make("mamba", d_model=8, d_state=3, num_layers=3, bias=True, conv_bias=False)
        own = params["params"][f"layers_{index}"]["mixer"]
        return np.asarray(mixer.apply({"params": own}, array(x))[0], np.float64)

    h = weights["backbone.embedding.weight"][TOKENS]
    for index in range(3):
        layer = f"backbone.layers.{index}"
        x = norm(f"{layer}.norm", h)
        h = h + (attention(f"{layer}.mixer", x) if index == 1 else mamba(index, x))
        value, gate = np.split(linear(f"{layer}.mlp.fc1", norm(f"{layer}.norm2", h)), 2, axis=-1)
        h = h + linear(f"{layer}.mlp.fc2", value * numpy_gpt.GATED["swiglu"](gate))
    wanted = norm("backbone.norm_f", h) @ weights["lm_head.weight"].T
    assert_close(jax.jit(model.apply)(params, TOKENS)[0], wanted, FLOAT32)


def test_both_ways(model, params, tensors, tmp_path):
    found, again = from_torch({"kind": "mamba", "config": CONFIG}, tensors)
    assert found == model
    chex.assert_trees_all_equal(again, params)
    save_pretrained(tmp_path, model, params)
    loaded, again = load_pretrained(tmp_path)
    assert loaded == model
    chex.assert_trees_all_equal(again, params)
    same(to_torch({"kind": "mamba", "config": CONFIG}, params), tensors)
    (tmp_path / "source").mkdir()
    source = write(tmp_path / "source", CONFIG, tensors)
    save_pretrained(tmp_path / "back", model, params, like=source)
    same(load_file(tmp_path / "back" / "model.safetensors"), tensors)


def test_hybrids_under_older_names(model, params, tmp_path):
    """Native directories once had GPT's names for such models; the embedding's name tells them apart."""
    layers = [mixer_rules(name) for name in ("mamba", "attention", "mamba")]
    tensors = to_tensors(model_rules(layers, AUTHORS), flatten(params["params"]))
    assert "transformer.layers.1.mixer.Wqkv.weight" in tensors
    save_pretrained(tmp_path, model, params)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    chex.assert_trees_all_equal(load_pretrained(tmp_path)[1], params)


def test_without_attention_and_mlp_it_is_a_plain_mamba():
    plain = {name: CONFIG[name] for name in ("d_model", "n_layer", "vocab_size")}
    empty = {"attn_layer_idx": [], "attn_cfg": {}, "d_intermediate": 0, "ssm_cfg": {}, "tie_embeddings": True}
    config = model_config({**plain, **empty}, {})
    assert config == model_config({**plain, "ssm_cfg": {}}, {})
    assert (config.mlp, config.schedule) == ("none", "MMM")
