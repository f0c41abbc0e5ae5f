"""Damaged torch files are refused with one clear error."""

import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from based_jax.convert.torch_file import reader as torch_pickle
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.convert.torch_file.reader import load_torch_file
from tests.convert.torch_files import (
    CHECKPOINTS,
    FLOATS,
    REBUILD,
    SIX,
    Runs,
    call,
    named,
    program,
    refused,
    save,
    storage,
    tensor,
)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "weights.bin"


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
