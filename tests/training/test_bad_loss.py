"""Policies for bad steps, on a model of one number that fits the batches' targets."""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from based_jax.training.bad_loss import BadLoss, BadLossConfig, guard, guard_metrics, updates_made
from based_jax.training.loop import LoopConfig, fit
from based_jax.training.run.metrics import read_metrics
from based_jax.training.step import Programs, TrainState
from tests.marks import release_but

STEPS = 12
SCHEDULE = optax.linear_schedule(0.5, 0.1, 100)


class Targets:
    """Batch number k has the target 1 / k, or what `bad` says."""

    def __init__(self, bad):
        self.bad, self.drawn = bad, 0

    def __next__(self):
        self.drawn += 1
        target = self.bad.get(self.drawn, 1 / self.drawn)
        return {"targets": np.full((1, 1), target, np.float32)}

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]


@functools.cache
def programs_for(config):
    optimizer = guard(optax.adam(SCHEDULE), config)

    def init(key):
        params = jnp.zeros(())
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    def train(state, batch):
        loss, grads = jax.value_and_grad(lambda w: jnp.sum((w - batch["targets"]) ** 2))(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        metrics = {
            "loss": loss,
            "grad_norm": jnp.abs(grads),
            "learning_rate": SCHEDULE(updates_made(state.step, state.opt_state)),
            **guard_metrics(opt_state),
        }
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), metrics

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        jax.eval_shape(init, jax.random.key(0)),
    )
    return Programs(jax.jit(init), jax.jit(train), jax.jit(train), abstract, jax.device_put, device)


def run(workdir, bad, steps=STEPS, log_every=1, **settings):
    config = BadLossConfig(**settings)
    workdir.mkdir(exist_ok=True)
    return fit(
        programs_for(config),
        jax.random.key(0),
        Targets(bad),
        workdir,
        LoopConfig(steps, log_every, eval_every=0, checkpoint_every=3, keep=2),
        describe=lambda values, tokens: {
            name: values[name] for name in ("loss", "grad_norm", "learning_rate")
        },
        evaluate=lambda state: {},
        bad_losses=config,
    )


def weights(outcome):
    state = outcome.state
    return jax.tree.map(np.asarray, (state.params, getattr(state.opt_state, "inner_state", state.opt_state)))


@pytest.fixture(scope="module")
def without_7(tmp_path_factory):
    """Weights after all batches but the seventh: one update fewer than STEPS."""
    targets = {k: 1 / (k + 1) for k in range(7, STEPS + 2)}
    return weights(run(tmp_path_factory.mktemp("without"), targets, STEPS - 1, on_bad_loss="skip"))


@pytest.mark.parametrize("value", release_but(["nan"], [np.nan, np.inf], str))
def test_a_skipped_step_leaves_no_trace(value, without_7, tmp_path, capsys):
    outcome = run(tmp_path, {7: value}, on_bad_loss="skip")
    chex.assert_trees_all_equal(weights(outcome), without_7)
    assert capsys.readouterr().err.count("the update is skipped, 1 in a row") == 1
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["bad_losses"] for line in lines] == [0] * 6 + [1] * 6
    assert [line["loss"] is None for line in lines] == [line["step"] == 7 for line in lines]
    # The schedule waits with the optimizer.
    rates = [line["learning_rate"] for line in lines]
    assert rates[7] == rates[6] < rates[5]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_skipping_ends_when_too_many_follow_each_other(tmp_path):
    bad = dict.fromkeys((4, 7, 8, 9), np.nan)
    with pytest.raises(BadLoss, match=r"step 9: loss nan.* after 3 in a row\. Last good checkpoint: .*/6$"):
        run(tmp_path, bad, on_bad_loss="skip", max_bad_losses=2)
    run(tmp_path / "more", bad, on_bad_loss="skip", max_bad_losses=3)


def test_a_resumed_run_counts_bad_steps_on(tmp_path):
    bad = {4: np.nan, 8: np.nan}
    whole = run(tmp_path / "whole", bad, on_bad_loss="skip")
    run(tmp_path / "parts", bad, steps=6, on_bad_loss="skip")
    chex.assert_trees_all_equal(run(tmp_path / "parts", bad, on_bad_loss="skip").state, whole.state)
    assert int(whole.state.opt_state.total_notfinite) == 2


def test_bad_settings():
    with pytest.raises(ValueError, match="on_bad_loss = 'ignore': expected one of 'stop', 'skip'"):
        BadLossConfig("ignore")
    with pytest.raises(ValueError, match="max_bad_losses = 0: expected at least 1"):
        BadLossConfig(max_bad_losses=0)


def test_a_run_that_stops_keeps_its_optimizer_as_it_is():
    optimizer = optax.sgd(1.0)
    assert guard(optimizer, BadLossConfig()) is optimizer
