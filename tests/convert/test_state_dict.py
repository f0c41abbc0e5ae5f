"""Reading checkpoints from files, shards and directories; writing safetensors; comparing names and shapes."""

import json
import os
import shutil
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from based_jax.convert import state_dict
from based_jax.convert.state_dict import read_state_dict, write_safetensors
from based_jax.convert.torch_file.instructions import CheckpointError
from tests.convert.torch_files import CHECKPOINTS, STORAGES, named, same, storage, tensor
from tests.convert.torch_files import save as torch_save

ONE = np.ones(1, np.float32)


def with_index(directory: Path, shards: dict[str, list[str]], name="model.safetensors.index.json") -> Path:
    weight_map = {key: shard for shard, keys in shards.items() for key in keys}
    (directory / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return directory


class TestReadStateDict:
    @pytest.mark.parametrize("name", ["based-tiny", "attn-tiny"])
    def test_files_and_directory_agree(self, name):
        expected = load_file(CHECKPOINTS / name / "model.safetensors")
        same(read_state_dict(CHECKPOINTS / name), expected)
        same(read_state_dict(str(CHECKPOINTS / name / "model.safetensors")), expected)
        same(read_state_dict(CHECKPOINTS / name / "pytorch_model.bin"), expected)

    def test_what_a_directory_prefers(self, tmp_path):
        expected = load_file(CHECKPOINTS / "attn-tiny" / "model.safetensors")
        shutil.copy(CHECKPOINTS / "attn-tiny" / "pytorch_model.bin", tmp_path / "shard.bin")
        with_index(tmp_path, {"shard.bin": list(expected)}, "pytorch_model.bin.index.json")
        same(read_state_dict(tmp_path), expected)
        (tmp_path / "shard.bin").rename(tmp_path / "pytorch_model.bin")
        same(read_state_dict(tmp_path), expected)
        save_file({"shard": ONE}, tmp_path / "s.safetensors")
        with_index(tmp_path, {"s.safetensors": ["shard"]})
        assert list(read_state_dict(tmp_path)) == ["shard"]
        save_file({"whole": ONE}, tmp_path / "model.safetensors")
        assert list(read_state_dict(tmp_path)) == ["whole"]

    def test_prefix_metrics_and_buffers(self, tmp_path):
        names = [
            "model.transformer.ln_f.weight",
            "model.model.x",
            "lm_model.weight",
            "train_metrics.num-tokens.count",
            "model.val_metrics.loss",
            "model.transformer.decay.decay",
            "model.transformer.layers.0.mixer.rotary_emb.inv_freq",
            "transformer.layers.0.mixer.rotary_emb.inv_freqs",
            "transformer.decay.decay.x",
            "x.transformer.decay.decay",
        ]
        save_file(dict.fromkeys(names, ONE), tmp_path / "model.safetensors")
        assert set(read_state_dict(tmp_path)) == {
            "transformer.ln_f.weight",
            "model.x",
            "lm_model.weight",
            "transformer.layers.0.mixer.rotary_emb.inv_freqs",
            "transformer.decay.decay.x",
            "x.transformer.decay.decay",
        }

    def test_not_finite(self, tmp_path, monkeypatch):
        for dtype in [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]:
            for value in [np.nan, np.inf, -np.inf]:
                monkeypatch.setattr(state_dict, "_CHECK_ELEMENTS", 8)
                bad = {f"bad{i:02}": np.where(np.arange(20) == i, value, 0).astype(dtype) for i in range(20)}
                fine = np.array([np.finfo(np.float16).max] * 20, dtype)
                file = tmp_path / "w.safetensors"
                write_safetensors(file, {**bad, "fine": fine, "metrics": bad["bad00"]})
                with pytest.raises(
                    CheckpointError,
                    match=r"w\.safetensors: NaN or infinity in bad00, .* and 10 more, as float32$",
                ):
                    read_state_dict(file)

    def test_numbers_that_are_no_weights(self, tmp_path):
        name, kinds = "layers.0.\x1b[31mred\n", {np.dtype(dtype): name for name, dtype in STORAGES.items()}
        files = [tmp_path / "w.safetensors", tmp_path / "w.bin"]
        for value in (
            np.float64([1, -1e300]),
            np.complex64([1j]),
            np.int8([3]),
            np.int64([1]),
            np.uint64([1 << 63]),
            np.bool_([True]),
        ):
            save_file({name: value, "fine": ONE}, files[0])
            if kind := kinds.get(value.dtype):  # torch_files writes the others not
                on = storage(numel=value.size, dtype=named("torch", kind))
                torch_save(files[1], {name: tensor(shape=value.shape, stride=(1,), on=on)}, {"0": value})
            for file in files if kind else files[:1]:
                with pytest.raises(CheckpointError) as caught:
                    read_state_dict(file)
                assert str(caught.value).startswith(f"{file}: ")
                assert repr(name) in str(caught.value)
                assert str(caught.value).isprintable()

    def test_nothing_to_read(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"none: no such file or directory"):
            read_state_dict(tmp_path / "none")
        with pytest.raises(CheckpointError, match=r"no weights in this directory"):
            read_state_dict(tmp_path)
        (tmp_path / "weights.ckpt").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"weights\.ckpt: expected a weight file ending in"):
            read_state_dict(tmp_path / "weights.ckpt")
        save_file({"metrics": ONE}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match="no weights, only metrics"):
            read_state_dict(tmp_path)


