"""fla's models: logits of directories in their form against NumPy in float64, older names, refusals."""

import re
from typing import Any

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from based_jax.convert import load_pretrained, save_pretrained
from based_jax.convert.configs import model_config
from tests.arrays import array
from tests.convert import numpy_fla
from tests.convert.random_models import write
from tests.convert.torch_files import same
from tests.marks import slow_but
from tests.tolerances import FLOAT32, assert_close

BASE = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "intermediate_size": 5,
    "vocab_size": 11,
    "norm_eps": 1e-3,
    "conv_size": 3,
    "hidden_act": "swish",
    "fuse_norm": True,
    "use_cache": True,
    "torch_dtype": "float32",
    "transformers_version": "4.48.2",
}
MAMBA2 = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "vocab_size": 11,
    "norm_eps": 1e-3,
    "head_dim": 4,
    "state_size": 3,
    "n_groups": 1,
    "expand": 2,
    "conv_kernel": 4,
    "dt_limit": [0.0, float("inf")],
    "transformers_version": "4.48.2",
}
TRANSFORMERS = {name: MAMBA2[name] for name in MAMBA2 if name not in ("norm_eps", "dt_limit")} | {
    "layer_norm_epsilon": 1e-3,
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "rms_norm": True,
    "num_heads": 4,
    "n_groups": 2,
}
"""A Mamba-2 as `transformers` writes it; older fla writes `fuse_norm` too, and norms all groups together."""
GATED_DELTA_NET = {"head_dim": 3, "expand_v": 2.0, "output_gate_activation": "swish"}
HYBRID = [
    {
        "layers": [1],
        "num_heads": 4,
        "num_kv_heads": 2,
        "qkv_bias": True,
        "window_size": 3,
        "rope_theta": 50.0,
    },
    {"layers": [2], "num_heads": 2},
]
CASES: dict[str, dict[str, Any]] = {
    "gla": {},
    "gla options": {"num_kv_heads": 1, "feature_map": "sqrelu", "use_short_conv": True, "clamp_min": -0.04},
    "gla hybrid": {"attn": HYBRID, "num_hidden_layers": 3, "fuse_norm": False, "expand_k": 0.75},
    "retnet": {"tie_word_embeddings": True},
    "retnet options": {"num_kv_heads": 1, "feature_map": "silu", "use_output_gate": False},
    "retnet bare": {"elementwise_affine": False, "attn": HYBRID[0], "expand_v": 1.0},
    "delta_net": {},
    "delta_net options": {
        "qk_activation": "elu",
        "qk_norm": "sum",
        "use_gate": True,
        "allow_neg_eigval": True,
    },
    "delta_net bare": {"use_short_conv": False, "use_beta": False},
    "gated_deltanet": GATED_DELTA_NET,
    "gated_deltanet options": {
        **GATED_DELTA_NET,
        "num_v_heads": 4,
        "allow_neg_eigval": True,
        "use_gate": False,
    },
    "gated_deltanet bare": {**GATED_DELTA_NET, "use_short_conv": False, "num_heads": 3, "expand_v": 1.0},
    "mamba2": {},
    "mamba2 options": {"n_groups": 2, "D_has_hdim": True, "use_bias": True, "dt_limit": [0.3, 0.8]},
    "mamba2 norm first": {"norm_before_gate": True, "use_conv_bias": False, "tie_word_embeddings": True},
    "mamba2 of transformers": {"norm_before_gate": True},
    "mamba2 of older fla, with the entries of transformers": {"fuse_norm": True},
    "mamba2 fraction": {"expand": 1.7, "head_dim": 13},
    "mamba2 bare": {"rmsnorm": False, "dt_limit": [0.0, {"__float__": "Infinity"}]},
}
CHOSEN = [name for name in CASES if name.endswith((" options", " hybrid", " of transformers"))]
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 9))


def config_of(case: str, **changes: Any) -> dict[str, Any]:
    kind = case.partition(" ")[0]
    base = TRANSFORMERS if "transformers" in case else MAMBA2 if kind == "mamba2" else BASE
    return {"model_type": kind, **base, **CASES[case], **changes}


@pytest.fixture
def gla(tmp_path):
    """A directory of a small GLA with its config and tensors, to be changed."""
    config = config_of("gla")
    return tmp_path, config, numpy_fla.drawn(config)


