"""The step: loss over real targets, micro-batches, noise."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from based_jax.models import LanguageModel, MixerSpec, ModelConfig
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import TrainState, build_programs, make_train_step, next_token_losses
from tests.arrays import normals
from tests.marks import slow_but


def make_batch(rows: int = 4, length: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    stream = generator.integers(0, 257, (rows, length + 1)).astype(np.int32)
    return {
        "inputs": stream[:, :-1],
        "targets": stream[:, 1:],
        "mask": np.arange(length) < generator.integers(length // 2, length + 1, (rows, 1)),
        "segment_ids": np.sort(generator.integers(0, 3, (rows, length)), axis=1).astype(np.int32),
    }


@functools.cache
def programs(config, accumulate=1, mesh=None, optimizer="adamw"):
    settings = OptimizerConfig(optimizer, learning_rate=1e-2, warmup=0.0)
    parts = LanguageModel(config), make_optimizer(settings, 10), learning_rate_schedule(settings, 10)
    return build_programs(*parts, accumulate=accumulate, mesh=mesh)


@pytest.fixture(scope="module")
def one_layer_config(tiny_config) -> ModelConfig:
    """A model that compiles quickly."""
    return tiny_config.replace(schedule="L")


token_losses = jax.jit(next_token_losses, static_argnums=0)


def test_loss_counts_real_targets_only(one_layer_config):
    model, batch = LanguageModel(one_layer_config), make_batch(rows=8)
    params = normals(model.init, batch["inputs"])
    (total, count), _ = token_losses(model, params, batch)
    logits, _ = jax.jit(model.apply)(
        params, batch["inputs"], segment_ids=batch["segment_ids"], mask=batch["mask"]
    )
    logits, expected = np.asarray(logits, np.float64), 0.0
    for row, column in zip(*np.nonzero(batch["mask"]), strict=True):
        logit = logits[row, column]
        expected += np.log(np.exp(logit).sum()) - logit[batch["targets"][row, column]]
    assert int(count) == batch["mask"].sum()
    np.testing.assert_allclose(float(total), expected, rtol=1e-5)  # float32 sum of ~150 terms
    for left_out in (0, -100):
        other = dict(batch, targets=np.where(batch["mask"], batch["targets"], left_out))
        assert float(token_losses(model, params, other)[0][0]) == float(total)
    (_, unmasked), _ = token_losses(model, params, {name: other[name] for name in ("inputs", "targets")})
    assert unmasked == count


def test_micro_batches_give_the_same_step(one_layer_config):
    whole, parts = programs(one_layer_config), programs(one_layer_config, accumulate=4)
    batch = make_batch(rows=8)
    first = whole.init(jax.random.key(0))
    second = jax.tree.map(jnp.copy, first)
    for _ in range(2):
        first, one = whole.train(first, batch)
        second, two = parts.train(second, batch)
        assert one.keys() == two.keys() == {"loss", "grad_norm", "learning_rate"}
        # The same sums in another order, float32.
        np.testing.assert_allclose(float(one["loss"]), float(two["loss"]), rtol=2e-6)
        np.testing.assert_allclose(float(one["grad_norm"]), float(two["grad_norm"]), rtol=2e-5)


@pytest.mark.release
@pytest.mark.parametrize("accumulate", slow_but([1], [1, 4]))
def test_whole_rows_need_no_mask(one_layer_config, accumulate):
    """A batch without a mask makes the step of one whose mask is true throughout."""
    masked, compiled = programs(one_layer_config), programs(one_layer_config, accumulate=accumulate)
    whole = make_batch(rows=8)
    whole["mask"][:] = True
    bare = {name: array for name, array in whole.items() if name != "mask"}
    start = masked.init(jax.random.key(0))
    other = jax.tree.map(jnp.copy, start)  # a step takes the state it is given
    one, two = masked.train(start, whole), compiled.train(other, bare)
    np.testing.assert_allclose(float(one[1]["loss"]), float(two[1]["loss"]), rtol=2e-6)
    np.testing.assert_allclose(float(one[1]["grad_norm"]), float(two[1]["grad_norm"]), rtol=2e-5)


def selecting_step(accumulate=1, remat="none", **options):
    """Initial state and step of a model of one SelectedAttention, which gradients move by their own size."""
    spec = MixerSpec("selected_attention", {"penalty": 1.0, **options})
    config = ModelConfig(16, 8, "A", {"A": spec}, mlp="identity", remat=remat)
    model, sgd = LanguageModel(config), optax.sgd(1.0)
    params = nn.meta.unbox(normals(model.init, np.zeros((1, 1), np.int32)))
    step = make_train_step(model, sgd, optax.constant_schedule(1.0), accumulate)
    return TrainState(jnp.zeros((), jnp.int32), params, sgd.init(params)), jax.jit(step)


def small_batch() -> dict[str, np.ndarray]:
    batch = make_batch(rows=4, length=12)
    return {name: array % 16 if name in ("inputs", "targets") else array for name, array in batch.items()}


@pytest.mark.slow
def test_auxiliary_losses_are_minimised_too():
    """With nothing attended to, the selection learns from its own loss alone, which is sum(sigmoid) - k."""
    state, step = selecting_step(noise=0.0)
    mixer = state.params["params"]["layers_0"]["mixer"]
    for name in ("out", "selecting"):
        mixer[name] = jax.tree.map(np.zeros_like, mixer[name])
    batch = small_batch()
    del batch["segment_ids"]
    after, metrics = step(state, batch)
    lengths = batch["mask"].sum(axis=1)
    excess = np.sum(lengths / 2 - np.ceil(lengths / 8))
    np.testing.assert_allclose(float(metrics["auxiliary_loss"]), excess / lengths.sum(), rtol=1e-6)
    moved = after.params["params"]["layers_0"]["mixer"]
    np.testing.assert_array_equal(moved["q"]["kernel"], mixer["q"]["kernel"])
    assert np.any(moved["selecting"]["kernel"] != 0)


@pytest.mark.slow
def test_micro_batches_of_different_lengths_give_the_same_auxiliary_loss():
    """Weighted by their lengths, their means are the mean of all."""
    state, step = selecting_step(noise=0.0)
    batch = small_batch()
    del batch["segment_ids"]
    _, metrics = step(state, batch)
    _, accumulated = selecting_step(2, "block", noise=0.0)[1](state, batch)
    assert accumulated.keys() == metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(float(accumulated[name]), float(value), rtol=2e-5)


def test_noise_depends_on_the_step_alone():
    state, step = selecting_step(noise=1.0)
    losses = [
        float(step(dataclasses.replace(state, step=jnp.int32(number)), small_batch())[1]["loss"])
        for number in (0, 1, 0)
    ]
    assert losses[0] == losses[2] != losses[1]


def test_the_loss_falls_and_the_state_is_donated(one_layer_config):
    compiled, batch = programs(one_layer_config), make_batch(rows=8)
    state = compiled.init(jax.random.key(0))
    before = state.params["params"]["embedding"]
    (nats, targets), _ = token_losses(LanguageModel(one_layer_config), state.params, batch)
    losses, known = [], compiled.train._cache_size()
    for _ in range(8):
        state, metrics = compiled.train(state, compiled.place_batch(batch))
        losses.append(float(metrics["loss"]))
    assert compiled.train._cache_size() <= known + 1  # not again for its own result
    np.testing.assert_allclose(losses[0], float(nats / targets), rtol=2e-6)  # the cross-entropy, nothing else
    assert losses[-1] < losses[0] - 0.5
    assert int(state.step) == 8
    assert before.is_deleted()


def test_dtype_of_the_master_weights(tiny_config):
    state = jax.eval_shape(programs(tiny_config.replace(dtype="bfloat16")).init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
