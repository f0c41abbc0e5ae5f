"""Zoology's language models with other options than the fixtures': blocks, MLPs, norms, frozen embeddings."""

import jax
import numpy as np
import pytest

import based_jax as bj
from based_jax.convert import from_torch, to_torch
from based_jax.models import MixerSpec
from tests.arrays import array, normals
from tests.convert import numpy_gpt
from tests.convert.torch_files import same
from tests.tolerances import FLOAT32, assert_close

MHA = {"name": "zoology.mixers.attention.MHA", "kwargs": {"num_heads": 2}}
META = {"module": "zoology.model.LanguageModel", "d_model": 6, "n_layers": 2, "vocab_size": 11, "mixer": MHA}
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 7)).astype(np.int32)

CASES = {
    "positions": {"max_position_embeddings": 8},
    "MLP": {"state_mixer": {"name": "zoology.mixers.mlp.MLP", "kwargs": {"hidden_mult": 3}}},
    "GLU": {"state_mixer": {"name": "zoology.mixers.mlp.GLU", "kwargs": {"hidden_mult": 2}}},
    "Identity": {"state_mixer": {"name": "torch.nn.Identity", "kwargs": {}}, "pad_vocab_size_multiple": 4},
    "frozen": {"learnable_word_embeddings": False, "embedding_init_type": "spherical", "drop_path": 0.1},
    "hybrid": {
        "sequence_mixer": {"name": "zoology.mixers.hybrid.Hybrid", "kwargs": {"configs": [MHA, MHA]}},
        "n_layers": 2,
    },
}


def as_gpt(meta):
    """The config of a GPT of the same equations."""
    mlp = meta.get("state_mixer", {"name": ".MLP", "kwargs": {}})
    kind, width = mlp["name"].rpartition(".")[2], 6 * mlp["kwargs"].get("hidden_mult", 1)
    config = {"n_embd": 6, "n_head": 2, "n_layer": meta["n_layers"], "width": width, "mlp_type": "alt"}
    config["vocab_size"] = 12 if "pad_vocab_size_multiple" in meta else 11
    config["activation_function"] = {"MLP": "gelu", "GLU": "geglu", "Identity": "none"}[kind]
    config["tie_word_embeddings"] = "learnable_word_embeddings" not in meta
    return config | {"max_position_embeddings": meta.get("max_position_embeddings", 0)}


def renamed(tensors, meta):
    """Tensors of that GPT under the names of Zoology's modules; of a GLU the gate is fc2, the output fc3."""
    mixer = ".sequence_mixer.mixer." if "sequence_mixer" in meta else ".sequence_mixer."
    names = {"transformer.": "backbone.", ".mixer.": mixer, ".mlp.": ".state_mixer."}
    if as_gpt(meta)["activation_function"] == "geglu":
        names |= {".fc2.": ".out.", ".fc1.": ".fc2.", ".fc3.": ".fc1.", ".out.": ".fc3."}
    found = {}
    for name, tensor in tensors.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        found[name] = tensor
    return found


@pytest.mark.parametrize("case", CASES)
def test_logits(case):
    meta = {**META, "n_layers": 1, **CASES[case]}
    own = numpy_gpt.drawn(as_gpt(meta))
    tensors = renamed(own, meta)
    model, params = from_torch(meta, tensors)
    wanted = numpy_gpt.logits(as_gpt(meta), own, TOKENS)
    assert_close(jax.jit(model.apply)(params, array(TOKENS, np.int32))[0], wanted, FLOAT32)
    same(to_torch(meta, jax.device_get(params)), tensors)


def test_only_the_last_norm_has_another_epsilon():
    meta = {**META, "layer_norm_epsilon": 0.5}
    config = from_torch(meta, renamed(numpy_gpt.drawn(as_gpt(meta)), meta))[0].config
    assert (config.norm_eps, config.final_norm_eps) == (1e-5, 0.5)


def test_mamba_blocks():
    """A root-mean-square norm and a mixer each, a LayerNorm at the end; the mixer's class is not asked."""
    mixer = {"name": "any", "kwargs": {"d_state": 3}}
    meta = {**META, "n_layers": 1, "block_type": "MambaBlock", "mixer": mixer}
    mixers = {"M": MixerSpec("mamba", {"d_state": 3})}
    config = bj.ModelConfig(11, 6, "M", mixers, mlp="none", final_norm="layer", pad_vocab_multiple=1)
    params = normals(bj.LanguageModel(config).init, array(TOKENS, np.int32))
    tensors = to_torch(meta, params)
    assert {name.partition("layers.0.")[2] for name in tensors} > {"norm.weight", "mixer.A_log"}
    assert "backbone.ln_f.bias" in tensors
    model, again = from_torch(meta, {name: np.asarray(tensor) for name, tensor in tensors.items()})
    wanted, logits = (
        jax.jit(each.apply)(values, array(TOKENS, np.int32))[0]
        for each, values in ((bj.LanguageModel(config), params), (model, again))
    )
    assert_close(logits, wanted, 0.0)


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
            from_torch({**META, **changes}, renamed(numpy_gpt.drawn(as_gpt(META)), META))
