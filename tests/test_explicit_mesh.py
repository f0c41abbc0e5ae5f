"""A mesh as `jax.make_mesh` makes it: its Explicit axes are part of every array's type."""

import contextlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import based_jax as bj
from based_jax import mixers
from based_jax.export import Exported, Plan, export_model
from based_jax.generate import snapshot
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals
from tests.subprocesses import run_python
from tests.test_eager import BATCH, CALLS, CASES, CHANNELS, differentiated
from tests.tolerances import FLOAT32_GRADIENT, assert_close

AXES = ("data", "model")
ROWS = PartitionSpec("data")
TYPES = {"Explicit": AxisType.Explicit, "Auto": AxisType.Auto}

OPS = ["softmax_attention", "taylor_attention"]
CONFIG = ModelConfig(
    64,
    16,
    "CLS",
    {
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 7}),
    },
    mlp_hidden=32,
)


@pytest.mark.slow
def test_ops_mixers_and_models():
    """Compiling takes most of the time: a few programs here, all of them in the tests below."""
    inside_a_process(f"ops('Explicit', {OPS}); padded('Explicit'); model('Explicit', schedule='C')")


@pytest.mark.slow
@pytest.mark.parametrize("types", TYPES)
def test_every_op(types):
    inside_a_process(f"ops({types!r}, {list(CALLS)})")


@pytest.mark.slow
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("part", range(3))
def test_every_mixer(types, part):
    inside_a_process(f"modules({types!r}, {list(CASES)[part::3]})")


@pytest.mark.slow
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("context", [True, False])
def test_every_way_to_call_a_model(types, context):
    inside_a_process(f"model({types!r}, {context}); more_of_the_model({types!r}, {context})")


def inside_a_process(calls: str) -> None:
    names = "model, modules, more_of_the_model, ops, padded"
    run_python(f"from tests.test_explicit_mesh import {names}; {calls}", devices=8)


def padded(types: str) -> None:
    """Padding is before tokens that are split over devices."""
    x, taps = np.random.default_rng(0).normal(size=(2, BATCH, 8, 4)).astype(np.float32)
    mask = np.arange(8) >= np.arange(BATCH)[:, None]
    placed = jax.device_put(x, NamedSharding(mesh(types), PartitionSpec("data", "model")))
    for function in (bj.ops.short_conv, jax.jit(bj.ops.short_conv)):
        same(function(placed, taps[0, :3], mask=mask), function(x, taps[0, :3], mask=mask))