class TestSafetensorsDamage:
    def test_truncation_anywhere(self, tmp_path):
        file = tmp_path / "cut.safetensors"
        write_safetensors(file, {"a": np.arange(3.0), "b": np.ones((2, 2), np.float16)}, {"format": "pt"})
        content = file.read_bytes()
        for length in range(len(content)):
            file.write_bytes(content[:length])
            with pytest.raises(CheckpointError, match=r"cut\.safetensors: truncated or damaged"):
                read_state_dict(file)

    def test_headers_that_lie(self, tmp_path):
        for entry in [
            {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
            {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [1 << 62, 1 << 62, 0], "data_offsets": [0, 0]},
            {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [0, 1 << 62], "data_offsets": [0, 0]},
            {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]},
            {"dtype": "X", "shape": [1], "data_offsets": [0, 4]},
            {},
        ]:
            header = json.dumps({"w": entry}).encode()
            file = tmp_path / "w.safetensors"
            file.write_bytes(
                struct.pack("<Q", len(header)) + header + bytes(entry.get("data_offsets", [0, 4])[1])
            )
            with pytest.raises(CheckpointError, match=r"w\.safetensors"):
                read_state_dict(file)

    def test_headers_that_can_be_read_in_two_ways(self, tmp_path):
        for header, message in [
            (b'{"w":%s,"w":%s}', "the key 'w' is there twice"),
            (b'{"w":%s,"\\u0077":%s}', "the key 'w' is there twice"),
            (
                b'{"v":%s,"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                "'dtype' is there",
            ),
            (b"[" * 65 + b"]" * 65, "more than 64 levels"),
        ]:
            file = tmp_path / "w.safetensors"
            header = header.replace(b"%s", b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}')
            file.write_bytes(struct.pack("<Q", len(header)) + header + ONE.tobytes()[:4])
            with pytest.raises(CheckpointError, match=rf"w\.safetensors: .*{message}"):
                read_state_dict(file)

    def test_a_header_beyond_the_limit_is_not_read(self, tmp_path):
        file = tmp_path / "w.safetensors"
        with file.open("wb") as stream:
            stream.write(struct.pack("<Q", 1 << 40))
            stream.truncate(1 << 41)  # sparse
        with pytest.raises(CheckpointError, match="a header of 1099511627776 bytes, expected at most"):
            read_state_dict(file)


