"""The step: loss over real targets, micro-batches, sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.models import LanguageModel
from tests.subprocesses import run_python
from train.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from train.step import build_programs, token_losses


def make_batch(rows: int = 4, length: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    stream = generator.integers(0, 257, (rows, length + 1)).astype(np.int32)
    return {
        "inputs": stream[:, :-1],
        "targets": stream[:, 1:],
        "mask": np.arange(length) < generator.integers(length // 2, length + 1, (rows, 1)),
        "segment_ids": np.sort(generator.integers(0, 3, (rows, length)), axis=1).astype(np.int32),
    }


def programs(config, accumulate=1):
    optimizer = OptimizerConfig(learning_rate=1e-2, warmup=0.0)
    schedule = learning_rate_schedule(optimizer, 10)
    return build_programs(
        LanguageModel(config), make_optimizer(optimizer, 10), schedule, accumulate=accumulate
    )


def test_loss_counts_real_targets_only(tiny_config):
    model, batch = LanguageModel(tiny_config), jax.tree.map(jnp.asarray, make_batch())
    params = jax.jit(model.init)(jax.random.key(0), batch["inputs"])
    losses = jax.jit(token_losses, static_argnums=0)
    total, count = losses(model, params, batch)
    logits, _ = jax.jit(model.apply)(
        params, batch["inputs"], segment_ids=batch["segment_ids"], mask=batch["mask"]
    )
    expected = 0.0
    for row, column in zip(*np.nonzero(batch["mask"]), strict=True):
        logit = np.asarray(logits[row, column], np.float64)
        expected += np.log(np.exp(logit).sum()) - logit[batch["targets"][row, column]]
    assert int(count) == batch["mask"].sum()
    np.testing.assert_allclose(float(total), expected, rtol=1e-5)  # float32 sum of ~80 terms
    other = dict(batch, targets=jnp.where(batch["mask"], batch["targets"], 0))
    assert float(losses(model, params, other)[0]) == float(total)


def test_micro_batches_give_the_same_step(tiny_config):
    whole, parts = programs(tiny_config), programs(tiny_config, accumulate=4)
    batch = make_batch(rows=8)
    first, second = whole.init(jax.random.key(0)), parts.init(jax.random.key(0))
    for _ in range(2):
        first, one = whole.train(first, batch)
        second, two = parts.train(second, batch)
        # The same sums in another order, float32.
        np.testing.assert_allclose(float(one["loss"]), float(two["loss"]), rtol=2e-6)
        np.testing.assert_allclose(float(one["grad_norm"]), float(two["grad_norm"]), rtol=2e-5)


def test_the_loss_falls_and_the_state_is_donated(tiny_config):
    compiled, batch = programs(tiny_config), make_batch()
    state = compiled.init(jax.random.key(0))
    before = state.params["params"]["embedding"]
    losses = []
    for _ in range(8):
        state, metrics = compiled.train(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.5
    assert int(state.step) == 8
    assert before.is_deleted()


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2", "fsdp=2,tensor=2"])
def test_any_mesh_gives_the_losses_of_one_device(mesh):
    run_python(SHARDED.format(mesh=mesh), devices=4)


SHARDED = """
import jax, numpy as np
from based_jax.models import LanguageModel, MixerSpec, ModelConfig
from tests.train.test_step import make_batch
from train.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from train.sharding import parse_mesh
from train.step import build_programs

config = ModelConfig(
    vocab_size=257, d_model=16, schedule="CLS", mlp_hidden=32,
    mixers={{
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {{"num_heads": 2, "feature_dim": 4}}),
        "S": MixerSpec("sliding_window", {{"num_heads": 2, "left": 7}}),
    }},
)
optimizer = OptimizerConfig(learning_rate=1e-2, warmup=0.0)
losses = {{}}
for name, mesh in (("one", None), ("many", parse_mesh("{mesh}"))):
    programs = build_programs(
        LanguageModel(config), make_optimizer(optimizer, 10), learning_rate_schedule(optimizer, 10), mesh=mesh
    )
    state = programs.init(jax.random.key(0))
    losses[name] = []
    for _ in range(3):
        state, metrics = programs.train(state, programs.place_batch(make_batch(rows=8)))
        losses[name].append(float(metrics["loss"]))
kernel = state.params["params"]["layers_1"]["mlp"]["in_proj"]["kernel"]
sizes = dict(part.split("=") for part in "{mesh}".split(","))
share = int(sizes.get("fsdp", 1)) * int(sizes.get("tensor", 1))
assert kernel.addressable_shards[0].data.size * share == kernel.size, kernel.sharding
moments = state.opt_state[1][0].mu["params"]["layers_1"]["mlp"]["in_proj"]["kernel"]
assert moments.sharding == kernel.sharding
np.testing.assert_allclose(losses["one"], losses["many"], rtol=2e-5)  # sums in another order, three steps
"""


def test_dtype_of_the_master_weights(tiny_config):
    state = programs(tiny_config.replace(dtype="bfloat16")).init(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