@pytest.mark.parametrize("case", slow_but(CHOSEN[::2], CASES))
def test_logits(case, tmp_path):
    """float32 here against float64 there: FLOAT32's reason, over two layers."""
    config = config_of(case, **({} if "attn" in CASES[case] else {"num_hidden_layers": 1}))
    tensors = numpy_fla.drawn(config)
    model, params = load_pretrained(write(tmp_path, config, tensors))
    logits, _ = jax.jit(model.apply)(params, array(TOKENS, np.int32))
    assert_close(logits, numpy_fla.logits(config, tensors, TOKENS), FLOAT32)
    assert model.config == model_config(config, {})
    save_pretrained(tmp_path / "back", model, params, like=tmp_path)
    same(load_file(tmp_path / "back" / "model.safetensors"), load_file(tmp_path / "model.safetensors"))


def test_a_mamba2_that_nobody_is_known_to_have_written():
    """Its norm depends on the code that wrote it."""
    for entry in [{"norm_before_gate": True}, {"n_groups": 2}]:
        config = {name: MAMBA2[name] for name in MAMBA2 if name != "dt_limit"} | {"model_type": "mamba2"}
        model_config(config, {})
        (name,) = entry
        with pytest.raises(ValueError, match=f"{name} = .*: expected .*fla's dt_limit or transformers'"):
            model_config(config | entry, {})


class TestOlderNames:
    """Tensors and entries as older versions wrote them give the same parameters."""

    def loaded(self, directory, config, tensors):
        return load_pretrained(write(directory, config, tensors))

    def test_one_matrix_for_gate_and_value(self, gla):
        directory, config, tensors = gla
        _, wanted = self.loaded(*gla)
        older = dict(tensors)
        for layer in (f"model.layers.{index}.mlp" for index in range(2)):
            rows = [older.pop(f"{layer}.{name}_proj.weight") for name in ("gate", "up")]
            older[f"{layer}.gate_proj.weight"] = np.concatenate(rows)
        model, params = self.loaded(directory, config, older)
        chex.assert_trees_all_equal(params, wanted)
        save_pretrained(directory / "back", model, params, like=directory)
        same(load_file(directory / "back" / "model.safetensors"), older)

    @pytest.mark.parametrize(
        ("case", "renamed"),
        [
            ("gla", {"g_norm_swish_gate": "g_norm", "embeddings": "embed_tokens"}),
            ("delta_net", {"attn_norm": "attn.norm", "mlp_norm": "mlp.norm"}),
            ("mamba2", {"embeddings": "embedding"}),
        ],
    )
    def test_names(self, case, renamed, tmp_path):
        config = config_of(case)
        tensors = numpy_fla.drawn(config)
        _, wanted = self.loaded(tmp_path, config, tensors)
        older = tensors
        for today, then in renamed.items():
            assert any(f".{today}." in name for name in older)
            older = {name.replace(f".{today}.", f".{then}."): x for name, x in older.items()}
        chex.assert_trees_all_equal(self.loaded(tmp_path, config, older)[1], wanted)

    def test_a_parameter_that_nothing_reads(self, tmp_path):
        config = config_of("gated_deltanet")
        tensors = numpy_fla.drawn(config)
        _, wanted = self.loaded(tmp_path, config, tensors)
        older = tensors | {f"model.layers.{index}.attn.D": np.ones(2, np.float32) for index in range(2)}
        chex.assert_trees_all_equal(self.loaded(tmp_path, config, older)[1], wanted)

    def test_entries(self):
        config = config_of("gla", num_kv_heads=1)
        names = {
            "num_heads": "num_attention_heads",
            "num_kv_heads": "num_key_value_heads",
            "norm_eps": "rms_norm_eps",
        }
        assert model_config({names.get(name, name): x for name, x in config.items()}, {}) == model_config(
            config, {}
        )
        config = config_of("mamba2", dt_limit=[0.1, 0.5], dt_min=0.01)
        names = {"norm_eps": "layer_norm_epsilon", "dt_limit": "time_step_limit", "dt_min": "time_step_min"}
        older = {names.get(name, name): x for name, x in config.items()} | {"num_heads": 4, "rms_norm": True}
        assert model_config(older, {}) == model_config(config, {})

    def test_two_tensors_of_one_name(self, gla):
        directory, config, tensors = gla
        name = "model.layers.0.attn.g_norm"
        tensors[f"{name}.weight"] = tensors[f"{name}_swish_gate.weight"]
        with pytest.raises(ValueError, match=r"g_norm\.weight'? is there twice"):
            self.loaded(directory, config, tensors)


