"""Muon: which parameters are matrices, and that their steps are orthogonal, on one device and on several."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.models import MixerSpec, ModelConfig
from based_jax.training.devices.meshes import parse_mesh
from based_jax.training.optimizer import RMS, OptimizerConfig, make_optimizer, matrix_axes
from tests.subprocesses import run_python
from tests.training.test_step import make_batch, programs


@pytest.mark.release
@pytest.mark.parametrize("name", mixers.names())
def test_the_axes_of_matrices_are_those_of_the_models_width(name):
    """A kernel reads the model's width, or writes it: logical axes call it "embed"."""
    made = mixers.make(name, d_model=8)
    variables = jax.eval_shape(made.init, jax.random.key(0), jnp.zeros((1, 1, 8)))
    boxes = jax.tree_util.tree_flatten_with_path(
        variables["params"], is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )[0]
    found = 0
    for path, box in boxes:
        leaf = nn.meta.unbox(box)
        axes = matrix_axes(path, leaf.ndim)
        if axes is None:
            continue
        inputs, outputs = axes
        assert not set(inputs) & set(outputs)
        named = [axis for axis, word in enumerate(box.names) if word == "embed"]
        if named:
            assert named in (list(inputs), list(outputs)), (path, box.names)
        rest = set(range(leaf.ndim)) - {*inputs, *outputs}
        assert all(box.names[axis] is None for axis in rest), (path, box.names)
        found += 1
    assert bool(found) == (name not in ("short_conv", "long_conv"))


def orthogonal(gradient: np.ndarray) -> np.ndarray:
    """Muon's polynomial of the singular values, five times, in float64."""
    u, s, v = np.linalg.svd(np.asarray(gradient, np.float64), full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


def first_step(params, gradients, **settings):
    config = OptimizerConfig(learning_rate=1.0, warmup=0.0, weight_decay=0.0, clip=1e9, **settings)
    optimizer = make_optimizer(config, steps=10)
    return jax.jit(optimizer.update)(gradients, optimizer.init(params), params)[0]


@pytest.mark.release
def test_steps_are_orthogonal_matrices_and_adams_elsewhere():
    shapes = {
        "embedding": (7, 6),
        "mlp": {"in_proj": {"kernel": (6, 2, 5)}, "out": {"kernel": (5, 6), "bias": (6,)}},
        "mixer": {
            "q": {"kernel": (6, 2, 3)},
            "out": {"kernel": (2, 3, 6)},
            "filter": {"inner_0": {"kernel": (4, 4)}},
            "conv_kernel": (3, 6),
        },
    }
    rng = np.random.default_rng(0)
    gradients = jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    params = jax.tree.map(jnp.zeros_like, gradients)
    steps, adams = (first_step(params, gradients, optimizer=name) for name in ("muon", "adamw"))
    mlp, mixer = gradients["mlp"], gradients["mixer"]
    parts = [orthogonal(mlp["in_proj"]["kernel"][:, part]) for part in range(2)]
    expected = {
        ("mlp", "in_proj"): RMS * 6**0.5 * np.stack(parts, axis=1),
        ("mlp", "out"): RMS * 6**0.5 * orthogonal(mlp["out"]["kernel"]),
        ("mixer", "q"): RMS * 6**0.5 * orthogonal(mixer["q"]["kernel"].reshape(6, 6)).reshape(6, 2, 3),
        ("mixer", "out"): RMS * 6**0.5 * orthogonal(mixer["out"]["kernel"].reshape(6, 6)).reshape(2, 3, 6),
    }
    for (part, layer), step in expected.items():
        # Fifteen float32 products, whose polynomial has slopes of up to 3.4^5 at small singular values.
        np.testing.assert_allclose(steps[part][layer]["kernel"], -step, atol=2e-4, err_msg=layer)
        steps[part][layer].pop("kernel")
        adams[part][layer].pop("kernel")
    chex.assert_trees_all_equal(steps, adams)


@pytest.mark.slow
def test_shards_take_the_steps_of_whole_matrices():
    run_python("from tests.training.test_muon import on_four_devices; on_four_devices()", devices=4)


def on_four_devices() -> None:
    mixer = MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4})
    config = ModelConfig(257, 16, "L", {"L": mixer}, mlp_hidden=32)

    def losses(mesh):
        compiled = programs(config, mesh=parse_mesh(mesh), optimizer="muon")
        state = compiled.init(jax.random.key(0))
        for seed in range(3):
            state, metrics = compiled.train(state, compiled.place_batch(make_batch(rows=8, seed=seed)))
            yield float(metrics["loss"])
        yield float(compiled.evaluate(state.params, compiled.place_batch(make_batch(rows=8, seed=9)))[0])

    # The same sums in another order, float32; orthogonal steps amplify directions of small gradients.
    np.testing.assert_allclose(list(losses("fsdp=2,tensor=2")), list(losses(None)), rtol=2e-4)
