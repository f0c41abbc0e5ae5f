"""Layers that repeat, as one loop: where they are, and that nothing but the program changes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.models.block import find_repeats
from based_jax.profile import count_operations
from based_jax.testing.laws import QUICKLY
from tests.arrays import normals
from tests.tolerances import FLOAT64, assert_close

CONFIG = bj.ModelConfig(
    vocab_size=32,
    d_model=16,
    schedule="CLSLSLS",
    mixers={
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
        "R": MixerSpec("rwkv4"),
        "B": MixerSpec("bigbird"),
        "P": MixerSpec("short_conv"),
    },
    mlp_hidden=16,
    dtype="float64",
)


def test_repetitions_of_the_presets():
    for schedule, layers, period in [
        ("A" * 24, range(24), 1),
        ("CLSCC" * 5 + "CC", range(25), 5),
        ("CLS", range(0), 1),
        ("XCLSCCCLSCCCLSCCY", range(1, 16), 5),
        ("TC" * 19, range(38), 2),
    ]:
        assert find_repeats(schedule) == (layers, period)


@given(st.text("AB", min_size=1, max_size=12))
def test_what_is_found_repeats_and_nothing_saves_more(schedule):
    layers, period = find_repeats(schedule)
    assert all(schedule[index] == schedule[index - period] for index in layers[period:])
    assert len(layers) % period == 0
    turns = {schedule[i:j] for i in range(len(schedule)) for j in range(i + 1, len(schedule) + 1)}
    saved = [len(turn) * (times - 1) for turn in turns for times in range(2, 13) if turn * times in schedule]
    assert max(saved, default=0) == max(len(layers) - period, 0)


def gradients(config: bj.ModelConfig, params, **context):
    tokens = np.random.default_rng(0).integers(0, 32, (2, 8)).astype(np.int32)

    def loss(params):
        return jnp.mean(bj.LanguageModel(config).apply(params, tokens, **context)[0] ** 2)

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICKLY)(params)


def start(config: bj.ModelConfig):
    return normals(bj.LanguageModel(config).init, jnp.zeros((1, 1), jnp.int32), dtype=np.float64)


@pytest.mark.release
def test_outputs_and_gradients_stay(x64):
    """With layers before and after, and with RWKV's, which start differently at each depth."""
    config = CONFIG.replace(schedule="PRPRC", remat="block", mlp="none", output_norms="P")
    params = start(config)
    context = {
        "segment_ids": jnp.asarray([[0, 0, 0, 0, 1, 1, 1, 1]] * 2),
        "mask": jnp.arange(8) < jnp.asarray([[8], [6]]),
    }
    wanted = gradients(config.replace(remat="none"), params, **context)
    assert_close(gradients(config.replace(scan_layers=True), params, **context), wanted, FLOAT64)


def test_parameters_states_and_decoding_are_those_without_it(x64):
    scanned = CONFIG.replace(scan_layers=True)
    params = start(CONFIG)
    chex.assert_trees_all_equal(start(scanned), params)
    model = bj.LanguageModel(scanned)
    program = jax.make_jaxpr(lambda *arguments: model.apply(*arguments)[0])
    tokens = jnp.zeros((1, 1), jnp.int32)
    assert "length=3" in str(program(params, jnp.zeros((1, 8), jnp.int32)))
    assert "length=3" not in str(program(params, tokens, model.init_state(1, 8)))


@pytest.mark.slow
def test_the_program_is_smaller_and_does_as_much(x64):
    params, tokens = start(CONFIG), jnp.zeros((1, 8), jnp.int32)
    size, products = {}, {}
    for scan in (False, True):
        model = bj.LanguageModel(CONFIG.replace(scan_layers=scan))
        products[scan] = count_operations(model.apply, params, tokens).products
        size[scan] = len(str(jax.make_jaxpr(model.apply)(params, tokens)))
    assert products[True] == products[False]
    assert size[True] < 0.7 * size[False]


def test_noise_is_refused():
    config = CONFIG.replace(schedule="CBBB", scan_layers=True)
    with pytest.raises(ValueError, match="scan_layers = True: expected False with bigbird, which draws"):
        jax.eval_shape(bj.LanguageModel(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
