"""Any mesh gives the losses and gradients of one device, packed documents and padding included."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from based_jax.models import MixerSpec, ModelConfig
from based_jax.training.devices.meshes import mesh_sizes, parse_mesh
from tests.subprocesses import run_python
from tests.training.test_step import make_batch, programs

MODELS = {
    "Based": {
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 7}),
    },
    "linear attention": {"L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4})},
    "Transformer++": {"A": MixerSpec("attention", {"num_heads": 2})},
    "Mamba": {"M": MixerSpec("mamba", {"d_state": 4})},
    "GLA": {"G": MixerSpec("gla", {"num_heads": 2})},
}
AXES = ("data", "fsdp", "tensor", "context")
MESHES_OF_8 = [
    *(f"{axis}=8" for axis in AXES),
    *(f"{first}=2,{second}=4" for first, second in itertools.combinations(AXES, 2)),
    *(",".join(f"{axis}=2" for axis in axes) for axes in itertools.combinations(AXES, 3)),
]


@pytest.mark.slow
def test_linear_attention_on_eight_devices():
    """Every axis at once but "data", whose program is that of "fsdp" without the gathering of weights.

    Other layers over "context": tests/mixers/test_context_parallel.py.
    """
    compare("linear attention", ["fsdp=2,tensor=2,context=2"])


@pytest.mark.slow
@pytest.mark.parametrize("model", [name for name in MODELS if name != "linear attention"])
@pytest.mark.parametrize("part", range(3))
def test_every_mesh_of_eight_devices(model, part):
    compare(model, MESHES_OF_8[part::3])


def compare(model: str, meshes: list[str]) -> None:
    devices = int(np.prod(list(mesh_sizes(meshes[0]).values())))
    run_python(f"from tests.training.test_meshes import inside; inside({model!r}, {meshes})", devices)


def inside(model: str, meshes: list[str]) -> None:
    """In a process with the devices."""
    mixers = MODELS[model]
    mlp = "none" if model == "Mamba" else "gated"
    schedule = "".join(mixers) * (2 if model in ("Transformer++", "Mamba", "GLA") else 1)
    config = ModelConfig(257, 16, schedule, mixers, mlp_hidden=32, mlp=mlp)
    alone = np.array(list(numbers(config, None)))
    # Recomputed blocks run the collectives again, in programs of other kinds.
    config = config.replace(remat="block")
    for mesh in meshes:
        # The same sums in another order, float32, over three steps.
        np.testing.assert_allclose(list(numbers(config, mesh)), alone, rtol=2e-5, err_msg=mesh)


def numbers(config: ModelConfig, text: str | None) -> Iterator[float]:
    """Losses and gradient norms of three steps, then a held-out loss."""
    mesh = parse_mesh(text)
    compiled = programs(config, mesh=mesh)
    state = compiled.init(jax.random.key(0))
    if mesh is not None:
        embedding = state.params["params"]["embedding"]
        share = mesh.shape.get("fsdp", 1) * mesh.shape.get("tensor", 1)
        assert embedding.addressable_shards[0].data.size * share == embedding.size, embedding.sharding
        moments = state.opt_state[1][0].mu["params"]["embedding"]
        assert moments.sharding == embedding.sharding
    for seed in range(3):
        state, metrics = compiled.train(state, compiled.place_batch(make_batch(rows=8, seed=seed)))
        yield from (float(metrics["loss"]), float(metrics["grad_norm"]))
    nats, targets = compiled.evaluate(state.params, compiled.place_batch(make_batch(rows=8, seed=9)))
    yield from (float(nats), float(targets))
