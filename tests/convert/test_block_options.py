"""MLPs, norms and blocks of the authors' code from a meta and tensors, against NumPy in float64."""

import jax
import numpy as np
import pytest

from based_jax.convert import from_torch, to_torch
from tests.arrays import array
from tests.convert.numpy_gpt import GATED, PLAIN, attention, linear, norm
from tests.convert.torch_files import same
from tests.tolerances import FLOAT32, assert_close

X = np.random.default_rng(2).normal(size=(2, 6, 8)).astype(np.float32)


def drawn(shapes):
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


MLPS = {
    "flash_attn.modules.mlp.Mlp gelu": {"bias1": True, "bias2": False},
    "flash_attn.modules.mlp.Mlp gelu_approx": {"bias1": False, "bias2": True},
    "flash_attn.modules.mlp.Mlp relu": {"bias": True, "return_residual": True},
    "based.models.mlp.Mlp sqrelu": {"bias": False},
    "flash_attn.modules.mlp.GatedMlp swiglu": {"bias1": True, "bias2": False, "out_features": 5},
    "based.models.mlp.GatedMlp glu": {"bias1": False, "bias2": True, "multiple_of": 4},
}


@pytest.mark.parametrize("case", MLPS)
def test_mlps(case):
    module, activation = case.split(" ")
    options = MLPS[case]
    is_gated, out = "Gated" in module, options.get("out_features", 8)
    shapes = {"fc1.weight": (24 if is_gated else 12, 8), "fc2.weight": (out, 12)}
    for name, bias, rows in (("fc1", "bias1", shapes["fc1.weight"][0]), ("fc2", "bias2", out)):
        if options.get(bias, options.get("bias", True)):
            shapes[f"{name}.bias"] = (rows,)
    meta, tensors = {"module": module, "d_model": 8, "activation": activation, **options}, drawn(shapes)
    mlp, params = from_torch(meta, tensors)
    inner = linear(tensors, "fc1", X)
    if is_gated:
        value, gate = np.split(inner, 2, axis=-1)
        inner = value * GATED[activation](gate)
    else:
        inner = PLAIN[activation](inner)
    assert_close(mlp.apply(params, X), linear(tensors, "fc2", inner), FLOAT32)
    same(to_torch(meta, jax.device_get(params)), tensors)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms(kind):
    shapes = {"weight": (8,)} | ({"bias": (8,)} if kind == "layer" else {})
    module = {"rms": "based.ops.triton.layer_norm.RMSNorm", "layer": "torch.nn.LayerNorm"}[kind]
    tensors = drawn(shapes)
    ours, params = from_torch({"module": module, "eps": 0.3}, tensors)
    named = {f"n.{name}": tensor for name, tensor in tensors.items()}
    wanted = norm(named, "n", X.astype(np.float64), 0.3, rms=kind == "rms")
    assert_close(ours.apply(params, X), wanted, FLOAT32)


