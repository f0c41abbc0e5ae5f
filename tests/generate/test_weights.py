"""Weights cast once make what modules make that cast them at every use, to the last bit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.generate.weights import by_results, decoding_weights
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from tests.generate.tiny import random_params
from tests.mixers.test_contract import CASES, WIDTH
from tests.tolerances import FLOAT32

# XLA may leave out a rounding (the cast there and back): weights that are rounded already cannot match that.
EXACT = {"xla_allow_excess_precision": False}


def model_of(name, **changes):
    specs = {"X": MixerSpec(name, CASES.get(name, {}))}
    config = ModelConfig(50, d_model=WIDTH, schedule="X", mixers=specs, mlp_hidden=16, **changes)
    model = LanguageModel(config)
    return model, random_params(model)


def outputs(model, params):
    """Of a prompt, and of a step after it."""
    tokens = np.arange(18).reshape(2, 9) % 50
    mask = np.arange(8) < np.array([[8], [5]])

    def run(params):
        state = model.init_state(2, 16)
        first, state = model.apply(params, tokens[:, :8], state, mask=mask)
        second, state = model.apply(params, tokens[:, 8:], state)
        return jnp.where(mask[..., None], first, 0), second, state

    return jax.jit(run, compiler_options=EXACT)(params)


def expect_the_same_outputs(name):
    model, params = model_of(name)
    half, cast = decoding_weights(model, params)
    assert half.config == model.config.replace(dtype="bfloat16")
    expected, found = outputs(half, params), outputs(half, cast)
    chex.assert_trees_all_equal_dtypes(found, expected)
    chex.assert_trees_all_equal(found, expected)


@pytest.mark.slow
def test_outputs_are_the_same_to_the_last_bit():
    expect_the_same_outputs("linear_attention")


@pytest.mark.slow
def test_outputs_of_every_mixer_are_the_same():
    for name in mixers.names():
        expect_the_same_outputs(name)


def dtypes(params):
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path).removesuffix(".value"): leaf.dtype.name for path, leaf in flat}


SMALL = ("decay_out", "filter", "selecting")
"""maps that make decays, filters and selections, in float32 wherever they are used"""


def kept(name):
    """What stays float32."""
    _, params = decoding_weights(*model_of(name))
    return {path for path, dtype in dtypes(params).items() if dtype == "float32"}


def test_matrices_are_cast():
    with pytest.raises(ValueError, match="dtype = 'bf16': expected one of 'bfloat16'"):
        decoding_weights(*model_of("gla"), "bf16")
    for name in ("linear_attention", "gla"):
        matrices = [path for path in kept(name) if "'kernel'" in path or "embedding" in path]
        assert all(any(small in path for small in SMALL) for path in matrices)
        assert bool(matrices) == (name == "gla")


@pytest.mark.release
def test_what_modules_want_in_float32_stays():
    names = ("A_log", "D", "dt_bias", "dt_norm", "B_norm", "C_norm")
    assert {path.split("'")[-2] for path in kept("mamba")} == {*names, "scale"}


def test_learned_positions_are_added_before_the_cast():
    model, params = model_of("gated_conv", max_positions=32)
    cast = dtypes(decoding_weights(model, params)[1])
    assert cast["['params']['embedding']"] == cast["['params']['position_embedding']"] == "float32"
    untied = decoding_weights(*model_of("gated_conv", tie_embeddings=False))[1]
    assert set(dtypes(untied).values()) == {"bfloat16", "float32"}


def test_float32_changes_nothing_and_half_can_be_cast_again():
    model, params = model_of("linear_attention")
    same, kept = decoding_weights(model, params, "float32")
    assert same == model
    assert dtypes(kept) == dtypes(params)
    half = decoding_weights(model, params)
    assert dtypes(decoding_weights(*half)[1]) == dtypes(half[1])
    with pytest.raises(ValueError, match=r"^dtype = 'int8': expected one of 'bfloat16', 'float16'"):
        decoding_weights(model, params, "int8")


@pytest.mark.release
def test_matrices_are_stored_by_results():
    model, params = model_of("gated_conv")
    params = nn.meta.unbox(params)
    found = by_results(model, params)
    chex.assert_trees_all_equal(found, params)
    orders = {jax.tree_util.keystr(path[-2:]): leaf for path, leaf in jax.tree.leaves_with_path(found)}
    orders = {name: leaf.format.layout.major_to_minor for name, leaf in orders.items()}
    assert orders["['in_proj']['kernel']"] == (1, 2, 0), "two halves of results, each of all inputs"
    assert orders["['out']['kernel']"] == (1, 0)
    assert orders["['mixer']['conv_kernel']"] == orders["['params']['embedding']"] == (0, 1)
    chex.assert_trees_all_close(outputs(model, found), outputs(model, params), rtol=FLOAT32)
