"""Zoology's language models with other options than the fixtures': blocks, MLPs, norms, frozen embeddings."""

import functools

import jax
import numpy as np
import pytest

import based_jax as bj
from based_jax.convert import from_torch, to_torch
from based_jax.models import MixerSpec
from tests.arrays import array, normals
from tests.convert import numpy_gpt
from tests.convert.numpy_gpt import GATED, PLAIN, attention
from tests.convert.torch_files import same
from tests.tolerances import FLOAT32, assert_close

MHA = {"name": "zoology.mixers.attention.MHA", "kwargs": {"num_heads": 2}}
META = {"module": "zoology.model.LanguageModel", "d_model": 6, "n_layers": 2, "vocab_size": 11, "mixer": MHA}
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 7)).astype(np.int32)

CASES = {
    "norms": {"layer_norm_epsilon": 0.5, "max_position_embeddings": 8},
    "MLP": {"state_mixer": {"name": "zoology.mixers.mlp.MLP", "kwargs": {"hidden_mult": 3}}},
    "GLU": {"state_mixer": {"name": "zoology.mixers.mlp.GLU", "kwargs": {"hidden_mult": 2}}},
    "Identity": {"state_mixer": {"name": "torch.nn.Identity", "kwargs": {}}, "pad_vocab_size_multiple": 4},
    "frozen": {"learnable_word_embeddings": False, "embedding_init_type": "spherical", "drop_path": 0.1},
    "hybrid": {"sequence_mixer": {"name": "zoology.mixers.hybrid.Hybrid", "kwargs": {"configs": [MHA, MHA]}}},
}


def kind_of(meta):
    return meta.get("state_mixer", {}).get("name", "zoology.mixers.mlp.MLP").rpartition(".")[2]


def drawn(meta):
    """Random tensors under the names of Zoology's modules."""
    rng = np.random.default_rng(0)
    d, vocab = 6, 12 if "pad_vocab_size_multiple" in meta else 11
    widen = meta.get("state_mixer", {}).get("kwargs", {}).get("hidden_mult", 1) * d
    shapes = {"backbone.embeddings.word_embeddings.weight": (vocab, d)}
    if "max_position_embeddings" in meta:
        shapes["backbone.embeddings.position_embeddings.weight"] = (8, d)
    if "learnable_word_embeddings" in meta:
        shapes["lm_head.weight"] = (vocab, d)
    linear = {"MLP": [("fc1", widen, d), ("fc2", d, widen)], "Identity": []}
    linear["GLU"] = [("fc1", widen, d), ("fc2", widen, d), ("fc3", d, widen)]
    inside = "mixer." if "sequence_mixer" in meta else ""
    for index in range(2):
        layer = f"backbone.layers.{index}"
        maps = [(f"sequence_mixer.{inside}Wqkv", 3 * d, d), (f"sequence_mixer.{inside}out_proj", d, d)]
        maps += [(f"state_mixer.{name}", *size) for name, *size in linear[kind_of(meta)]]
        for name, rows, columns in maps:
            shapes |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (rows,)}
        for name in ("norm1", "norm2"):
            shapes |= {f"{layer}.{name}.{part}": (d,) for part in ("weight", "bias")}
    shapes |= {f"backbone.ln_f.{part}": (d,) for part in ("weight", "bias")}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def numpy_logits(meta, tensors):
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    inside = "mixer." if "sequence_mixer" in meta else ""

    linear, norm = (functools.partial(f, weights) for f in (numpy_gpt.linear, numpy_gpt.norm))

    def state_mixer(name, x):
        if kind_of(meta) == "Identity":
            return x
        if kind_of(meta) == "GLU":
            gate = GATED["geglu"](linear(f"{name}.fc2", x))
            return linear(f"{name}.fc3", linear(f"{name}.fc1", x) * gate)
        return linear(f"{name}.fc2", PLAIN["gelu"](linear(f"{name}.fc1", x)))

    word = weights["backbone.embeddings.word_embeddings.weight"]
    h = word[TOKENS]
    if "max_position_embeddings" in meta:
        h = h + weights["backbone.embeddings.position_embeddings.weight"][: TOKENS.shape[1]]
    for index in range(2):
        layer = f"backbone.layers.{index}"
        packed = linear(f"{layer}.sequence_mixer.{inside}Wqkv", norm(f"{layer}.norm1", h))
        mixed = attention({"n_embd": 6, "n_head": 2}, packed, index)
        h = h + linear(f"{layer}.sequence_mixer.{inside}out_proj", mixed)
        h = h + state_mixer(f"{layer}.state_mixer", norm(f"{layer}.norm2", h))
    h = norm("backbone.ln_f", h, meta.get("layer_norm_epsilon", 1e-5))
    return h @ weights.get("lm_head.weight", word).T


@pytest.mark.parametrize("case", CASES)
def test_logits(case):
    meta = {**META, **CASES[case]}
    tensors = drawn(meta)
    model, params = from_torch(meta, tensors)
    assert_close(
        jax.jit(model.apply)(params, array(TOKENS, np.int32))[0], numpy_logits(meta, tensors), FLOAT32
    )
    same(to_torch(meta, jax.device_get(params)), tensors)


def test_mamba_blocks():
    """A root-mean-square norm and a mixer each, a LayerNorm at the end; the mixer's class is not asked."""
    meta = {**META, "block_type": "MambaBlock", "mixer": {"name": "any", "kwargs": {"d_state": 3}}}
    config = bj.ModelConfig(
        11,
        6,
        "MM",
        {"M": MixerSpec("mamba", {"d_state": 3})},
        mlp="none",
        final_norm="layer",
        pad_vocab_multiple=1,
    )
    params = normals(bj.LanguageModel(config).init, array(TOKENS, np.int32))
    tensors = to_torch(meta, params)
    assert {name.partition("layers.0.")[2] for name in tensors} > {"norm.weight", "mixer.A_log"}
    assert "backbone.ln_f.bias" in tensors
    model, again = from_torch(meta, {name: np.asarray(tensor) for name, tensor in tensors.items()})
    logits = model.apply(again, array(TOKENS, np.int32))[0]
    assert_close(logits, bj.LanguageModel(config).apply(params, array(TOKENS, np.int32))[0], 0.0)


def test_what_is_not_here():
    for changes, message in [
        ({"block_type": "ParallelBlock"}, "block_type = 'ParallelBlock': expected one of 'TransformerBlock'"),
        (
            {"state_mixer": {"name": "zoology.mixers.rwkv.RWKVStateMixer"}},
            "state_mixer = 'zoology.mixers.rwkv",
        ),
        ({"mixer": {"name": "x.Y"}}, "mixer of a zoology language model = 'x.Y'"),
        ({"embedding_init_type": "uniform"}, "embed_init = 'uniform'"),
        ({"n_heads": 3}, "entry of config = 'n_heads': expected one of"),
        ({"d_model": 12}, "d_model = 12: expected 6, as the weights have it"),
        ({"state_mixer": {"name": "zoology.mixers.mlp.MLP", "kwargs": {"hidden_mult": 2}}}, "wrongly shaped"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_torch({**META, **changes}, drawn(META))