BLOCKS = {
    "parallel": {"module": "flash_attn.modules.block.ParallelBlock", "norm": "layernorm"},
    "parallel, tied": {"module": "flash_attn.modules.block.ParallelBlock", "norm": "rms", "tied_norm": True},
    "post-norm": {"module": "flash_attn.modules.block.Block", "prenorm": False, "norm": "rms", "eps": 0.1},
    "without MLP": {"module": "based.models.block.Block", "mlp": "Identity", "norm": "layernorm"},
    "post-norm without MLP": {
        "module": "based.models.block.Block",
        "mlp": "Identity",
        "norm": "rms",
        "prenorm": False,
    },
    "fc3": {"module": "based.models.block.Block", "mlp": "GatedMlp alt_geglu", "norm": "rms"},
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks(case):
    """Around attention of two heads, whose number no tensor says."""
    meta = {"eps": 1e-5, "mlp": "Mlp gelu_new", "mixer": "MHA(num_heads=2)", **BLOCKS[case]}
    is_alt, has_mlp = "alt" in meta["mlp"], meta["mlp"] != "Identity"
    shapes = {"mixer.Wqkv.weight": (24, 8), "mixer.Wqkv.bias": (24,), "mixer.out_proj.weight": (8, 8)}
    shapes |= {"mixer.out_proj.bias": (8,)}
    if has_mlp:
        shapes |= {f"mlp.{name}.weight": (12, 8) for name in (("fc1", "fc3") if is_alt else ("fc1",))}
        shapes |= {"mlp.fc2.weight": (8, 12)}
    for name in ("norm1", "norm2") if has_mlp and not meta.get("tied_norm") else ("norm1",):
        parts = ("weight",) if meta["norm"] == "rms" else ("weight", "bias")
        shapes |= {f"{name}.{part}": (8,) for part in parts}
    tensors = drawn(shapes)
    block, params = from_torch(meta, tensors)

    def mixer(x):
        packed = linear(tensors, "mixer.Wqkv", x)
        return linear(tensors, "mixer.out_proj", attention({"n_embd": 8, "n_head": 2}, packed, 0))

    def mlp(x):
        inner = linear(tensors, "mlp.fc1", x)
        inner = GATED["geglu"](inner) * linear(tensors, "mlp.fc3", x) if is_alt else PLAIN["gelu_new"](inner)
        return linear(tensors, "mlp.fc2", inner)

    def normed(name, x):
        return norm(tensors, name, x, meta["eps"], rms=meta["norm"] == "rms")

    residual = np.random.default_rng(4).normal(size=X.shape).astype(np.float32)
    if not meta.get("prenorm", True):
        h = normed("norm1", mixer(X) + X)
        wanted = normed("norm2", mlp(h) + h) if has_mlp else h
        h, stream, _ = block.apply(params, array(X))
        assert stream is None
        assert_close(h, wanted, FLOAT32)
        return
    wanted_stream = X + residual.astype(np.float64)
    x = normed("norm1", wanted_stream)
    if "Parallel" in meta["module"]:
        wanted = mixer(x) + mlp(x if meta.get("tied_norm") else normed("norm2", wanted_stream))
    elif has_mlp:
        wanted_stream = wanted_stream + mixer(x)
        wanted = mlp(normed("norm2", wanted_stream))
    else:
        wanted = mixer(x)
    h, stream, _ = block.apply(params, array(X), array(residual))
    assert_close(stream, wanted_stream, FLOAT32)
    assert_close(h, wanted, FLOAT32)
    same(to_torch(meta, jax.device_get(params)), tensors)


def test_what_is_refused():
    block = {"module": "flash_attn.modules.block.Block", "mixer": "MHA", "norm": "rms"}
    of_block = {"mixer.Wqkv.weight": (24, 8), "mlp.fc1.weight": (12, 8), "mlp.fc2.weight": (8, 12)}
    mlp = {"module": "flash_attn.modules.mlp.Mlp", "activation": "relu", "bias2": True}
    conv = {
        "module": "based.models.mixers.convolution.BaseConv",
        "d_model": 4,
        "kernel_size": 2,
        "expand_proj": 4,
    }
    of_mlp = {"fc1.weight": (12, 8), "fc2.weight": (8, 12)}
    for meta, shapes, message in [
        (block | {"mixer": "Hedgehog()"}, of_block, "mixer = 'Hedgehog': expected one of 'BaseConv'"),
        (block | {"mlp": "FusedMLP relu"}, of_block, "mlp = 'FusedMLP': expected one of 'GatedMlp'"),
        (block | {"norm": "batch"}, of_block, "norm = 'batch'"),
        (block | {"drop_path1": 0.1}, of_block, r"drop_path2 = 0\.0: expected 0\.1, as drop_path1"),
        (block, {}, r"Wqkv\.weight = 'missing': expected a tensor of 2 axes"),
        (block, of_block, r"norm1\.weight = 'missing': expected a tensor of 1 axes"),
        (mlp, of_mlp | {"fc2.weight": (8, 12, 1)}, r"fc2\.weight = \(8, 12, 1\): expected a tensor of 2"),
        (mlp, of_mlp, "bias2 = True: expected False, as the weights have it"),
        (conv, {"weight": (3,)}, r"5 missing: .* 1 unexpected: weight"),
        ({"module": "some.Thing"}, {}, r"module = 'some\.Thing': expected one of .*BaseConv"),
        ({"module": "zoology.mixers.based.BasedBeyond"}, {}, "module ="),  # names match whole words
    ]:
        with pytest.raises(ValueError, match=message):
            from_torch(meta, drawn(shapes))
