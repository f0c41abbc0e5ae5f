"""Torch files: the stored tensors or one clear error; and files that we write, which torch.load reads."""

import logging
import pickle
import pickletools
import struct
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from based_jax.convert.torch_file import reader as torch_pickle
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.convert.torch_file.reader import load_torch_file
from based_jax.convert.torch_file.writer import write_torch_file
from tests.convert.torch_files import (
    CHECKPOINTS,
    FLOATS,
    ORDERED_DICT,
    REBUILD,
    SIX,
    STORAGES,
    Runs,
    call,
    named,
    program,
    refused,
    same,
    save,
    storage,
    tensor,
)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "weights.bin"


class TestTensors:
    def test_every_dtype(self, file):
        for name in STORAGES:
            values = np.array([0, 1, 1, 0, 1, 0]).astype(STORAGES[name])
            content = {"w": tensor(on=storage(dtype=named("torch", name)))}
            loaded = load_torch_file(save(file, content, {"0": values}))["w"]
            assert loaded.dtype == values.dtype
            np.testing.assert_array_equal(loaded, values.reshape(2, 3))

    def test_windows_on_a_storage(self, file):
        for shape, stride, offset, expected in [
            ((3, 2), (1, 3), 0, SIX.reshape(2, 3).T),
            ((2, 2), (3, 1), 1, SIX.reshape(2, 3)[:, 1:]),
            ((3,), (2,), 1, SIX[1::2]),
            ((), (), 5, SIX[5]),
            ((1, 6), (1 << 80, 1), 0, SIX[None]),
            ((2, 2), (0, 1), 4, np.stack([SIX[4:], SIX[4:]])),
            ((0, 3), (3, 1), 6, np.zeros((0, 3))),
        ]:
            loaded = load_torch_file(save(file, {"w": tensor(shape, stride, offset)}))["w"]
            assert loaded.flags.c_contiguous
            np.testing.assert_array_equal(loaded, expected)
            assert loaded.shape == expected.shape

    def test_tied_tensors_share_memory_and_cannot_be_written(self, file):
        loaded = load_torch_file(save(file, {"a": tensor(), "b": tensor()}))
        assert np.shares_memory(loaded["a"], loaded["b"])
        with pytest.raises(ValueError, match="read-only"):
            loaded["a"][0] = 1

    def test_no_byteorder_entry_and_another_root(self, file):
        np.testing.assert_array_equal(
            load_torch_file(save(file, {"w": tensor()}, byteorder=None, root="x"))["w"], SIX.reshape(2, 3)
        )

    def test_memory_stays_near_one_copy(self, file):
        size = 64 << 20
        content = {"w": tensor((size // 4,), (1,), on=storage(numel=size // 4))}
        save(file, content, {"0": np.zeros(size // 4, np.float32)})
        tracemalloc.start()
        load_torch_file(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.6 * size


class TestOtherEntries:
    def test_entries_without_a_tensor_are_left_out_and_logged(self, file, caplog):
        content = {
            "w": tensor(),
            "metrics": {"steps": 1 << 40, "loss": 0.5},
            "note": "x",
            "parts": [None, True],
        }
        with caplog.at_level(logging.INFO):
            assert list(load_torch_file(save(file, content))) == ["w"]
        assert "'metrics', 'note', 'parts'" in caplog.text

    def test_lightning_file(self, file, caplog):
        parameter = call(named("torch._utils", "_rebuild_parameter"), tensor(), True, ORDERED_DICT)
        version = program({"_metadata": {"": {"version": 1}}}) + pickle.BUILD
        state_dict = program({"model.w": parameter}) + version
        unread = tensor(on=storage("1"))
        content = {"epoch": 3, "state_dict": state_dict, "optimizer_states": [{0: unread}]}
        with caplog.at_level(logging.INFO):
            loaded = load_torch_file(save(file, content, {"0": SIX, "1": SIX}))
        assert list(loaded) == ["model.w"]
        assert "'epoch', 'optimizer_states'" in caplog.text

    def test_without_tensors_at_the_top(self, file):
        for content in [{"model": {"w": 1}}, {}, [tensor()], tensor(), 7, "text"]:
            with pytest.raises(
                CheckpointError, match=r"no tensors at the top level|expected a dict of tensors"
            ):
                load_torch_file(save(file, content))


class TestTensorChecks:
    def test_windows_outside_their_storage(self, file):
        for arguments in [
            {"offset": -1},
            {"offset": 1},
            {"offset": 1 << 70},
            {"offset": True},
            {"offset": "0"},
            {"shape": (-2, 3)},
            {"shape": (2, 4)},
            {"shape": (1 << 64, 1 << 64)},
            {"shape": (1 << 64, 0)},
            {"shape": (0, 3), "offset": 7},
            {"shape": (2, 3.0)},
            {"shape": [2, 3]},
            {"shape": (2,)},
            {"stride": (-3, 1)},
            {"stride": (3, -1), "offset": 2},
            {"stride": (1 << 62, 1)},
            {"stride": (4, 1)},
            {"shape": (1000, 1), "stride": (0, 1)},
            {"shape": (1,) * 65, "stride": (1,) * 65},
            {"grad": 1},
            {"hooks": {"a": 1}},
            {"hooks": [1]},
            {"hooks": FLOATS},
            {"on": program("0")},
            {"on": FLOATS},
        ]:
            refused(save(file, {"w": tensor(**arguments)}), "data.pkl")

    def test_parameters_with_more_than_a_tensor(self, file):
        for arguments in [(1, None), (True, {"a": 1}), (True,), (True, None, None)]:
            parameter = named("torch._utils", "_rebuild_parameter")
            refused(save(file, {"w": call(parameter, tensor(), *arguments)}), "_rebuild_parameter")

    def test_storages_that_lie(self, file):
        for identity in [
            {"numel": 5},
            {"numel": 7},
            {"numel": -6},
            {"numel": 6.0},
            {"numel": True},
            {"numel": 1 << 90},
            {"key": "1"},
            {"key": "../data.pkl"},
            {"key": 0},
            {"dtype": named("torch", "DoubleStorage")},
            {"dtype": "FloatStorage"},
            {"dtype": REBUILD},
            {"location": 0},
            {"what": "module"},
            {"what": FLOATS},
        ]:
            refused(save(file, {"w": tensor(on=storage(**identity))}), "storage")

    def test_one_storage_described_twice(self, file):
        other = tensor(on=storage(dtype=named("torch", "IntStorage")))
        refused(save(file, {"a": tensor(), "b": other}), "two descriptions")

    def test_overlapping_windows_cannot_unfold_without_end(self, file):
        size = 4096
        windows = {
            f"w{i}": tensor((64, 32 - i // 8), (1, 64), i % 8, on=storage(numel=size)) for i in range(99)
        }
        refused(save(file, windows, {"0": np.zeros(size, np.float32)}), "unfold")


class TestArchiveChecks:
    def test_missing(self, tmp_path):
        for path in (tmp_path, tmp_path / "none.bin"):
            with pytest.raises(CheckpointError, match="no such file"):
                load_torch_file(path)

    def test_compressed_entries(self, file):
        save(file, {"w": tensor(on=storage(numel=1 << 22))}, {})
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data/0", bytes(1 << 24))
        refused(file, "is compressed")

    def test_sizes_that_lie(self, file):
        save(file, {"w": tensor(on=storage(numel=6))})
        content = file.read_bytes()
        for where in range(len(content)):
            if (
                content[where : where + 4] != b"PK\x01\x02"
                or b"data/0" not in content[where + 46 : where + 62]
            ):
                continue
            for size in (25, 1 << 20, 0xFFFFFFFE):
                lying = bytearray(content)
                lying[where + 20 : where + 28] = struct.pack("<II", size, size)
                file.write_bytes(lying)
                with pytest.raises(CheckpointError):
                    load_torch_file(file)
            return
        raise AssertionError("no such entry in the central directory")

    def test_overlapping_entries(self, file):
        save(file, {"w": tensor(on=storage(numel=1 << 16))}, {"0": np.zeros(1 << 16, np.float32)})
        entry = struct.Struct("<4s6H3L5H2L")
        content = file.read_bytes()
        start = content.index(b"PK\x01\x02")
        end = content.rindex(b"PK\x05\x06")
        directory, position = content[start:end], 0
        while b"data/0" not in directory[position + entry.size :][:14]:
            fields = entry.unpack_from(directory, position)
            position += entry.size + sum(fields[10:13])
        length = entry.size + sum(entry.unpack_from(directory, position)[10:13])
        one = directory[position : position + length]
        copies = b"".join(one.replace(b"data/0", b"data/%c" % digit) for digit in b"123456789")
        counts = struct.pack("<HHII", 4 + 9, 4 + 9, len(directory) + len(copies), start)
        file.write_bytes(content[:start] + directory + copies + b"PK\x05\x06" + bytes(4) + counts + bytes(2))
        refused(file, "declare more bytes")

    def test_one_name_twice(self, file):
        save(file, {"w": tensor()})
        with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("archive/data/0", bytes(24))
        refused(file, "same name")

    @pytest.mark.parametrize("roots", [(), ("a", "b")])
    def test_no_or_two_state_dicts(self, file, roots):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme", "")
            for root in roots:
                archive.writestr(f"{root}/data.pkl", b"N.")
        with pytest.raises(CheckpointError, match=rf"{len(roots)} entries named data.pkl"):
            load_torch_file(file)

    def test_pickle_size_is_limited(self, file, monkeypatch):
        monkeypatch.setattr(torch_pickle, "_MAX_PICKLE_BYTES", 1000)
        refused(save(file, {"w": tensor(), "x": "x" * 1000}), "data.pkl has")

    def test_the_list_of_entries_is_limited(self, file, monkeypatch):
        monkeypatch.setattr(torch_pickle, "_MAX_LISTING_BYTES", 300)
        refused(
            save(file, {"w": tensor()}, {str(key): SIX for key in range(9)}), "the list of its zip entries"
        )

    def test_big_endian(self, file):
        with pytest.raises(CheckpointError, match=r"byte order b'big'.*safetensors"):
            load_torch_file(save(file, {"w": tensor()}, byteorder=b"big"))

    def test_damaged_numbers(self, file):
        content = bytearray(save(file, {"w": tensor()}).read_bytes())
        content[content.index(SIX.tobytes())] ^= 1
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="CRC"):
            load_torch_file(file)
        content[27] = 3  # the first entry's name would have 768 bytes more, which the error quotes
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"zip archive \(.{,500}\)$"):
            load_torch_file(file)

    def test_formats_that_are_not_archives(self, tmp_path, file):
        canary = tmp_path / "canary"
        file.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(Runs(canary), 2))
        with pytest.raises(CheckpointError, match=r"before torch 1\.6.*safetensors"):
            load_torch_file(file)
        file.write_text("version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(CheckpointError, match="starts with b'vers'"):
            load_torch_file(file)
        assert not canary.exists()

    def test_truncation_anywhere(self, tmp_path):
        small = save(tmp_path / "small.bin", {"w": tensor()}).read_bytes()
        fixture = (CHECKPOINTS / "attn-tiny" / "pytorch_model.bin").read_bytes()
        cut = tmp_path / "cut.bin"
        for content, step in ((small, 4), (fixture, 16004)):
            for length in [*range(0, len(content), step), len(content) - 1]:
                cut.write_bytes(content[:length])
                with pytest.raises(CheckpointError, match=r"cut\.bin"):
                    load_torch_file(cut)


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
