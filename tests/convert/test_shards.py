"""Weights over several files: every tensor once, none larger than asked, nothing left of an earlier save."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.convert import load_pretrained, save_pretrained
from based_jax.convert.pretrained import INDEX, SAFETENSORS, write_weights
from based_jax.convert.state_dict import read_state_dict
from tests.generate.tiny import make_tiny

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def tensors_of(sizes, value=0.0):
    return {f"t{number}": np.full(size, value + number, np.float32) for number, size in enumerate(sizes)}


@given(SIZES, SIZES, st.integers(1, 400), st.integers(1, 400))
def test_the_last_save_is_what_is_read(tmp_path_factory, before, sizes, most_before, most):
    directory = tmp_path_factory.mktemp("weights")
    write_weights(directory, tensors_of(before, 100.0), most_before)
    tensors = tensors_of(sizes)
    written = write_weights(directory, tensors, most)
    found = read_state_dict(directory)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
    files = {path.name for path in directory.iterdir()}
    if written.name == SAFETENSORS:
        assert files == {SAFETENSORS}
        assert sum(tensor.nbytes for tensor in tensors.values()) <= most or len(tensors) == 1
        return
    index = json.loads((directory / INDEX).read_text())
    assert files == {INDEX, *index["weight_map"].values()}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for file in files - {INDEX}:
        held = [tensors[name].nbytes for name, where in index["weight_map"].items() if where == file]
        assert sum(held) <= most or len(held) == 1


def test_a_save_that_was_interrupted_is_no_model(tmp_path, monkeypatch):
    """Of two models with the same shards, never the first half of one and the second of the other.

    Nor the weights of one with the config of the other.
    """
    tiny = make_tiny("C")
    save_pretrained(tmp_path / "model", tiny.model, tiny.params)
    write_weights(tmp_path, tensors_of([8, 8]), 32)

    def fail(path, *_):
        raise OSError("the disk is full")

    monkeypatch.setattr("based_jax.convert.pretrained.write_safetensors", fail)
    with pytest.raises(OSError, match="full"):
        write_weights(tmp_path, tensors_of([8, 8], 1.0), 32)
    with pytest.raises(ValueError, match="no weights in this directory"):
        read_state_dict(tmp_path)
    with pytest.raises(OSError, match="full"):
        save_pretrained(tmp_path / "model", tiny.model, tiny.params)
    with pytest.raises(OSError, match=r"model: .* found no config\.json"):
        load_pretrained(tmp_path / "model")


def test_no_bytes(tmp_path):
    with pytest.raises(ValueError, match="max_shard_bytes = 0: expected at least 1"):
        write_weights(tmp_path, tensors_of([1]), 0)
