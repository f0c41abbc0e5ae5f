"""The torch reader returns exactly the stored tensors, or one clear error; nothing from a file ever runs."""

import logging
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.convert.torch_file.reader import load_torch_file
from tests.convert.torch_files import (
    CHECKPOINTS,
    ORDERED_DICT,
    SIX,
    STORAGES,
    call,
    named,
    program,
    save,
    storage,
    tensor,
)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "weights.bin"


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