def mesh(types: str) -> jax.sharding.Mesh:
    made = jax.make_mesh((BATCH, 8 // BATCH), AXES, axis_types=(TYPES[types],) * 2)
    if types == "Explicit":
        assert jax.make_mesh((BATCH, 8 // BATCH), AXES) == made, "JAX's own default is another"
    return made


def expect_rows(mesh: jax.sharding.Mesh, results: Any, rows: int = BATCH) -> None:
    """What has a row for each of the batch's has it where the batch has it."""
    if AxisType.Explicit in mesh.axis_types:
        for leaf in jax.tree.leaves(results):
            if leaf.ndim and leaf.shape[0] == rows:
                assert jax.typeof(leaf).sharding.spec[0] == "data", jax.typeof(leaf)


def same(ours: Any, theirs: Any) -> None:
    def compare(x: Any, y: Any) -> None:
        if jnp.issubdtype(x.dtype, jnp.floating):
            assert_close(np.asarray(x), np.asarray(y), FLOAT32_GRADIENT)
        elif x.dtype != jax.dtypes.float0 and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y)

    jax.tree.map(compare, ours, theirs)


def ops(types: str, names: list[str]) -> None:
    """Values and gradients, through `jit` and without."""
    on = mesh(types)
    for name in names:
        function, *arrays = CALLS[name]
        twice = jax.jit(lambda *x, f=function: differentiated(f, *x))
        expected = twice(*arrays)
        cut = [x.ndim > 0 and x.shape[0] == BATCH for x in arrays]
        specs = [ROWS if has_rows else PartitionSpec() for has_rows in cut]
        placed = [jax.device_put(x, NamedSharding(on, spec)) for x, spec in zip(arrays, specs, strict=True)]
        with jax.set_mesh(on):
            y = function(*placed)
            if any(cut):
                expect_rows(on, y)
            ours = twice(*placed)
        same(ours, expected)
        floating = jnp.issubdtype(jax.tree.leaves(arrays)[0].dtype, jnp.floating)
        same(y, expected[0] if floating else expected)


def modules(types: str, cases: list[str]) -> None:
    on = mesh(types)
    for case in cases:
        mixer = mixers.make(case.partition("-")[0], d_model=CHANNELS * 3, **CASES[case])
        x = np.random.default_rng(0).normal(size=(BATCH, 13, mixer.d_model)).astype(np.float32)
        tokens = {"tokens": jnp.zeros((BATCH, 13), int)} if mixer.wants_tokens else {}
        variables = normals(lambda *a, m=mixer, t=tokens: m.init(*a, **t), x, dtype=jnp.float32)

        def values(variables: Any, x: Any, mixer: Any = mixer, tokens: Any = tokens) -> Any:
            y = mixer.apply(variables, x, **tokens)[0]
            return (y * y).sum(), y

        run = jax.jit(jax.value_and_grad(values, argnums=(0, 1), has_aux=True))
        expected = run(variables, x)
        with jax.set_mesh(on):
            ours = run(*sharded(on, variables, x))
            expect_rows(on, ours[0][1])
        same(ours, expected)


def sharded(on: jax.sharding.Mesh, variables: Any, x: Any) -> tuple[Any, Any]:
    """The rows over "data"; parameters over "model", each along its first axis that this divides."""

    def spec(leaf: Any) -> PartitionSpec:
        divided = [axis for axis, size in enumerate(leaf.shape) if size % on.shape["model"] == 0]
        return PartitionSpec(*[None] * divided[0], "model") if divided else PartitionSpec()

    shardings = jax.tree.map(lambda leaf: NamedSharding(on, spec(leaf)), variables)
    return jax.device_put(variables, shardings), jax.device_put(x, NamedSharding(on, ROWS))


TOKENS = np.random.default_rng(0).integers(0, 64, (4, 9))


def drawn_model(schedule: str = CONFIG.schedule) -> tuple[bj.LanguageModel, Any]:
    model = bj.LanguageModel(CONFIG.replace(schedule=schedule))
    return model, nn.meta.unbox(normals(model.init, jnp.asarray(TOKENS), dtype=jnp.float32))


def on_mesh(on: jax.sharding.Mesh, context: bool) -> contextlib.AbstractContextManager[Any]:
    """`jax.set_mesh`, or nothing: then only the arrays say which mesh there is."""
    return jax.set_mesh(on) if context else contextlib.nullcontext()


def model(types: str, context: bool = True, schedule: str = CONFIG.schedule) -> None:
    """Logits, gradients and a continuation."""
    on, (model, params) = mesh(types), drawn_model(schedule)

    def loss(params: Any, tokens: Any) -> Any:
        logits, _ = model.apply(params, tokens)
        return (logits * logits).mean(), logits

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    expected, made = step(params, TOKENS), bj.generate(model, params, TOKENS, 5)
    placed = sharded(on, params, jnp.asarray(TOKENS))
    with on_mesh(on, context):
        ours, written = step(*placed), bj.generate(model, *placed, 5)
        expect_rows(on, (ours[0][1], written), rows=4)
    same(ours, expected)
    same(written, made)
    if types == "Explicit":
        gradients = jax.tree.leaves(ours[1])
        for gradient, param in zip(gradients, jax.tree.leaves(placed[0]), strict=True):
            assert gradient.sharding.is_equivalent_to(param.sharding, param.ndim)


def more_of_the_model(types: str, context: bool) -> None:
    """A state, the loss without logits, sampling, streams, snapshots, exports, and calls outside `jit`."""
    on, (model, params) = mesh(types), drawn_model()

    def cross_entropy(params: Any, tokens: Any) -> Any:
        hidden, _ = model.apply(params, tokens, method="hidden")
        weights = jnp.ones(tokens.shape)
        return bj.ops.cross_entropy(hidden, model.output_embedding(params), tokens, weights)

    def read(params: Any, tokens: Any) -> Any:
        return model.apply(params, tokens, model.init_state(len(tokens)))

    def write(params: Any, tokens: Any) -> Any:
        rules = {"temperature": 0.7, "rng": jax.random.key(1), "repetition_penalty": 1.2}
        chunks = bj.stream(model, params, tokens, 5, chunk=2)
        return bj.generate(model, params, tokens, 5, **rules), np.concatenate(list(chunks), axis=1)

    def carry(params: Any, tokens: Any) -> Any:
        before = snapshot(model, params, [5, 6, 7])
        return bj.generate(model, params, tokens, 5, prefix=before)

    def export(params: Any, tokens: Any) -> Any:
        plan = Plan(platforms=("cpu",), prefill_chunk=4)
        with tempfile.TemporaryDirectory() as directory:
            export_model(Path(directory, "model"), model, params, plan)
            with jax.set_mesh(Mesh(np.empty((), object), ())):
                exported = Exported.load(Path(directory, "model"))
                return np.asarray(exported.generate(TOKENS.tolist(), max_new_tokens=5))

    calls = [jax.jit(jax.value_and_grad(cross_entropy)), jax.jit(read), write, model.apply, carry, export]
    expected = [call(params, jnp.asarray(TOKENS)) for call in calls]
    placed = sharded(on, params, jnp.asarray(TOKENS))
    with on_mesh(on, context):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Some donated buffers")
            ours = [call(*placed) for call in calls]
        expect_rows(on, (ours[1], ours[2][0], ours[3]), rows=4)
        if context:
            same(jax.jit(model.init)(jax.random.key(0), placed[1]), model.init(jax.random.key(0), TOKENS))
    same(ours, expected)