def test_width_without_weights():
    """Two thirds of four (RetNet: two) times the width, up to a multiple of 256."""
    for kind, ratio, width in [
        ("gla", 4, 768),
        ("gla", 2, 512),
        ("retnet", None, 512),
        ("delta_net", 4, 768),
    ]:
        config = config_of(kind, hidden_size=256, intermediate_size=None, hidden_ratio=ratio)
        assert model_config(config, {}).mlp_hidden == width


def test_whole_channels():
    """Although 2,880 x 0.7 is below 2,016 in floats."""
    config = config_of("gla", hidden_size=2880, expand_k=0.7, num_heads=9)
    assert model_config(config, {}).layer(0).options["expand_k"] == 2016 / 2880


def test_entries_that_are_refused(tmp_path):
    for case, changes, message in [
        ("gla", {"rms_norm_eps": 0.25}, r"rms_norm_eps = 0\.25: expected 0\.001, another value of"),
        ("gla", {"hidden_act": "powlu"}, "hidden_act = 'powlu': expected 'swish': the MLP is SwiGLU"),
        ("gla", {"feature_map": "logsigmoid"}, "feature_map = 'logsigmoid': expected one of 'gelu'"),
        ("gla", {"clamp_min": 0.5}, "least_log_gate = 0.5: expected"),
        ("gla", {"num_heads": 3}, r"expand_k \* d_model = 4: expected a multiple of num_heads = 3"),
        ("gla", {"use_short_conv": 1}, "use_short_conv = 1: expected true or false"),
        ("gla", {"hidden_size": None}, "expected an entry 'hidden_size'"),
        ("gla", {"no_such_entry": 1}, r"entry of config\.json = 'no_such_entry': expected one of attn, "),
        ("gla", {"attn": 5}, "attn = 5: expected null, a JSON object, or a list of them"),
        ("mamba2", {"dt_limit": 3}, "dt_limit = 3: expected two numbers, 0 <= least <= most"),
        ("gla", {"attn": {"layers": [2], "num_heads": 2}}, r"attn.layers = \[2\]: expected a list of"),
        ("gla", {"attn": {"layers": [0, 0], "num_heads": 2}}, "attn.layers = .*, each once"),
        ("gla", {"attn": {"layers": [0]}}, "attn.num_heads = None: expected a positive integer"),
        ("gla", {"model_type": "hgrn2"}, "model_type = 'hgrn2': expected a supported model: gpt2"),
        ("retnet", {"feature_map": "gelu"}, "feature_map = 'gelu': expected one of 'relu', 'relu2'"),
        ("delta_net", {"qk_norm": "max"}, "qk_norm = 'max': expected one of 'l2', 'sum'"),
        ("gated_deltanet", {"expand_v": 1.5}, "expand_v = 1.5: expected whole channels"),
        ("gated_deltanet", {"output_gate_activation": "sigmoid"}, "= 'sigmoid': expected 'swish'"),
        ("gated_deltanet", {"num_v_heads": 3}, "num_v_heads = 3: expected a multiple of num_heads = 2"),
        ("mamba2", {"rms_norm": True}, r"rms_norm = True: expected no entry of another code .*dt_limit"),
        ("mamba2", {"num_heads": 5}, r"num_heads = 5: expected expand \* hidden_size / head_dim = 4"),
        ("mamba2", {"intermediate_size": 8}, r"intermediate_size = 8: expected expand \* hidden_size ="),
        ("mamba2", {"dt_limit": [1, 0]}, r"dt_limit = \[1, 0\]: expected two numbers, 0 <= least <="),
    ]:
        config = config_of(case)
        write(tmp_path, config | changes, numpy_fla.drawn(config))
        with pytest.raises(ValueError, match=message) as caught:
            load_pretrained(tmp_path)
        assert re.match(rf"{re.escape(str(tmp_path))}/config\.json: ", str(caught.value))
