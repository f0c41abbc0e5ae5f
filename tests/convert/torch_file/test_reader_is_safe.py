"""Nothing in a torch file ever runs."""

import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from based_jax.convert.torch_file import instructions as torch_instructions
from based_jax.convert.torch_file.instructions import Interpreter
from based_jax.convert.torch_file.reader import load_torch_file
from tests.convert.torch_files import (
    FLOATS,
    REBUILD,
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


class TestNothingRuns:
    def test_python_objects(self, tmp_path, file):
        for protocol in range(6):
            canary = tmp_path / "canary"
            save(file, pickle.dumps({"w": Runs(canary)}, protocol)[:-1])
            refused(file, "nothing was executed")
            assert not canary.exists()

    def test_refused_globals(self, tmp_path, file):
        for function in [
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
        ]:
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

    def test_programs_that_do_not_end_well(self, file):
        for code in [b".", b"N", b"", b"NN.", b"(N.", b"N.N", b"0.", b"a.", b"R.", b"Q.", b"b."]:
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

    def test_integer_keys_are_hashed_as_text(self, file):
        alike = {k * ((1 << 61) - 1): None for k in range(1, 40)}  # in Python these integers all hash to 0
        found = Interpreter(program(alike) + pickle.STOP, {}).run()
        assert len({hash(key) for key in found}) == len(alike) == len(found)
        assert list(load_torch_file(save(file, {"w": tensor(), "x": alike, "y": {1: None, "1": None}}))) == [
            "w"
        ]
        refused(
            save(file, pickle.EMPTY_DICT + pickle.MARK + program(7) * 4 + pickle.SETITEMS),
            "the key 'integer 7' twice",
        )

    def test_strides_that_no_element_needs_are_not_kept(self):
        code = tensor(shape=(1, 6), stride=((1 << 61) - 1, 1)) + pickle.STOP
        assert Interpreter(code, {"0": 24}).run().stride == (0, 1)

    def test_floods_of_instructions(self, file, monkeypatch):
        for code in [b"(", b"}", b"}\x85", b"]q\0", b"\x8a\0"]:
            monkeypatch.setattr(torch_instructions, "MAX_INSTRUCTIONS", 1000)
            refused(save(file, code * 1001), "more than 1000 instructions")
