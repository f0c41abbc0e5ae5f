"""Llama, Mistral, Qwen and hybrids: logits and greedy text of `transformers`, refusals."""

import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from safetensors.numpy import load_file

import based_jax as bj
from based_jax.convert import __main__ as convert
from based_jax.convert import load_pretrained, save_pretrained
from based_jax.convert.configs import model_config
from based_jax.convert.rotary_scaling import rotary_options
from based_jax.convert.state_dict import write_safetensors
from tests.arrays import array
from tests.commands import run_here
from tests.convert.torch_files import same
from tests.convert.transformers_models.make import (
    CASES,
    FIXTURES,
    HERE,
    NEW,
    PADDED,
    TOKENS,
    write,
    write_gradients,
)
from tests.marks import slow_but
from tests.subprocesses import run_python
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, assert_close

HYBRIDS = ("granitemoehybrid", "qwen3_5")
"""Mamba-2 with experts, Gated DeltaNet; the slow run has the other families."""


def assert_equals_theirs(directory):
    """float32 logits of both within FLOAT32, and equal greedy text, also of rows padded on the left."""
    model, params = load_pretrained(directory)
    theirs = load_file(directory / "expected.safetensors")
    logits, _ = jax.jit(model.apply)(params, array(TOKENS, np.int32))
    assert_close(logits, theirs["logits"], FLOAT32)
    mask = np.concatenate([np.ones_like(PADDED), PADDED])
    found = bj.generate(model, params, np.tile(TOKENS, (2, 1)) * mask, NEW, attention_mask=mask)
    np.testing.assert_array_equal(found, np.concatenate([theirs["greedy"], theirs["greedy_padded"]]))


