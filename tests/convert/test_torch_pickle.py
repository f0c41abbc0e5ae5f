"""The torch reader returns exactly the stored tensors, or one clear error; nothing from a file ever runs."""

import io
import logging
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from based_jax.convert import torch_pickle
from based_jax.convert.torch_instructions import CheckpointError, UnsafeCheckpointError
from based_jax.convert.torch_pickle import load_torch_file

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
STORAGES = {
    "DoubleStorage": np.float64, "FloatStorage": np.float32, "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16, "LongStorage": np.int64, "IntStorage": np.int32,
    "ShortStorage": np.int16, "CharStorage": np.int8, "ByteStorage": np.uint8, "BoolStorage": np.bool_,
}  # fmt: skip


# A tiny torch.save: values become pickle instructions, and `bytes` are instructions already.


def program(value) -> bytes:
    match value:
        case bytes():
            return value
        case None:
            return pickle.NONE
        case bool():
            return pickle.NEWTRUE if value else pickle.NEWFALSE
        case int():
            encoded = pickle.encode_long(value)
            return pickle.LONG1 + bytes([len(encoded)]) + encoded
        case float():
            return pickle.BINFLOAT + struct.pack(">d", value)
        case str():
            return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            return pickle.MARK + b"".join(map(program, value)) + pickle.TUPLE
        case list():
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(program, value)) + pickle.APPENDS
        case dict():
            items = b"".join(program(key) + program(item) for key, item in value.items())
            return ORDERED_DICT + pickle.MARK + items + pickle.SETITEMS
    raise TypeError(value)


def named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def call(function: bytes, *arguments) -> bytes:
    return function + program(arguments) + pickle.REDUCE


ORDERED_DICT = call(named("collections", "OrderedDict"))
FLOATS = named("torch", "FloatStorage")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")


def storage(key="0", numel=6, dtype=FLOATS, location="cpu", what="storage") -> bytes:
    return program((what, dtype, key, location, numel)) + pickle.BINPERSID


def tensor(shape=(2, 3), stride=(3, 1), offset=0, on=None, grad=False, hooks: Any = ORDERED_DICT) -> bytes:
    return call(REBUILD, storage() if on is None else on, offset, shape, stride, grad, hooks)


SIX = np.arange(6, dtype=np.float32)


def save(path: Path, content, storages=None, *, byteorder: bytes | None = b"little", root="archive") -> Path:
    """Write what torch.save would write for `content`, with storages {key: array}."""
    code = pickle.PROTO + b"\x02" + program(content) + pickle.STOP
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/data.pkl", code)
        if byteorder is not None:
            archive.writestr(f"{root}/byteorder", byteorder)
        for key, array in ({"0": SIX} if storages is None else storages).items():
            archive.writestr(f"{root}/data/{key}", np.asarray(array).tobytes())
        archive.writestr(f"{root}/version", b"3\n")
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "weights.bin"


def refused(path: Path, *texts: str) -> None:
    """Assert the error for unsafe content, which names the file."""
    with pytest.raises(UnsafeCheckpointError) as caught:
        load_torch_file(path)
    file, _, message = str(caught.value).partition(": ")
    assert file == str(path)
    for text in texts:
        assert text in message


