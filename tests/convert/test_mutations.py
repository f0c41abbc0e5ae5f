"""What may be different about a checkpoint: taken, or refused by name.

Every row of a table is tried on every directory of tests/fixtures/checkpoints.
"""

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.convert import load_pretrained, write_safetensors
from based_jax.convert.layouts import flatten
from based_jax.convert.pretrained import language_model_shapes, parse_config
from based_jax.convert.state_dict import read_state_dict
from based_jax.models import LanguageModel
from tests.convert.torch_files import CHECKPOINTS, same

Tensors = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Original:
    """A checkpoint as it should be."""

    config: dict[str, Any]
    tensors: Tensors
    model: LanguageModel
    params: Any

    @property
    def last(self) -> str:
        """The name of a matrix of the last layer."""
        return [name for name in self.tensors if ".layers.1." in name and self.tensors[name].ndim == 2][-1]


@pytest.fixture(scope="module", params=sorted(path.name for path in CHECKPOINTS.iterdir()))
def original(request) -> Original:
    directory = CHECKPOINTS / request.param
    config = json.loads((directory / "config.json").read_text())
    return Original(config, read_state_dict(directory), *load_pretrained(directory))


@pytest.fixture
def file(original, tmp_path) -> Path:
    """Where the weights go, beside the right config.json."""
    (tmp_path / "config.json").write_text(json.dumps(original.config))
    return tmp_path / "model.safetensors"


METRICS = {
    "train_metrics.num-tokens.count": np.zeros(1, np.int64),
    "val_metrics.loss": np.ones(2, np.float32),
}
BUFFERS = {
    "transformer.decay.decay": np.zeros(4, np.float32),
    "transformer.layers.0.mixer.rotary_emb.inv_freq": np.full(4, np.nan, np.float32),
}

TAKEN: dict[str, Callable[[Tensors], Tensors]] = {
    "as it is": lambda tensors: tensors,
    "prefixed keys": lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()},
    "metrics": lambda tensors: METRICS | tensors,
    "buffers": lambda tensors: BUFFERS | tensors,
    "no tied head": lambda tensors: {n: tensor for n, tensor in tensors.items() if n != "lm_head.weight"},
    "another order": lambda tensors: dict(reversed(tensors.items())),
    "float16": lambda tensors: {name: tensor.astype(np.float16) for name, tensor in tensors.items()},
    "bfloat16": lambda tensors: {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()},
    "all at once": lambda tensors: {
        f"model.{n}": t.astype(np.float16) for n, t in (METRICS | tensors).items()
    },
}
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "all at once": np.float16}


def assert_loads(original: Original, directory: Path, dtype: Any = np.float32) -> None:
    model, params = load_pretrained(directory)
    assert model == original.model
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype).astype(np.float32), original.params)
    same(flatten(params), flatten(rounded))


def test_taken(original, file):
    for change in TAKEN:
        write_safetensors(file, TAKEN[change](original.tensors))
        assert_loads(original, file.parent, DTYPES.get(change, np.float32))


def test_shards_are_taken(original, file):
    """Also through links, as the hub's cache keeps its files."""
    tensors = TAKEN["prefixed keys"](METRICS | original.tensors)
    shards, weight_map = {"a.safetensors": [*tensors][::2], "b.safetensors": [*tensors][1::2]}, {}
    for shard, names in shards.items():
        write_safetensors(file.with_name(shard), {name: tensors[name] for name in names})
        weight_map |= dict.fromkeys(names, shard)
    file.with_name(f"{file.name}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    blob = file.with_name("blob")
    file.with_name("a.safetensors").rename(blob)
    file.with_name("a.safetensors").symlink_to(blob)
    assert_loads(original, file.parent)


def spoiled(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors, str], Tensors]:
    """One element, or the shape, of a tensor: the head's, or that of the last layer."""
    return lambda tensors, last: tensors | {name or last: change(tensors[name or last].copy())}


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(tensor: np.ndarray) -> np.ndarray:
        tensor[-1, -1] = value
        return tensor

    return change


REFUSED: dict[str, tuple[Callable[[Tensors, str], Tensors], str]] = {
    "missing": (lambda tensors, last: {n: t for n, t in tensors.items() if n != last}, "1 missing: {last}"),
    "unexpected": (lambda tensors, last: tensors | {"extra": np.ones(3, np.float32)}, "1 unexpected: extra"),
    "renamed": (
        lambda tensors, last: {("extra" if n == last else n): t for n, t in tensors.items()},
        "1 missing: {last}; 1 unexpected: extra",
    ),
    "short": (spoiled("", lambda tensor: tensor[:, :-1]), "1 wrongly shaped: {last}"),
    "transposed": (spoiled("", lambda tensor: tensor[None]), "1 wrongly shaped: {last}"),
    "NaN": (spoiled("", with_value(np.nan)), "NaN or infinity in {last}"),
    "infinity": (spoiled("", with_value(-np.inf)), "NaN or infinity in {last}"),
    "untied head": (spoiled("lm_head.weight", with_value(0.5)), "lm_head.weight differs"),
    "twice": (lambda tensors, last: tensors | {f"model.{last}": tensors[last]}, "{last} is there twice"),
    "metrics only": (lambda tensors, last: METRICS, "no weights, only train_metrics"),
}


