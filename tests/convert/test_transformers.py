"""Llama, Mistral, Qwen2 and Qwen3: logits and greedy text of what `transformers` wrote, scalings, refusals."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import based_jax as bj
from based_jax.convert import __main__ as convert
from based_jax.convert import load_pretrained
from based_jax.convert.authors_config import model_config
from based_jax.convert.rotary_scaling import rotary_options
from based_jax.convert.state_dict import read_state_dict, write_safetensors
from tests.arrays import array
from tests.commands import run_here
from tests.convert.transformers_models.make import CASES, FIXTURES, HERE, NEW, PADDED, TOKENS, write
from tests.marks import release_but
from tests.tolerances import FLOAT32, assert_close


def assert_equals_theirs(directory):
    """float32 logits of both within FLOAT32, and equal greedy text, also of rows padded on the left."""
    model, params = load_pretrained(directory)
    theirs = load_file(directory / "expected.safetensors")
    logits, _ = jax.jit(model.apply)(params, array(TOKENS, np.int32))
    assert_close(logits, theirs["logits"], FLOAT32)
    plain = bj.generate(model, params, TOKENS, NEW)
    padded = bj.generate(model, params, TOKENS * PADDED, NEW, attention_mask=PADDED)
    np.testing.assert_array_equal(plain, theirs["greedy"])
    np.testing.assert_array_equal(padded, theirs["greedy_padded"])


@pytest.mark.parametrize("case", release_but(["mistral", "qwen3"], FIXTURES))
def test_models_of_transformers(case):
    assert_equals_theirs(HERE / case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_models_made_now(case, tmp_path):
    """Also of the installed version of `transformers`, and as shards."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    write(tmp_path, case, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_equals_theirs(tmp_path)
