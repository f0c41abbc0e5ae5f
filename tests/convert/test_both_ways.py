"""The authors' form and ours, there and back."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from based_jax.convert import __main__ as convert
from based_jax.convert import load_pretrained, read_state_dict, save_pretrained
from based_jax.convert.layouts import flatten
from based_jax.convert.torch_file.reader import load_torch_file
from based_jax.convert.written_like import expect_same
from tests.convert.torch_files import CHECKPOINTS, same


@pytest.mark.parametrize("name", sorted(path.name for path in CHECKPOINTS.iterdir()))
def test_authors_to_native_to_authors(name, tmp_path, capsys):
    """Also: the command writes what the function does, and copies the tokenizer."""
    source, native, back = tmp_path / "source", tmp_path / "native", tmp_path / "back"
    shutil.copytree(CHECKPOINTS / name, source)
    (source / "model.safetensors").unlink()
    (source / "tokenizer.json").write_text("{}")
    convert.main([str(source), str(native)])
    convert.main([str(native), str(back), "--like", str(source)])
    assert f"written as  {source}: config.json, pytorch_model.bin" in capsys.readouterr().out
    assert sorted(file.name for file in back.iterdir()) == [
        *("config.json", "pytorch_model.bin", "tokenizer.json")
    ]
    same(load_torch_file(back / "pytorch_model.bin"), load_torch_file(source / "pytorch_model.bin"))
    before, after = (json.loads((path / "config.json").read_text()) for path in (source, back))
    assert before == after
    (one, params), (other, again) = load_pretrained(source), load_pretrained(back)
    expect_same(one.config, other.config)
    same(flatten(again), flatten(params))
    save_pretrained(tmp_path / "function", one, params, like=source)
    written = (tmp_path / "function" / "pytorch_model.bin").read_bytes()
    assert written == (back / "pytorch_model.bin").read_bytes()
    save_pretrained(tmp_path / "safetensors", one, params, like=CHECKPOINTS / name)
    assert (tmp_path / "safetensors" / "model.safetensors").is_file()


class TestCommand:
    def test_the_tokenizer_is_that_of_like(self, tmp_path):
        source, like, target = (tmp_path / name for name in ("source", "like", "target"))
        for folder in (source, like):
            shutil.copytree(CHECKPOINTS / "attn-tiny", folder)
            (folder / "tokenizer.json").write_text(json.dumps(folder.name))
        convert.main([str(source), str(target), "--like", str(like)])
        assert json.loads((target / "tokenizer.json").read_text()) == "like"

    def test_narrower_weights(self, tmp_path, capsys):
        """Also: the ends of texts are kept, which only config.json has."""
        source, target = shutil.copytree(CHECKPOINTS / "attn-tiny", tmp_path / "source"), tmp_path / "half"
        config = json.loads((source / "config.json").read_text()) | {"eos_token_id": 3}
        (source / "config.json").write_text(json.dumps(config))
        convert.main([str(source), str(target), "--dtype", "bfloat16"])
        assert "bfloat16" in capsys.readouterr().out
        assert json.loads((target / "generation_config.json").read_text()) == {"eos_token_id": 3}
        whole, half = (read_state_dict(path) for path in (source, target))
        same(half, {key: tensor.astype(ml_dtypes.bfloat16) for key, tensor in whole.items()})

    def test_values_that_overflow_are_named(self):
        with pytest.raises(ValueError, match="dtype = 'float16': expected one with the range for the"):
            convert.narrowed({"params": {"x": {"y": np.array([1e6], np.float32)}}}, "float16")

    def test_dtype_and_license_of_a_form_that_has_both(self, tmp_path):
        source = str(CHECKPOINTS / "attn-tiny")
        with pytest.raises(ValueError, match=r"dtype and license = .*: expected neither with --like"):
            convert.main([source, str(tmp_path), "--like", source, "--license", "mit"])

    def test_another_model_leaves_no_files(self, tmp_path):
        source, like = (
            shutil.copytree(CHECKPOINTS / name, tmp_path / name) for name in ("attn-tiny", "based-tiny")
        )
        (like / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match="expected a checkpoint of the same model"):
            convert.main([str(source), str(tmp_path / "target"), "--like", str(like)])
        assert not (tmp_path / "target").exists()

    def test_targets_whose_files_would_be_lost(self, tmp_path):
        source, like, file = (str(tmp_path / name) for name in ("source", "like", "file"))
        for path in (source, like):
            shutil.copytree(CHECKPOINTS / "attn-tiny", path)
        Path(file).touch()
        for words, what in (
            ([source, source], "a target other than the source"),
            ([source, like, "--like", like], "a target other than --like"),
            ([source, file], "a directory that can be written"),
        ):
            with pytest.raises(ValueError, match=f"^DST = .*: expected {what}$"):
                convert.main(words)

    def test_a_run_keeps_its_config(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model": {}, "train": {}, "data": {}}')
        with pytest.raises(ValueError, match="expected another one than that of a training run"):
            convert.main([str(CHECKPOINTS / "attn-tiny"), str(tmp_path)])
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]

    def test_other_weights_in_the_way(self, tmp_path):
        (tmp_path / "like").mkdir()
        for name in ("config.json", "pytorch_model.bin"):
            shutil.copy(CHECKPOINTS / "attn-tiny" / name, tmp_path / "like")
        shutil.copy(CHECKPOINTS / "attn-tiny" / "model.safetensors", tmp_path)
        with pytest.raises(ValueError, match=r"expected no weights that a loader prefers to"):
            convert.main([str(CHECKPOINTS / "attn-tiny"), str(tmp_path), "--like", str(tmp_path / "like")])