class TestTensors:
    @pytest.mark.parametrize("name", ["based-tiny", "attn-tiny"])
    def test_same_bits_as_the_safetensors_twin(self, name):
        loaded = load_torch_file(CHECKPOINTS / name / "pytorch_model.bin")
        twin = load_file(CHECKPOINTS / name / "model.safetensors")
        assert set(loaded) == set(twin)
        for key, array in loaded.items():
            assert array.dtype == twin[key].dtype
            assert array.shape == twin[key].shape
            assert array.tobytes() == twin[key].tobytes()

    @pytest.mark.parametrize("name", STORAGES)
    def test_every_dtype(self, file, name):
        values = np.array([0, 1, 1, 0, 1, 0]).astype(STORAGES[name])
        content = {"w": tensor(on=storage(dtype=named("torch", name)))}
        loaded = load_torch_file(save(file, content, {"0": values}))["w"]
        assert loaded.dtype == values.dtype
        np.testing.assert_array_equal(loaded, values.reshape(2, 3))

    @pytest.mark.parametrize(
        ("shape", "stride", "offset", "expected"),
        [
            ((3, 2), (1, 3), 0, SIX.reshape(2, 3).T),
            ((2, 2), (3, 1), 1, SIX.reshape(2, 3)[:, 1:]),
            ((3,), (2,), 1, SIX[1::2]),
            ((), (), 5, SIX[5]),
            ((1, 6), (1 << 80, 1), 0, SIX[None]),
            ((2, 2), (0, 1), 4, np.stack([SIX[4:], SIX[4:]])),
            ((0, 3), (3, 1), 6, np.zeros((0, 3))),
        ],
    )
    def test_windows_on_a_storage(self, file, shape, stride, offset, expected):
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

    @pytest.mark.parametrize("content", [{"model": {"w": 1}}, {}, [tensor()], tensor(), 7, "text"])
    def test_without_tensors_at_the_top(self, file, content):
        with pytest.raises(CheckpointError, match=r"no tensors at the top level|expected a dict of tensors"):
            load_torch_file(save(file, content))