@pytest.mark.parametrize("case", slow_but(HYBRIDS, FIXTURES, core=[]))
def test_models_of_transformers(case):
    assert_equals_theirs(HERE / case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_models_made_now(case, tmp_path):
    """Also of the installed version of `transformers`, and as shards."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    write(tmp_path, case, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_equals_theirs(tmp_path)
    model, params = load_pretrained(tmp_path)

    def written(params):
        save_pretrained(tmp_path / "written", model, params, like=tmp_path)
        files = (tmp_path / "written").glob("*.safetensors")
        return {name: tensor for file in files for name, tensor in load_file(file).items()}

    def loss(params):
        logits, _ = model.apply(params, array(TOKENS, np.int32))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], TOKENS[:, 1:])
        return losses.mean(), logits

    trained = jax.tree.map(lambda leaf: 0.9 * leaf, params)
    gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(trained)
    # Their tensor is x / f or x - 1 of ours, x, so that its gradient is f times that of x.
    offset, ones, theirs = (
        written(tree)
        for tree in (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.ones_like, params), gradients)
    )
    names = [name for name in theirs if not np.array_equal(ones[name], offset[name])]
    found = {name: (theirs[name] - offset[name]) / (ones[name] - offset[name]) ** 2 for name in names}
    written(trained)
    expected = write_gradients(tmp_path / "written", tmp_path / "gradients")
    assert_close(logits, expected, FLOAT32)
    expected = load_file(tmp_path / "gradients" / "model.safetensors")
    assert_close(found, {name: expected[name] for name in names}, FLOAT32_GRADIENT)


@pytest.mark.parametrize("case", slow_but(HYBRIDS, FIXTURES, core=HYBRIDS[:1]))
def test_both_ways(case, tmp_path, capsys):
    """bfloat16 tensors bit for bit, with those that are not of the text model; float32 up to a rounding."""
    theirs, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    shutil.copytree(HERE / case, theirs)
    (theirs / "generation_config.json").write_text("{}")
    stored = load_file(HERE / case / "model.safetensors")
    narrow = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in stored.items()}
    write_safetensors(theirs / "model.safetensors", narrow)
    run_here(convert.PROG, convert.main, [theirs, ours], capsys)
    (ours / "tokenizer.json").write_text("{}")  # which theirs lacks
    ended = run_here(convert.PROG, convert.main, [ours, back, "--like", theirs], capsys)
    assert f"written as  {theirs}: config.json, model.safetensors" in ended.out
    copied = {"generation_config.json", "tokenizer.json"}
    assert {file.name for file in back.iterdir()} == {"config.json", "model.safetensors"} | copied
    assert json.loads((back / "config.json").read_text()) == json.loads((theirs / "config.json").read_text())
    same(load_file(back / "model.safetensors"), narrow)
    model, params = load_pretrained(HERE / case)
    save_pretrained(back, model, params, like=HERE / case)
    for name, tensor in load_file(back / "model.safetensors").items():
        # Scales of norms are summed with 1, whose float32 spacing is 1.2e-7; multipliers round once.
        np.testing.assert_allclose(tensor, stored[name], rtol=2.4e-7, atol=1.2e-7)


def test_the_names_of_a_model_without_a_head_have_its_prefix(tmp_path):
    config = json.loads((HERE / "falcon_mamba" / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = load_file(HERE / "falcon_mamba" / "model.safetensors")
    names = {name for name in stored if name.startswith("backbone.")}
    bare = {name.removeprefix("backbone."): stored[name] for name in names}
    write_safetensors(tmp_path / "model.safetensors", bare)
    model, params = load_pretrained(tmp_path)
    written = load_file(save_pretrained(tmp_path / "back", model, params, like=tmp_path))
    assert written.keys() == names


def test_written_like_another_model(tmp_path):
    model, params = load_pretrained(HERE / "qwen3")
    config = json.loads((HERE / "qwen3" / "config.json").read_text())
    shutil.copytree(HERE / "qwen3", tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    native = tmp_path / "native"
    save_pretrained(native, model, params)
    for like, message in [
        (native, "like = .*native.*: expected None for our form, or a checkpoint in another form"),
        (tmp_path / "other", r"qk_norm_eps 1e-06 \(there 0\.5\), norm_eps 1e-06"),
        (HERE / "lfm2", "like = .*schedule 'AA' .*expected a checkpoint of the same"),
    ]:
        with pytest.raises(ValueError, match=message):
            save_pretrained(tmp_path / "written", model, params, like=like)
    assert not (tmp_path / "written").exists()


@pytest.mark.release
def test_each_device_gets_its_part():
    run_python("from tests.convert.test_transformers import on_devices; on_devices()", devices=4)


def on_devices() -> None:
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    _, whole = load_pretrained(HERE / "lfm2")
    _, parts = load_pretrained(HERE / "lfm2", mesh=mesh)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, parts))
    kernel = parts["params"]["layers_1"]["mlp"]["out"]["kernel"]
    assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // 4}


BASE = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40},
    "num_attention_heads": 4,
}
DENSE = {"num_local_experts": 0, "mamba_n_heads": 4}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("qwen2_moe", {}, "model_type = 'qwen2_moe': expected a supported model: .*qwen3_next, in their"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = .*: expected None"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu': expected 'silu'"),
        ("llama", {"sliding_window": 4}, "entry of config.json = 'sliding_window'"),
        ("llama", {"intermediate_size": None}, "an entry 'intermediate_size'"),
        ("qwen2", {"use_mrope": True}, "use_mrope = True"),
        ("qwen2", {"rope_scaling": {"type": "mrope"}}, r"rope_scaling\.rope_type = 'mrope': expected one of"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "entry of rope_parameters = 'partial"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.5}}, r"rope_scaling\.factor = 0.5"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types = .*for each of 2 layers"),
        ("qwen3_next", {}, r"num_experts = 512: expected 0, or \[0, 1\] in mlp_only_layers: experts are"),
        ("qwen3_next", {"mlp_only_layers": [0]}, r"num_experts = 512: expected 0, or \[1\] in"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate = False: expected True"),
        (
            "qwen3_5_text",
            {"layer_types": ["sliding_attention"] * 2},
            "layer_types = .*: expected full_attention or linear_attention for",
        ),
        (
            "qwen3_5_text",
            {"partial_rotary_factor": 1e-3},
            "partial_rotary_factor = 0.001: expected the share",
        ),
        (
            "qwen3_5_text",
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            r"attention_factor = 1.1.*: expected 1 with unrotated channels",
        ),
        ("qwen3", {"layer_types": ["sliding_attention"] * 2}, "layer_types = .*expected full_attention for"),
        ("granitemoehybrid", {}, "num_local_experts = 8: expected 0: experts are not supported"),
        ("granitemoehybrid", {**DENSE, "mamba_n_heads": 5}, "mamba_n_heads = 5: expected 32 / 6 channels"),
        (
            "granitemoehybrid",
            {**DENSE, "position_embedding_type": "alibi"},
            "position_embedding_type = 'alibi'",
        ),
        (
            "granitemoehybrid",
            {**DENSE, "layer_types": ["mamba"]},
            "layer_types = .*expected mamba or attention",
        ),
        ("granitemoehybrid", {**DENSE, "time_step_limit": [1]}, "time_step_limit = .*: expected two numbers"),
        ("jamba", {}, "num_experts = 16: expected 1: experts are not supported"),
        (
            "jamba",
            {"num_local_experts": 1, "attn_layer_offset": 8},
            "attn_layer_offset = 8: expected less than attn_layer_period = 8",
        ),
        ("nemotron_h", {}, "hybrid_override_pattern = None: expected letters M - *"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "ME*"},
            r"= 'ME\*': expected .*experts \(E\) are not supp",
        ),
        ("nemotron_h", {"layers_block_type": ["mamba", "moe"]}, "layer_types = .*experts .moe. are not supp"),
        ("nemotron_h", {"layer_types": ["mamba", "conv"]}, "layer_types = .*mlp .* for each of 2 layers"),
        ("lfm2", {"layer_types": ["conv", "mamba"]}, "layer_types = .*: expected full_attention or conv for"),
        ("lfm2", {"full_attn_idxs": 1}, "full_attn_idxs = 1: expected a list of layers"),
        ("lfm2", {"block_ff_dim": 48}, "block_ff_dim = 48: expected 24, another value of intermediate_size"),
    ],
)
def test_what_is_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        model_config({**BASE, "model_type": kind, **changes}, {})


def test_a_text_model_within_another():
    rope = {"rope_parameters": {"mrope_section": [11, 11, 10]}}
    text = BASE | rope | {"tie_word_embeddings": False}  # transformers writes both, and reads the outer one
    outer = {"model_type": "qwen3_5", "vision_config": {"depth": 1}, "tie_word_embeddings": True}
    found = model_config({**outer, "text_config": text}, {})
    assert found == model_config({**text, "model_type": "qwen3_5_text", "tie_word_embeddings": True}, {})
    for inner, message in [
        ({"hidden_act": "gelu"}, "text_config.hidden_act = 'gelu': expected 'silu'"),
        ({"model_type": "qwen3_5_moe_text"}, "text_config.model_type = 'qwen3_5_moe_text'"),
    ]:
        with pytest.raises(ValueError, match=message):
            model_config({**outer, "text_config": text | inner}, {})


def test_entries_of_older_versions():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64}
    old = {"rope_theta": 5e5, "rope_scaling": scaling, "torch_dtype": "bfloat16"}
    new = {"rope_theta": None, "rope_parameters": {**scaling, "rope_theta": 5e5}, "dtype": "bfloat16"}
    found = [model_config({**BASE, "model_type": "llama", **entries}, {}) for entries in (old, new)]
    assert found[0] == found[1] != model_config({**BASE, "model_type": "llama"}, {})


def test_names_of_nemotron_h_in_older_versions():
    """Of the layers, of the channels of attention's heads, and of Mamba-2's options."""
    old = {"hybrid_override_pattern": "M*-", "num_hidden_layers": 3, "attention_head_dim": 8}
    old |= {"mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_dt_min": 0.1}
    options = {"head_dim": 8, "n_groups": 2, "conv_kernel": 3, "use_conv_bias": False, "time_step_min": 0.1}
    new = {"layers_block_type": ["linear_attention", "full_attention", "mlp"], **options}
    kinds = {"layer_types": ["mamba", "attention", "mlp"], **options}
    base = {**BASE, "model_type": "nemotron_h", "mamba_num_heads": 2}
    found = [model_config(base | entries, {}) for entries in (old, new, kinds)]
    assert found[0] == found[1] == found[2]
    assert found[0].schedule == "MAF"


def test_published_frequencies():
    """Llama 3.1: 8 times fewer turns for the slowest pairs, as many for the fastest; Qwen2.5's YaRN by 4."""
    llama = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
    }
    yarn = {"type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    for given, base in [(llama, 5e5), (yarn, 1e6)]:
        found = np.array(rotary_options({"rope_parameters": given}, 128)["rotary_frequencies"])
        ratio = base ** (-np.arange(0, 128, 2) / 128) / found
        assert (np.diff(ratio) >= -1e-9).all()
        np.testing.assert_allclose(ratio[[0, -1]], [1, given["factor"]])
        assert 2 < np.sum((ratio > 1.001) & (ratio < 0.999 * given["factor"])) < 32


def test_null_truncates_no_frequencies():
    yarn = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 32}
    found = [rotary_options({"rope_parameters": yarn | {"truncate": x}}, 8) for x in (None, False, True)]
    assert found[0] == found[1] != found[2]