def assert_refused(directory: Path, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_pretrained(directory)
    assert "\n" not in str(caught.value)


def test_refused(original, file):
    for change in REFUSED:
        mutate, message = REFUSED[change]
        write_safetensors(file, mutate(original.tensors, original.last))
        assert_refused(file.parent, message.format(last=original.last))


def reconfigured(original: Original, **changes: Any) -> dict[str, Any]:
    """The config with other entries; `mixer__feature_dim=3` is an entry inside another."""
    config = copy.deepcopy(original.config)
    for name, value in changes.items():
        *outer, last = name.split("__")
        node = config
        for key in outer:
            node = node[key]
        node[last] = value
    return config


WRONG_CONFIGS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "all": [
        ({"vocab_size": 300}, "wrongly shaped"),
        ({"pad_vocab_size_multiple": 100}, "wrongly shaped"),
        ({"n_layer": 1}, ": expected 1, as the config says"),
        ({"n_layer": 10**12}, "n_layer = 1000000000000: expected"),
        ({"n_layer": "2"}, "n_layer = '2': expected an integer"),
        ({"rms_norm": False}, "norm"),
        ({"format": "based_jax"}, "version = None: expected 1"),
        ({"format": "based_jax", "version": 1}, "model = None: expected a JSON object"),
    ],
    "gpt": [
        ({"n_embd": 64}, "wrongly shaped"),
        ({"n_head": 3}, "expected a multiple of num_heads = 3"),
        ({"n_head": 0}, "n_head = 0"),
        ({"mlp_fc1_bias": True}, "mlp.fc1.bias"),
        ({"qkv_proj_bias": True}, "Wqkv.bias"),
        ({"max_position_embeddings": 64}, "position_embeddings"),
        ({"activation_function": "relu"}, "wrongly shaped"),
        ({"activation_function": "tanh"}, "activation_function = 'tanh'"),
        ({"prenorm": False}, "unexpected: transformer.ln_f.weight"),
        ({"prenorm": False, "parallel_block": True}, "parallel_block = True: expected false"),
        ({"parallel_block": True, "parallel_block_tied_norm": True}, "norm2.weight"),
        ({"word_embed_proj_dim": 16}, "wrongly shaped"),
        ({"rotary_emb_scale_base": 512}, "rotary_emb_scale_base = 512: expected None: xPos"),
        ({"resid_pdrop": 1}, "residual_dropout = 1"),
        ({"mixer": "BaseConv"}, "mixer = 'BaseConv': expected a JSON object"),
    ],
    "based": [
        ({"alt_mixer__feature_dim": 4}, "wrongly shaped"),
        ({"alt_mixer__num_heads": 5}, "wrongly shaped"),
        ({"alt_mixer__num_heads": "4"}, "config.json"),
        ({"alt_mixer___target_": "x.Hedgehog"}, "alt_mixer._target_ = 'x.Hedgehog'"),
        ({"alt_mixer__feature_map": {"_target_": "x.Identity"}}, "feature_map._target_ = 'x.Identity'"),
        ({"alt_mixer__parallel_implementation": "tk"}, "parallel_implementation = 'tk'"),
        ({"mixer__expand_proj": 2}, "wrongly shaped"),
        ({"mixer__kernel_size": 4}, "wrongly shaped"),
        ({"mixer__use_bias": False}, "unexpected"),
        ({"alt_mixer_layers": [0]}, "unexpected"),
        ({"alt_mixer_layers": 1}, "config.json"),
        ({"alt_mixer_2__window_size": -2}, "window_size = -2"),
        ({"alt_mixer_2__window_size": "16"}, "config.json"),
    ],
    "mamba": [
        ({"d_model": 64}, "wrongly shaped"),
        ({"ssm_cfg": {"d_state": 8}}, "wrongly shaped"),
        ({"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg.layer = 'Mamba2': expected 'Mamba1'"),
        ({"ssm_cfg": {"d_sate": 8}}, "entry of ssm_cfg = 'd_sate'"),
        ({"ssm_cfg": [1]}, "config.json"),
        ({"d_intermediat": 8}, "did you mean 'd_intermediate'?"),
        ({"d_intermediate": 128}, "missing"),
        ({"attn_layer_idx": [2]}, "attn_layer_idx = [2]: expected a list of layers below 2"),
        ({"attn_layer_idx": [1]}, "attn_cfg.causal = None: expected true"),
        ({"attn_layer_idx": [1], "attn_cfg": {"causal": True}}, "attn_cfg.num_heads = None"),
        ({"attn_layer_idx": [1], "attn_cfg": {"d_conv": 4}}, "attn_cfg.d_conv = 4: expected 0"),
    ],
}


@pytest.mark.release
def test_wrong_configs(original, tmp_path):
    """Each kind of model; the weights are the right ones."""
    write_safetensors(tmp_path / "model.safetensors", original.tensors)
    is_mamba, is_based = "ssm_cfg" in original.config, "alt_mixer" in original.config
    rows = WRONG_CONFIGS["all"] + WRONG_CONFIGS["mamba" if is_mamba else "gpt"]
    for changes, message in rows + (WRONG_CONFIGS["based"] if is_based else []):
        (tmp_path / "config.json").write_text(json.dumps(reconfigured(original, **changes)))
        assert_refused(tmp_path, message)


JUNK = (None, -1, 0, 2.5, 10**12, "", "x", [], [-1], {}, True)


@given(st.data())
def test_any_value_in_a_config_is_understood_or_refused(original, data):
    paths = list(entries(original.config))
    path = data.draw(st.sampled_from(paths))
    changes = {"__".join(path): data.draw(st.sampled_from(JUNK))}
    shapes = {name: tensor.shape for name, tensor in original.tensors.items()}
    try:
        language_model_shapes(parse_config(reconfigured(original, **changes), shapes, Path("here")))
    except ValueError as error:
        message = str(error)
    else:
        message = "understood, expected"
    assert "expected" in message, message


def entries(config: dict[str, Any], outer: tuple[str, ...] = ()):
    for name, value in config.items():
        yield (*outer, name)
        if isinstance(value, dict):
            yield from entries(value, (*outer, name))