class Runs:
    """Pickles into a call that leaves a file behind."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


class TestNothingRuns:
    @pytest.mark.parametrize("protocol", range(6))
    def test_python_objects(self, tmp_path, file, protocol):
        canary = tmp_path / "canary"
        save(file, pickle.dumps({"w": Runs(canary)}, protocol)[:-1])
        refused(file, "nothing was executed")
        assert not canary.exists()

    @pytest.mark.parametrize(
        "function",
        [
            ("os", "system"),
            ("posix", "system"),
            ("builtins", "eval"),
            ("builtins", "exec"),
            ("__builtin__", "getattr"),
            ("subprocess", "check_call"),
            ("_codecs", "encode"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "scalar"),
            ("torch.storage", "_load_from_bytes"),
            ("torch.storage", "UntypedStorage"),
            ("torch", "UntypedStorage"),
            ("torch", "ComplexFloatStorage"),
            ("torch._utils", "_rebuild_parameter_with_state"),
            ("torch._utils", "_rebuild_tensor_v2.__globals__"),
            ("collections", "OrderedDict.fromkeys"),
            ("collections.OrderedDict", "fromkeys"),
        ],
    )
    def test_refused_globals(self, tmp_path, file, function):
        canary = tmp_path / "canary"
        harmful = call(named(*function), f"open({str(canary)!r}, 'w')")
        name = ".".join(function)
        refused(save(file, {"w": tensor(), "x": harmful}), name)
        refused(save(file, {"w": tensor(hooks=harmful)}), name)
        refused(save(file, {"w": tensor(hooks={1: (harmful, ())})}), name)
        refused(save(file, {"w": tensor(on=storage(dtype=named(*function)))}), name)
        refused(save(file, {"w": tensor() + harmful + pickle.BUILD}), name)
        assert not canary.exists()

    @pytest.mark.parametrize(
        "instructions",
        [
            pytest.param(tensor() + program({"shape": (9,)}) + pickle.BUILD, id="attributes-on-a-tensor"),
            pytest.param(REBUILD + program({"__code__": 1}) + pickle.BUILD, id="attributes-on-a-function"),
            pytest.param(FLOATS + program({}) + pickle.BUILD, id="attributes-on-a-storage-type"),
            pytest.param(REBUILD + pickle.EMPTY_TUPLE + pickle.NEWOBJ, id="newobj"),
            pytest.param(pickle.MARK + pickle.INST + b"os\nsystem\n", id="inst"),
            pytest.param(pickle.MARK + REBUILD + pickle.OBJ, id="obj"),
            pytest.param(program("os") + program("system") + pickle.STACK_GLOBAL, id="stack-global"),
            pytest.param(pickle.EXT1 + b"\x01", id="extension"),
            pytest.param(pickle.PERSID + b"x\n", id="text-persistent-id"),
            pytest.param(pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 62), id="endless-bytearray"),
            pytest.param(pickle.BINUNICODE + struct.pack("<I", 0xFFFFFFFF) + b"x", id="endless-text"),
            pytest.param(pickle.BINUNICODE + struct.pack("<I", 1) + b"\xff", id="not-utf8"),
            pytest.param(pickle.GLOBAL + b"os", id="unfinished-global"),
            pytest.param(pickle.BINGET + b"\x07", id="unknown-memo"),
            pytest.param(pickle.NEXT_BUFFER if hasattr(pickle, "NEXT_BUFFER") else b"\x97", id="buffer"),
            pytest.param(pickle.TUPLE, id="no-mark"),
            pytest.param(pickle.MARK, id="open-mark"),
            pytest.param(pickle.MARK + pickle.REDUCE, id="call-across-a-mark"),
            pytest.param(pickle.PROTO + b"\x04" + pickle.NONE, id="protocol-4"),
            pytest.param(REBUILD + program([1]) + pickle.REDUCE, id="arguments-in-a-list"),
            pytest.param(FLOATS + program((1,)) + pickle.REDUCE, id="call-of-a-storage-type"),
            pytest.param(call(program("print"), 1), id="call-of-text"),
            pytest.param(call(named("collections", "OrderedDict"), [("a", 1)]), id="ordered-dict-of-pairs"),
            pytest.param(
                call(named("torch._utils", "_rebuild_parameter"), 1, True, None), id="parameter-of-1"
            ),
            pytest.param(program(3) + program(4) + pickle.APPEND, id="append-to-a-number"),
            pytest.param(tensor() + program(4) + program(4) + pickle.SETITEM, id="item-of-a-tensor"),
            pytest.param(pickle.EMPTY_DICT + pickle.MARK + program(4) + pickle.SETITEMS, id="half-an-item"),
            pytest.param(program({b"(t": 1}), id="tuple-as-key"),
            pytest.param(
                pickle.EMPTY_DICT + (program("k") + program(1) + pickle.SETITEM) * 2, id="key-twice"
            ),
        ],
    )
    def test_refused_instructions(self, file, instructions):
        refused(save(file, {"w": tensor(), "x": instructions}), "data.pkl", "nothing was executed")

    @pytest.mark.parametrize(
        "code", [b".", b"N", b"", b"NN.", b"(N.", b"N.N", b"0.", b"a.", b"R.", b"Q.", b"b."]
    )
    def test_programs_that_do_not_end_well(self, file, code):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", code)
        refused(file)

    def test_a_memo_index_costs_no_memory(self, file):
        content = {"w": tensor() + pickle.LONG_BINPUT + struct.pack("<I", 0xFFFFFFFF)}
        assert load_torch_file(save(file, content))["w"].shape == (2, 3)

    def test_deep_and_endless_objects(self, file):
        deep = pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100_000
        doubling = (
            pickle.EMPTY_TUPLE + (pickle.BINPUT + b"\x00" + pickle.BINGET + b"\x00" + pickle.TUPLE2) * 200
        )
        cycle = pickle.EMPTY_LIST + pickle.BINPUT + b"\x01" + pickle.BINGET + b"\x01" + pickle.APPEND
        for strange in (deep, doubling, cycle):
            assert list(load_torch_file(save(file, {"w": tensor(), "x": strange}))) == ["w"]
            refused(save(file, pickle.EMPTY_DICT + strange + pickle.NONE + pickle.SETITEM), "as a key")
            refused(save(file, {"w": tensor(shape=strange)}))
            refused(save(file, {"w": tensor(hooks=strange)}))
            refused(save(file, {"w": strange + pickle.BINPERSID}))
            refused(save(file, {"w": REBUILD + strange + pickle.REDUCE}))

    @given(
        st.lists(
            st.one_of(
                st.binary(min_size=1, max_size=3),
                st.sampled_from([tensor(), storage(), REBUILD, FLOATS, ORDERED_DICT]),
                st.sampled_from([value for name, value in vars(pickle).items() if name.isupper()
                                 and isinstance(value, bytes) and len(value) == 1]),
                st.builds(program, st.one_of(st.integers(-4, 70), st.text(max_size=2), st.just((2, 3)))),
            ),
            max_size=12,
        ).map(b"".join)
    )  # fmt: skip
    def test_random_programs(self, tmp_path_factory, code):
        file = tmp_path_factory.getbasetemp() / "random.bin"
        for content in (code, {"w": code}):
            try:
                arrays = load_torch_file(save(file, content))
            except CheckpointError:
                continue
            assert all(array.flags.c_contiguous for array in arrays.values())


class TestTensorChecks:
    @pytest.mark.parametrize(
        "arguments",
        [
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
        ],
        ids=repr,
    )
    def test_windows_outside_their_storage(self, file, arguments):
        refused(save(file, {"w": tensor(**arguments)}), "data.pkl")

    def test_views_with_a_meaning_that_is_not_in_the_bytes(self, file):
        arguments = (storage(), 0, (2, 3), (3, 1), False, ORDERED_DICT)
        assert load_torch_file(save(file, {"w": call(REBUILD, *arguments, {})}))["w"].shape == (2, 3)
        refused(save(file, {"w": call(REBUILD, *arguments, {"neg": True})}), "metadata")
        refused(save(file, {"w": call(REBUILD, *arguments, {}, None)}))
        refused(save(file, {"w": call(REBUILD, *arguments[:5])}))

    @pytest.mark.parametrize(
        "arguments", [(1, None), (True, {"a": 1}), (True,), (True, None, None)], ids=repr
    )
    def test_parameters_with_more_than_a_tensor(self, file, arguments):
        parameter = named("torch._utils", "_rebuild_parameter")
        refused(save(file, {"w": call(parameter, tensor(), *arguments)}), "_rebuild_parameter")

    @pytest.mark.parametrize(
        "identity",
        [
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
        ],
        ids=repr,
    )
    def test_storages_that_lie(self, file, identity):
        refused(save(file, {"w": tensor(on=storage(**identity))}), "storage")

    @pytest.mark.parametrize(
        "identity", [(), ("storage",), "storage", ("storage", FLOATS, "0", "cpu", 6, None)]
    )
    def test_persistent_ids_of_another_form(self, file, identity):
        refused(save(file, {"w": tensor(on=program(identity) + pickle.BINPERSID)}), "persistent id")

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
        for content, step in ((small, 1), (fixture, 4001)):
            for length in [*range(0, len(content), step), len(content) - 1]:
                cut.write_bytes(content[:length])
                with pytest.raises(CheckpointError, match=r"cut\.bin"):
                    load_torch_file(cut)

    def test_damage_anywhere(self, tmp_path):
        """A changed byte is noticed, or it does not matter."""
        content = save(tmp_path / "small.bin", {"w": tensor()}).read_bytes()
        damaged = tmp_path / "damaged.bin"
        for position in range(len(content)):
            changed = bytearray(content)
            changed[position] ^= (0x01, 0x80, 0xFF)[position % 3]
            damaged.write_bytes(changed)
            try:
                loaded = load_torch_file(damaged)
            except CheckpointError:
                continue
            np.testing.assert_array_equal(loaded["w"], SIX.reshape(2, 3))

    def test_errors_survive_pickling(self):
        error = UnsafeCheckpointError("text")
        assert str(pickle.load(io.BytesIO(pickle.dumps(error)))) == "text"
