"""Options of all mixers but those of the contract's tests: wrong ones are named, and defaults divide."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.testing.arrays import normals
from tests.tolerances import FLOAT32, assert_close

WIDTH = 8
X = jax.ShapeDtypeStruct((1, 3, WIDTH), jnp.float32)
MASK = np.ones((1, 3), bool)
IDS = np.zeros((1, 3), np.int32)


def make(name, options):
    return mixers.make(name, d_model=WIDTH, **options)


def init(name, options, **context):
    jax.eval_shape(functools.partial(make(name, options).init, **context), jax.random.key(0), X)


def test_bad_options_are_named(unchecked):
    for name, options, message in [
        ("attention", {"rotary_frequencies": (1.0,)}, r"frequencies = \(1.0,\): expected None or a tuple"),
        ("conv_basis", {"starts": (1, 2)}, r"starts = \(1, 2\): expected integers ascending from 0"),
        ("conv_basis", {"gradient": "exact"}, "gradient = 'exact': expected one of"),
        ("delta_net", {"expand_k": 0.3, "num_heads": 3}, r"expand_k \* d_model = 2: expected a mult"),
        ("delta_net", {"qk_norm": "max"}, "qk_norm = 'max': expected one of 'l2', 'sum'"),
        ("delta_net", {"qk_activation": "gelu"}, "qk_activation = 'gelu'"),
        ("delta_net", {"num_heads": 3}, r"expand_k \* d_model = 8: expected a multiple of num_heads = 3"),
        ("gated_delta_net", {"num_v_heads": 3}, "num_v_heads = 3: expected a multiple of num_heads = 2"),
        ("gated_delta_net", {"num_v_heads": 6}, r"expand_v \* d_model = 16: expected a multiple of"),
        ("gla", {"num_heads": 3}, r"expand_k \* d_model = 4: expected a multiple of num_heads = 3"),
        ("gla", {"gate_activation": "tanh"}, "gate_activation = 'tanh': expected one of 'gelu'"),
        ("gla", {"num_kv_heads": 3}, "num_heads = 4: expected a multiple of num_kv_heads = 3"),
        ("h3", {"d_state": 1}, "d_state = 1: expected at least 2"),
        ("h3", {"kernel": "fir"}, "kernel = 'fir': expected one of"),
        ("h3", {"head_dim": 3}, "d_model = 8: expected a multiple of head_dim = 3"),
        ("hyena", {"emb_dim": 4}, "emb_dim = 4: expected an odd number"),
        ("hyena", {"order": 1}, "order = 1: expected at least 2"),
        ("hyena", {"num_heads": 3}, "d_model = 8: expected a multiple of num_heads = 3"),
        ("hyena", {"num_heads": 2, "order": 3}, "order = 3: expected 2 with several heads"),
        ("hyper_attention", {"order": 1}, "order = 1: expected at least 2"),
        ("hyper_attention", {"left": -1}, "left = -1"),
        ("hyper_attention", {"num_heads": 3}, "d_model = 8: expected a multiple of num_heads = 3"),
        ("hyper_feature_attention", {"orders": 3}, "channels of a head = 8: expected a mult.* order = 3"),
        ("hyper_feature_attention", {"num_heads": 4, "orders": (1, 2)}, r"orders = \(1, 2\): expected an"),
        ("hyper_feature_attention", {"orders": (1, 1, 2)}, "d_model = 8: expected a multiple of num_heads"),
        ("hyper_feature_attention", {"rotary_fraction": 1.5}, "rotary_fraction = 1.5: expected at least 0"),
        ("input_conv", {"filter": "some"}, "filter = 'some': expected one of 'programmatic'"),
        ("input_conv", {"filter": "autocorrelation", "copy_next": True}, "copy_next = True: expected False"),
        ("linear_attention", {"feature_map": "elu"}, "feature_map = 'elu': expected one of 'taylor'"),
        ("linear_attention", {"num_features": 8}, "num_features = 8: expected None for feature_map ="),
        ("linear_attention", {"feature_map": "relu", "max_length": 8}, "max_length = 8: expected None for"),
        ("linear_attention", {"feature_map": "cosformer", "max_length": 0}, "max_length = 0: expected None"),
        ("linear_attention", {"learned_map": False}, "learned_map = False: expected True for feature_map ="),
        ("linear_hyper_attention", {"order": 1}, "order = 1: expected at least 2"),
        ("linear_hyper_attention", {"feature_map": "sin"}, "feature_map = 'sin': expected one of 'taylor'"),
        ("linear_hyper_attention", {"feature_map": "identity"}, "normalize = 'sum': expected 'none' for"),
        ("linear_hyper_attention", {"normalize": "rms"}, "normalize = 'rms': expected one of"),
        ("linear_hyper_attention", {"strict": True, "ordered": False}, "strict = True: expected False if"),
        ("linear_hyper_feature_attention", {"norm": "sum"}, "norm = 'sum': expected 'rms' or 'none' with"),
        ("linear_hyper_feature_attention", {"feature_map": "softmax"}, "feature_map = 'softmax': expected"),
        ("linear_hyper_feature_attention", {"norm": "batch"}, "norm = 'batch': expected one of"),
        ("mamba", {"dt_init": "zero"}, "dt_init = 'zero': expected one of 'random', 'constant'"),
        ("mamba", {"map_norm": "rms"}, "map_norm = 'rms': expected one of None, 'learned', 'plain'"),
        ("mamba2", {"ssm_channels": 17}, r"ssm_channels = 17: expected at most expand \* d_model = 16"),
        ("mamba2", {"head_dim": 3}, "channels in heads = 16: expected a multiple of head_dim = 3"),
        ("mamba2", {"head_dim": 4, "num_groups": 3}, "heads = 4: expected a multiple of num_groups = 3"),
        ("mlp", {"activation": "tanh"}, "activation = 'tanh': expected one of 'silu'"),
        ("retnet", {"norm": "batch"}, "norm = 'batch': expected one of 'layer', 'rms'"),
        ("retnet", {"num_heads": 4, "num_kv_heads": 3}, "num_heads = 4: expected a multiple of"),
        ("rwkv4", {"layer": 3, "num_layers": 3}, "layer = 3: expected 0 to 2"),
        ("rwkv5", {"head_size": 3}, "d_model = 8: expected a multiple of head_size = 3"),
        ("rwkv5", {"layer": 12}, "layer = 12: expected 0 to 11"),
        ("rwkv7", {"head_dim": 3}, "d_model = 8: expected a multiple of head_dim = 3"),
        ("rwkv_channel_mix", {"layer": 3, "num_layers": 3}, "layer = 3: expected 0 to 2"),
        ("scatterbrain", {"feature_dim": 3}, "feature_dim = 3: expected an even number"),
        ("selected_attention", {"selection": "some"}, "selection = 'some': expected"),
        ("selective_lookups", {"hard": True}, "causal = True: expected False with hard"),
    ]:
        with pytest.raises(ValueError, match=message):
            init(name, options)


def test_options_that_no_state_can_have_are_named(unchecked):
    for name, options, message in [
        ("base_conv", {"kernel_size": 0}, "kernel_size = 0: expected"),
        ("hyper_attention", {"left": -1}, "left = -1: expected"),
        ("hyper_attention", {"order": 1, "shared": False}, "order = 1: expected"),
        ("liquid_s4", {"d_state": 3}, "d_state = 3: expected an even number"),
        ("nystrom", {"causal": False}, "causal = False: expected True for a state"),
        ("scatterbrain", {"causal": False}, "causal = False: expected True for a state"),
        ("selected_attention", {"causal": False}, "causal = False: expected True for a state"),
        ("selective_lookups", {"causal": False}, "causal = False: expected True for a state"),
        ("sigmoid_lookups", {"hard": True}, "hard = True: expected False for a state"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(name, options).init_state(1, 4)


def test_arguments_that_options_exclude_are_named(unchecked):
    for name, options, context, message in [
        ("bigbird", {}, {"cells": np.zeros((2, 2))}, "cells has dtype"),
        (
            "input_conv",
            {"filter": "autocorrelation"},
            {"segment_ids": IDS},
            "segment_ids = .*: expected None with filter",
        ),
        ("nystrom", {"causal": False}, {"segment_ids": IDS}, "segment_ids = '.*': expected None"),
        ("nystrom", {"causal": False}, {"state": "any"}, "state = 'str': expected None with causal"),
        ("scatterbrain", {"causal": False}, {"mask": MASK}, "mask = '.*': expected None"),
        ("selected_attention", {"causal": False}, {"state": "any"}, "state = 'str': expected None"),
        ("sma", {"hard": True}, {"state": "any"}, "state = 'str': expected None with hard = True"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            init(name, options, **context)


def test_forms_that_read_later_inputs_are_not_causal():
    for name, options in {"sma": {"hard": True}, "input_conv": {"filter": "autocorrelation"}}.items():
        assert make(name, {}).causal
        assert not make(name, options).causal


def test_lists_become_tuples():
    """So that a mixer can be hashed, as a static field of Equinox."""
    assert {make("conv_basis", {"starts": [0, 1]})} == {make("conv_basis", {"starts": (0, 1)})}


class Chosen(mixers.ShortConv):
    kind: Literal["silu", 1] = "silu"
    pair: tuple[int, str] = (1, "a")


def test_choices_and_tuples_of_a_length_are_checked():
    assert Chosen(WIDTH, kind=1, pair=[2, "b"]).pair == (2, "b")
    for options, message in (
        ({"kind": "relu"}, "kind = 'relu': expected one of 'silu', 1"),
        ({"kind": True}, "kind = True: expected one of"),
        ({"pair": (1,)}, "pair = .*: expected a list of 2: an integer, a text"),
        ({"pair": (1, 2)}, "pair = .*: expected a list of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Chosen(WIDTH, **options)


def test_defaults_divide():
    """The papers' numbers where they divide: 4 heads (GLA), 256 (RetNet) and 64 channels per head."""
    assert mixers.GLA(64).layout() == (4, 8, 16)
    assert mixers.GLA(6).layout() == (3, 1, 2)
    assert mixers.RetNet(2048).layout() == (8, 256, 512)
    assert mixers.RetNet(768, expand_v=5 / 3).layout() == (2, 384, 640)
    assert mixers.Mamba2(96).layout() == (3, 64)
    assert mixers.RWKV5(128).layout() == (2, 64)


def test_a_landmark_stands_for_a_chunk_of_the_longest_row():
    for options, tokens in [
        ({"num_landmarks": 16}, 64),
        ({"num_landmarks": 100, "l_max": 64}, 1),
        ({"num_landmarks": 5, "l_max": 13}, 3),
    ]:
        assert mixers.make("nystrom", d_model=4, **options).tokens_per_landmark == tokens


def test_an_mlp_alone_is_that_of_the_equation():
    mixer = make("mlp", {"hidden": 5, "activation": "squared_relu", "bias": True})
    variables = normals(mixer.init, X, dtype=jnp.float32)
    x = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    y, _ = mixer.apply(variables, x)
    params = jax.tree.map(np.float64, nn.meta.unbox(variables["params"]))
    into, out = params["in_proj"], params["out"]
    inner = np.maximum(x @ into["kernel"] + into["bias"], 0) ** 2
    assert_close(y, inner @ out["kernel"] + out["bias"], FLOAT32)