class TestShards:
    def test_shards_stay_in_the_directory(self, tmp_path):
        inner = tmp_path / "checkpoint"
        (inner / "sub").mkdir(parents=True)
        for target in (tmp_path / "outside.safetensors", inner / "sub" / "inside.safetensors"):
            save_file({"w": ONE}, target)
        for shard in (
            "../outside.safetensors",
            "sub/../../outside.safetensors",
            "sub/inside.safetensors",
            "..",
            ".",
            "",
            "..\\outside.safetensors",
            "C:outside.safetensors",
            str(tmp_path / "outside.safetensors"),
            "~/outside.safetensors",
            ".hidden.safetensors",
            "a.safetensors\n",
            "a.safetensors\0",
        ):
            with pytest.raises(CheckpointError, match=r"index\.json: w is in .*, expected a file of this"):
                read_state_dict(with_index(inner, {shard: ["w"]}))

    def test_missing_shard_and_unknown_kind(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"none\.safetensors: no such file"):
            read_state_dict(with_index(tmp_path, {"none.safetensors": ["w"]}))
        with pytest.raises(CheckpointError, match=r"weights\.pkl: expected a weight file"):
            read_state_dict(with_index(tmp_path, {"weights.pkl": ["w"]}))

    @pytest.mark.parametrize("promised", [["a"], ["a", "b", "c"]])
    def test_shards_hold_what_the_index_promises(self, tmp_path, promised):
        save_file({"a": ONE, "b": ONE}, tmp_path / "s.safetensors")
        with pytest.raises(CheckpointError, match=r"s\.safetensors: differs from"):
            read_state_dict(with_index(tmp_path, {"s.safetensors": promised}))

    def test_broken_index(self, tmp_path):
        for text in [
            "",
            "{",
            "[]",
            "3",
            "null",
            '{"weight_map": null}',
            '{"weight_map": {}}',
            '{"weight_map": ["w"]}',
            '{"weight_map": {"w": 3}}',
            '{"weight_map": {"w": null}}',
            "{}",
            "[" * 100_000,
            "\ud800",
        ]:
            (tmp_path / "model.safetensors.index.json").write_bytes(text.encode(errors="surrogatepass"))
            with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: .{0,300}$"):
                read_state_dict(tmp_path)


TENSORS = {
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float16),
    "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">f4"),
    "strided": np.arange(10, dtype=np.uint8)[::3],
    "bf16": np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16).reshape(7, 1),
    "fp16": np.linspace(-3, 3, 5).astype(np.float16),
    "bool": np.array([True, False]),
    "näme": np.arange(3, dtype=np.float64),
}


class TestWriteSafetensors:
    def test_the_library_reads_it_back(self, tmp_path):
        file = tmp_path / "w.safetensors"
        write_safetensors(file, TENSORS, {"format": "pt", "source": "tést"})
        loaded = load_file(file)
        assert set(loaded) == set(TENSORS)
        for name, array in TENSORS.items():
            assert loaded[name].dtype == array.dtype.newbyteorder("=")
            assert loaded[name].shape == array.shape
            np.testing.assert_array_equal(loaded[name].astype(np.float64), array.astype(np.float64))
        with safe_open(file, framework="np") as opened:
            assert opened.metadata() == {"format": "pt", "source": "tést"}

    def test_same_bytes_in_any_order(self, tmp_path):
        metadata = {str(i): "x" for i in range(9)}
        write_safetensors(tmp_path / "a", TENSORS, metadata)
        write_safetensors(tmp_path / "b", dict(reversed(TENSORS.items())), dict(reversed(metadata.items())))
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_replaces_whole_files_only(self, tmp_path):
        file = tmp_path / "w.safetensors"
        write_safetensors(file, {"w": ONE})
        before = file.read_bytes()
        with pytest.raises(OSError, match="device lost"):
            write_safetensors(file, {"a": ONE, "b": _FailsToRead()})  # pyright: ignore[reportArgumentType]
        assert file.read_bytes() == before
        assert os.listdir(tmp_path) == [file.name]

    def test_wrong_arguments(self, tmp_path):
        file = tmp_path / "w.safetensors"
        with pytest.raises(ValueError, match="tensor w has dtype complex128"):
            write_safetensors(file, {"w": np.ones(1, complex)})
        with pytest.raises(ValueError, match="expected text only"):
            write_safetensors(file, {"w": ONE}, {"step": 3})  # pyright: ignore[reportArgumentType]
        for tensors in ({}, {"": ONE}, {"__metadata__": ONE}):
            with pytest.raises(ValueError, match="expected names"):
                write_safetensors(file, tensors)
        with pytest.raises(FileNotFoundError):
            write_safetensors(tmp_path / "none" / "w.safetensors", {"w": ONE})
        assert not file.exists()


class _FailsToRead:
    dtype, shape, size = np.dtype(np.float32), (1,), 1

    def __array__(self, dtype=None, copy=None):
        raise OSError("device lost")
