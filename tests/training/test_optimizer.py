"""The papers' schedule and weight-decay groups."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from based_jax import mixers
from based_jax.models import LanguageModel
from based_jax.training.optimizer import OptimizerConfig, decay_mask, learning_rate_schedule, make_optimizer

PEAK, MIDDLE = 8e-4, 200 + 19_800 // 2
PAPERS = {0: 1e-6, 100: 1e-6 + 100 * (PEAK - 1e-6) / 200, 200: PEAK, MIDDLE: 8e-5 + 0.5 * (PEAK - 8e-5)}
LINE = {"schedule": "linear", "final_learning_rate_share": 1 / 80}
TENTH = {"learning_rate": 1.0, "warmup": 0.1, "schedule_steps": 100}


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        # Based, appendix E: 1e-6 at 0, 8e-4 after the warm-up, 8e-5 at the end and after.
        ({}, 20_000, {**PAPERS, 20_000: 8e-5, 30_000: 8e-5}),
        # From the peak to its eightieth, as RetNet's row of Zoology's table.
        (LINE, 20_000, {200: PEAK, MIDDLE: (PEAK + 1e-5) / 2, 20_000: 1e-5, 30_000: 1e-5}),
        ({"warmup": 0.0}, 10, {0: PEAK}),
        # Warm-up to 10 of 100 steps; then the run is extended to 200.
        ({**TENTH, "schedule": "cosine"}, 200, {10: 1.0, 55: 0.55, 100: 0.1, 150: 0.1, 200: 0.1}),
        ({**TENTH, "schedule": "linear"}, 200, {10: 1.0, 55: 0.55, 100: 0.1, 150: 0.1, 200: 0.1}),
        ({**TENTH, "schedule": "constant"}, 200, {5: 0.5, 10: 1.0, 100: 1.0, 200: 1.0}),
        ({**TENTH, "schedule": "wsd"}, 200, {10: 1.0, 100: 1.0, 160: 1.0, 180: 0.55, 200: 0.1}),
        ({**TENTH, "schedule": "wsd", "cooldown": 1.0}, 200, {10: 1.0, 105: 0.55, 200: 0.1}),
    ],
)
def test_schedules(settings, steps, expected):
    rate = learning_rate_schedule(OptimizerConfig(**settings), steps)
    # The warm-up begins at 1e-6; float32.
    assert {step: float(rate(step)) for step in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("decay_norms", [False, True])
def test_decay_groups(tiny_config, decay_norms):
    params = nn.meta.unbox(
        jax.eval_shape(LanguageModel(tiny_config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    )
    mask = decay_mask(params, decay_norms)["params"]
    assert not mask["embedding"]
    assert mask["layers_0"]["norm1"]["scale"] == mask["final_norm"]["scale"] == decay_norms
    assert mask["layers_0"]["mixer"]["conv_kernel"]
    assert not mask["layers_0"]["mixer"]["in_proj"]["bias"]
    assert mask["layers_1"]["mixer"]["q"]["kernel"]
    assert mask["layers_2"]["mlp"]["out"]["kernel"]


@pytest.mark.parametrize(
    ("name", "decayed", "kept"),
    [
        ("mamba", "dt_kernel", ["A_log", "D", "dt_bias", "conv_bias"]),  # spec of Based, 4.1
        ("hyena", "conv_kernel", ["filter/taps", "filter/out/kernel", "filter/embedding", "skip"]),
        ("h3", "q/kernel", ["c", "log_dt", "frequency", "shift_c"]),
        ("gated_delta_net", "q_conv", ["A_log", "norm_scale"]),
        ("rwkv5", "key/kernel", ["decay", "bonus", "mix_k", "norm_bias"]),
    ],
)
def test_what_describes_a_recurrence_or_a_filter_is_not_decayed(name, decayed, kept):
    mixer = mixers.make(name, d_model=8)
    params = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 1, 8)))
    mask = traverse_util.flatten_dict(nn.meta.unbox(decay_mask(params)["params"]), sep="/")
    assert mask[decayed]
    assert not any(mask.get(path, False) for path in kept)


def test_only_decayed_parameters_shrink_without_gradient():
    params = {"params": {"embedding": jnp.ones(3), "dense": {"kernel": jnp.ones(3), "bias": jnp.ones(3)}}}
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1, warmup=0.0, weight_decay=0.5), steps=10)
    update = jax.jit(optimizer.update)
    updates, _ = update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    np.testing.assert_allclose(updates["params"]["dense"]["kernel"], -0.05, rtol=1e-6)
    assert not np.any(updates["params"]["dense"]["bias"])
    assert not np.any(updates["params"]["embedding"])


def test_gradients_are_clipped_by_their_norm():
    """A norm of 5, clipped to 2, and one of 0.5, which is left as it is; in the first moment."""
    config = OptimizerConfig(clip=2.0, weight_decay=0.0)
    optimizer = make_optimizer(config, steps=10)
    update = jax.jit(optimizer.update)
    params = {"kernel": np.zeros(2, np.float32)}
    for scale, expected in ((1.0, [1.2, 1.6]), (0.1, [0.3, 0.4])):
        gradients = {"kernel": np.float32([3, 4]) * np.float32(scale)}
        _, state = update(gradients, optimizer.init(params), params)
        np.testing.assert_allclose(
            state[1][0].mu["kernel"], (1 - config.beta1) * np.array(expected), rtol=1e-5
        )


def test_filters_may_learn_slowly():
    params = {"mixer": {"filter": {"taps": jnp.ones(3)}, "out": {"kernel": jnp.ones(3)}}}
    gradients = jax.tree.map(jnp.ones_like, params)

    def updates(share):
        optimizer = make_optimizer(
            OptimizerConfig(warmup=0.0, weight_decay=0.0, filter_learning_rate_share=share), steps=10
        )
        return jax.jit(optimizer.update)(gradients, optimizer.init(params), params)[0]["mixer"]

    plain, slow = updates(1.0), updates(1 / 16)
    np.testing.assert_array_equal(slow["out"]["kernel"], plain["out"]["kernel"])
    np.testing.assert_allclose(slow["filter"]["taps"], plain["filter"]["taps"] / 16, rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_first_moment_may_be_kept_in_bfloat16(name):
    """The second moment stays float32."""
    config = OptimizerConfig(optimizer=name, moment_dtype="bfloat16")
    params = {"scale": jnp.ones(4), "layer": {"kernel": jnp.ones((4, 4))}}
    state = jax.eval_shape(make_optimizer(config, steps=10).init, params)
    found = jax.tree_util.tree_leaves_with_path(state)
    moments = [(jax.tree_util.keystr(path), leaf.dtype) for path, leaf in found if leaf.ndim]
    assert {dtype for path, dtype in moments if ".mu" in path} == {jnp.dtype("bfloat16")}
    assert {dtype for path, dtype in moments if ".nu" in path} == {jnp.dtype("float32")}


def test_bad_values_are_named():
    bad = {"learning_rate": 0.0, "warmup": 1.5, "clip": 0.0, "weight_decay": -1.0, "schedule": "step"}
    bad |= {"final_learning_rate_share": 2.0, "filter_learning_rate_share": -1.0, "moment_dtype": "float16"}
    bad |= {"beta1": 1.0, "beta2": -0.1, "eps": 0.0, "optimizer": "sgd"}
    for field, value in [*bad.items(), ("learning_rate", 1e39)]:  # infinite in float32
        with pytest.raises(ValueError, match=re.escape(f"{field} = {value!r}")):
            OptimizerConfig(**{field: value})