def test_multipliers_are_positive(tmp_path):
    shutil.copytree(HERE / "granitemoehybrid", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("embedding_multiplier", "logits_scaling"):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: 0}))
        with pytest.raises(ValueError, match=f"{name} = 0.*: expected a positive number"):
            load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("model.layers.1.self_attn.q_norm.weight", "1 missing: model.layers.1.self_attn.q_norm.weight"),
        ("model.embed_tokens.weight", "1 missing: model.embed_tokens.weight"),
        ("model.layers.1.mlp.up_proj.weight", "1 missing: model.layers.1.mlp.up_proj.weight"),
        (None, "1 unexpected: model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, lost, message):
    shutil.copyfile(HERE / "qwen3" / "config.json", tmp_path / "config.json")
    tensors = load_file(HERE / "qwen3" / "model.safetensors")
    extra = {} if lost else {"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)}
    kept = {name: tensor for name, tensor in tensors.items() if name != lost}
    write_safetensors(tmp_path / "model.safetensors", kept | extra)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


def test_tensors_beside_the_text_model(tmp_path, caplog):
    """The vision tower and layers that draft are left out, with a message; the prefix may be missing."""
    shutil.copyfile(HERE / "qwen3_5" / "config.json", tmp_path / "config.json")
    stored = load_file(HERE / "qwen3_5" / "model.safetensors")
    stored = {name.replace("model.language_model.", "model."): tensor for name, tensor in stored.items()}
    write_safetensors(tmp_path / "model.safetensors", stored | {"mtp.fc.weight": np.ones(3, np.float32)})
    model, params = load_pretrained(tmp_path)
    assert "22 tensors of visual and mtp were left out: only the text model is read" in caplog.text
    written = load_file(save_pretrained(tmp_path / "back", model, params, like=tmp_path))
    assert written.keys() == stored.keys() | {"mtp.fc.weight"}
    _, expected = load_pretrained(HERE / "qwen3_5")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected))
    norm = "model.layers.0.input_layernorm.weight"
    np.testing.assert_array_equal(params["params"]["layers_0"]["norm1"]["scale"], 1 + stored[norm])
    name = "model.language_model.norm.weight"
    write_safetensors(tmp_path / "model.safetensors", stored | {name: stored["model.norm.weight"]})
    with pytest.raises(
        ValueError, match=r"model.norm.weight is there twice, the second time as .*norm.weight"
    ):
        load_pretrained(tmp_path)
    name = "model.layers.1.self_attn.q_proj.weight"
    write_safetensors(tmp_path / "model.safetensors", stored | {name: np.ones((63, 16), np.float32)})
    with pytest.raises(ValueError, match=r"q_proj.weight \(63, 16\) instead of \(32, 16\)"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(("case", "schedule"), [("qwen3", "AA"), ("qwen3_5", "DA")])
def test_convert(tmp_path, capsys, case, schedule):
    """To our form, with the tokenizer and the chat template."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(HERE / case, source)
    for name in ("tokenizer.json", "chat_template.jinja"):
        (source / name).write_text("{}")
    ended = run_here(convert.PROG, convert.main, [source, target], capsys)
    assert f"{case}: 2 layers {schedule}" in ended.out
    assert json.loads((target / "config.json").read_text())["format"] == "based_jax"
    assert {"tokenizer.json", "chat_template.jinja"} <= {file.name for file in target.iterdir()}
    (model, params), (again, restored) = load_pretrained(source), load_pretrained(target)
    assert model == again
    assert jax.tree.all(jax.tree.map(np.array_equal, params, restored))


GRANITE_4_H = {
    **{"num_local_experts": 0, "shared_intermediate_size": 8192, "tie_word_embeddings": True},
    **{"mamba_d_state": 128, "mamba_n_heads": 64},
    "layer_types": ["attention" if index in (5, 15, 25, 35) else "mamba" for index in range(40)],
}
FALCON_MAMBA = {"expand": 16, "tie_word_embeddings": False}
LFM2_LAYERS = [2, 5, 8, 10, 12, 14]


@pytest.mark.parametrize(
    ("parameters", "kind", "sizes", "changes"),
    [
        (1_235_814_400, "llama", (2048, 8192, 16, 128256, 32, 8, 64), {"tie_word_embeddings": True}),
        (7_241_732_096, "mistral", (4096, 14336, 32, 32000, 32, 8, 128), {}),
        (494_032_768, "qwen2", (896, 4864, 24, 151936, 14, 2, None), {"tie_word_embeddings": True}),
        (596_049_920, "qwen3", (1024, 3072, 28, 151936, 16, 8, 128), {"tie_word_embeddings": True}),
        (1_170_340_608, "lfm2", (2048, 12288, 16, 65536, 32, 8, None), {"full_attn_idxs": LFM2_LAYERS}),
        (7_272_665_088, "falcon_mamba", (4096, 8192, 64, 65024, None, None, None), FALCON_MAMBA),
        (3_191_396_096, "granitemoehybrid", (2048, 8192, 40, 100352, 32, 8, None), GRANITE_4_H),
    ],
)
def test_published_sizes(parameters, kind, sizes, changes):
    """Parameters as the hub counts them.

    Of Llama 3.2 1B, Mistral 7B, Qwen2.5 0.5B, Qwen3 0.6B, LFM2 1.2B, Falcon Mamba 7B and Granite 4.0-H micro.
    """
    names = (*BASE, "num_key_value_heads", "head_dim")
    given = {name: value for name, value in zip(names, sizes, strict=True) if value is not None}
    config = {"model_type": kind, **given, **changes}
    assert bj.param_count(model_config(config, {})) == parameters
