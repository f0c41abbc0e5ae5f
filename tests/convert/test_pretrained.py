"""Models in directories: the authors' and our own, there and back, and what must be refused."""

import shutil
from pathlib import Path

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import pytest
from safetensors.numpy import load_file

import based_jax as bj
from based_jax import mixers
from based_jax.convert import __main__ as convert
from based_jax.convert.pretrained import load_pretrained, save_pretrained
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals
from tests.commands import run_here
from tests.convert.random_models import drawn, small
from tests.convert.torch_files import CHECKPOINTS
from tests.marks import slow_but

TOKENS = jnp.zeros((1, 1), jnp.int32)
EMBEDDING = "transformer.embeddings.word_embeddings.weight"


@pytest.fixture(params=["based-tiny", "attn-tiny", "mamba-tiny"])
def torch_directory(request) -> Path:
    return CHECKPOINTS / request.param


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of a checkpoint to spoil, with its safetensors only."""
    directory = tmp_path / "copy"
    directory.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(CHECKPOINTS / "based-tiny" / name, directory)
    return directory


class TestTheAuthorsDirectories:
    def test_parameters_are_those_of_init(self, torch_directory):
        """Whatever the dtype of the computation."""
        model, params = load_pretrained(torch_directory, dtype="bfloat16")
        assert model.config.dtype == "bfloat16"
        fresh = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
        chex.assert_trees_all_equal_shapes_and_dtypes(params, fresh)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))


class TestRefusals:
    @pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"format": "based_jax", "version": 1, "model": {}}'])
    def test_broken_config(self, copy, text):
        (copy / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config\.json"):
            load_pretrained(copy)

    def test_no_directory_or_config(self, tmp_path):
        for source in ("no/such/directory", "./missing", "/dev/null", Path("missing")):
            with pytest.raises(FileNotFoundError, match="expected a directory"):
                load_pretrained(source)
        with pytest.raises(FileNotFoundError, match=r"found no config\.json"):
            load_pretrained(tmp_path)

    def test_parameters_of_another_model(self, tmp_path):
        model, params = load_pretrained(CHECKPOINTS / "based-tiny")
        other, _ = load_pretrained(CHECKPOINTS / "attn-tiny")
        with pytest.raises(ValueError, match="params"):
            save_pretrained(tmp_path / "x", other, params)
        del params["params"]["final_norm"]
        with pytest.raises(ValueError, match="final_norm/scale"):
            save_pretrained(tmp_path / "x", model, params)
        assert not (tmp_path / "x").exists()


class TestOurDirectories:
    @pytest.mark.parametrize("name", slow_but(["attention", "rwkv7"], mixers.names()))
    def test_every_registered_mixer(self, name, tmp_path):
        self.there_and_back(small(mixers={"M": MixerSpec(name)}), tmp_path)

    def test_other_parts(self, tmp_path):
        config = small(
            schedule="AB",
            mixers={
                "A": MixerSpec("attention", {"num_heads": 4, "num_kv_heads": 2, "qkv_bias": True}),
                "B": MixerSpec("linear_attention", {"decay": "gated", "num_heads": 2, "feature_dim": 4}),
            },
            mlp="plain",
            mlp_activation="gelu",
            mlp_bias=True,
            norm="layer",
            max_positions=7,
        )
        self.there_and_back(config, tmp_path)

    def there_and_back(self, config: ModelConfig, directory: Path) -> None:
        model = bj.LanguageModel(config)
        params = drawn(model)
        save_pretrained(directory, model, params)
        again, same_params = load_pretrained(directory)
        assert again.config == config
        chex.assert_trees_all_equal(same_params, params, strict=True)
        first = (directory / "model.safetensors").read_bytes()
        save_pretrained(directory, again, params)
        assert (directory / "model.safetensors").read_bytes() == first

    def test_parameters_with_axis_names(self, tmp_path):
        model = bj.LanguageModel(small(mixers={"M": MixerSpec("short_conv")}))
        boxed = normals(model.init, TOKENS)
        save_pretrained(tmp_path, model, boxed)
        chex.assert_trees_all_equal(load_pretrained(tmp_path)[1], nn.meta.unbox(boxed), strict=True)

    def test_dtypes_are_kept(self, tmp_path):
        model = bj.LanguageModel(small())
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), drawn(model))
        save_pretrained(tmp_path, model, params)
        assert load_file(tmp_path / "model.safetensors")[EMBEDDING].dtype == ml_dtypes.bfloat16


class TestCommand:
    @pytest.mark.parametrize(
        "argv", [["missing", "out"], ["only-one"], ["a", "b", "--wrong"], ["same", "same"]]
    )
    def test_mistakes(self, argv, tmp_path, capsys):
        (tmp_path / "same").mkdir()
        argv = [str(tmp_path / name) if not name.startswith("-") else name for name in argv]
        done = run_here(convert.PROG, convert.main, argv, capsys)
        assert done.status == 2
        assert len(done.err.strip().splitlines()) == 1, done.err
        assert not done.out


def test_a_training_run_is_its_model(tmp_path):
    """A run directory has a config.json of its own; what is loaded is the model that the run wrote."""
    model = bj.LanguageModel(small())
    params = drawn(model)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="expected a finished run"):
        load_pretrained(run)
    save_pretrained(run / "model", model, params)
    again, restored = load_pretrained(run)
    assert again.config == model.config
    chex.assert_trees_all_equal(restored, params)
    with pytest.raises(ValueError, match=r"params = \[.*\]: expected the model's variables"):
        save_pretrained(run / "model", model, params["params"])
