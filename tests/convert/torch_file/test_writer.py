"""Files for torch, written without it. That torch.load reads them was checked with torch 2.13."""

import pickletools
import zipfile

import ml_dtypes
import numpy as np
import pytest

from based_jax.convert.torch_file.reader import load_torch_file
from based_jax.convert.torch_file.writer import write_torch_file
from tests.convert.torch_files import STORAGES, same

TENSORS = {
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), np.float16),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "strided": np.arange(10, dtype=np.uint8)[::3],
    "bf16": np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16).reshape(7, 1),
    "näme": np.arange(3),
}


def test_our_reader_reads_it_back(tmp_path):
    of_types = {name: np.array([0, 1, 1]).astype(dtype) for name, dtype in STORAGES.items()}
    write_torch_file(tmp_path / "w.bin", {**TENSORS, **of_types})
    same(load_torch_file(tmp_path / "w.bin"), {**TENSORS, **of_types})


def test_names_of_one_array_share_a_storage(tmp_path):
    array = np.ones(1000, np.float32)
    write_torch_file(tmp_path / "w.bin", {"a": array, "b": array, "c": array.copy()})
    with zipfile.ZipFile(tmp_path / "w.bin") as archive:
        assert [name for name in archive.namelist() if "/data/" in name] == [
            "archive/data/0",
            "archive/data/1",
        ]
    loaded = load_torch_file(tmp_path / "w.bin")
    assert np.shares_memory(loaded["a"], loaded["b"])
    assert not np.shares_memory(loaded["a"], loaded["c"])


def test_it_names_only_what_torch_allows_in_weights(tmp_path):
    write_torch_file(tmp_path / "w.bin", TENSORS)
    with zipfile.ZipFile(tmp_path / "w.bin") as archive:
        assert archive.testzip() is None
        assert archive.read("archive/version") == b"3\n"
        assert archive.read("archive/byteorder") == b"little"
        code = archive.read("archive/data.pkl")
    named = {str(argument) for code, argument, _ in pickletools.genops(code) if code.name == "GLOBAL"}
    assert {name for name in named if "Storage" not in name} == {
        "torch._utils _rebuild_tensor_v2",
        "collections OrderedDict",
    }


def test_same_bytes_again_and_whole_files_only(tmp_path):
    write_torch_file(tmp_path / "a.bin", TENSORS)
    write_torch_file(tmp_path / "b.bin", TENSORS)
    before = (tmp_path / "a.bin").read_bytes()
    assert (tmp_path / "b.bin").read_bytes() == before
    for tensors in ({}, {"w": np.ones(1, complex)}):
        with pytest.raises(ValueError, match=r"tensors = |dtype of w = 'complex128'"):
            write_torch_file(tmp_path / "a.bin", tensors)
    assert (tmp_path / "a.bin").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.bin", "b.bin"]
