"""Modules of NNX: the numbers of `apply`, and everything that NNX does with its own."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import based_jax as bj
from based_jax.models import MixerSpec, ModelConfig
from based_jax.models.sharding import shardings_of
from tests.subprocesses import run_python

LAYER = MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4})
CONFIG = ModelConfig(64, 16, "L", {"L": LAYER}, mlp_hidden=32)
MODEL = bj.LanguageModel(CONFIG)
TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


@pytest.fixture(scope="module")
def wrapped() -> bj.nnx.Wrapped:
    return bj.nnx.wrap(MODEL, nnx.Rngs(0), TOKENS)


outputs = nnx.jit(lambda model, *arrays: model(*arrays))


def loss(model, tokens):
    logits, _ = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def test_outputs_are_those_of_apply(wrapped):
    logits, state = outputs(wrapped, TOKENS)
    assert state is None
    np.testing.assert_array_equal(logits, jax.jit(MODEL.apply)(wrapped.variables, TOKENS)[0])
    hidden, _ = nnx.eval_shape(lambda: wrapped(TOKENS, method="hidden"))
    assert hidden.shape == (2, 12, 16)


def test_a_state_is_passed_in_and_returned(wrapped):
    first, state = outputs(wrapped, TOKENS[:, :6], wrapped.init_state(2))
    second, _ = outputs(wrapped, TOKENS[:, 6:], state)
    whole, _ = outputs(wrapped, TOKENS)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-5)


@pytest.mark.release
def test_gradients_and_updates_are_those_of_plain_jax(wrapped):
    model = nnx.clone(wrapped)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, tokens):
        value, grads = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, grads)
        return value

    before = wrapped.variables
    plain, grads = jax.jit(
        jax.value_and_grad(lambda params: loss(lambda tokens: MODEL.apply(params, tokens), TOKENS))
    )(before)
    assert float(step(model, optimizer, TOKENS)) == pytest.approx(float(plain), rel=1e-6)
    wanted = jax.tree.map(lambda x, g: np.asarray(x) - 0.1 * np.asarray(g), before, grads)
    chex.assert_trees_all_close(model.variables, wanted, rtol=1e-7, atol=1e-6)


@pytest.mark.release
def test_parameters_come_and_go_as_our_dict(wrapped, tmp_path):
    bj.save_pretrained(tmp_path, MODEL, wrapped.variables)
    _, params = bj.load_pretrained(tmp_path)
    other = bj.nnx.wrap(MODEL, nnx.Rngs(1), TOKENS)
    other.set_variables(params)
    np.testing.assert_array_equal(outputs(other, TOKENS)[0], outputs(wrapped, TOKENS)[0])
    made = bj.generate(MODEL, other.variables, TOKENS[:, :4], 3)
    np.testing.assert_array_equal(made, bj.generate(MODEL, params, TOKENS[:, :4], 3))
    del params["params"]["embedding"]
    with pytest.raises(ValueError, match=r"variables = .*embedding.*expected this module's"):
        other.set_variables(params)


@pytest.mark.slow
def test_a_mixer_inside_a_module_of_ones_own():
    class Own(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            example = jnp.ones((1, 4, 16))
            self.mixer = bj.nnx.wrap(bj.mixers.make("short_conv", d_model=16), rngs, example)
            self.out = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.out(self.mixer(x)[0])

    own = Own(nnx.Rngs(0))
    assert own(jnp.ones((2, 5, 16))).shape == (2, 5, 4)
    names = {path[0] for path, _ in nnx.to_flat_state(nnx.state(own, nnx.Param))}
    assert names == {"mixer", "out"}


@pytest.mark.release
def test_noise_is_drawn_from_rngs():
    model = bj.nnx.wrap(bj.LanguageModel(CONFIG.replace(embed_dropout=0.5)), nnx.Rngs(0), TOKENS)
    noisy = nnx.jit(lambda model, rngs: model(TOKENS, rngs=rngs)[0])
    for rngs in (nnx.Rngs(dropout=1), nnx.Rngs(1)):  # the default stream serves every name
        first, second = (noisy(model, rngs) for _ in range(2))
        assert not np.array_equal(first, second)
    np.testing.assert_array_equal(outputs(model, TOKENS)[0], outputs(model, TOKENS)[0])


@pytest.mark.slow
def test_the_bridge_of_flax_works_without_a_mesh():
    tokens = jnp.asarray(TOKENS)
    model = nnx.bridge.ToNNX(MODEL, rngs=nnx.Rngs(0)).lazy_init(tokens)
    params = {"params": jax.eval_shape(MODEL.init, jax.random.key(0), tokens)["params"]}
    boxes = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
    assert all(isinstance(leaf, nn.LogicallyPartitioned) for leaf in boxes)
    assert model(tokens)[0].shape == (2, 12, 64)
    assert model.embedding.get_metadata()["out_sharding"] == ("vocab", "embed")


@pytest.mark.slow
def test_parameters_are_placed_on_the_mesh_in_force():
    run_python("from tests.nnx import test_wrapped; test_wrapped.sharded()", devices=8)


def sharded() -> None:
    """Of both kinds of axes: where parameters are; generation, a training step; and of other names."""
    make = lambda **options: bj.nnx.wrap(MODEL, nnx.Rngs(0), TOKENS, **options)  # noqa: E731
    evaluate = nnx.jit(loss)
    alone = float(evaluate(make(), TOKENS))
    with jax.set_mesh(jax.make_mesh((4, 2), ("rows", "model"))):
        rules = [("vocab", "model"), ("mlp", ("model", "rows"))]
        wrapped = make(rules=rules).variables
        plain = bj.functional(MODEL, rules=rules).init(jax.random.key(0), TOKENS)
        boxed = jax.eval_shape(MODEL.init, jax.random.key(0), TOKENS)
        wanted = jax.tree.map(
            lambda of: of.spec, shardings_of(boxed, jax.sharding.get_abstract_mesh(), rules)
        )
        assert wanted["params"]["embedding"] == jax.sharding.PartitionSpec("model", None)
        for params in (wrapped, plain):
            assert jax.tree.map(lambda leaf: leaf.sharding.spec, params) == wanted
        with pytest.warns(UserWarning, match="mesh with axes rows, model: the rules name"):
            jax.eval_shape(bj.functional(MODEL).init, jax.random.key(0), TOKENS)
    for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
        mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(kind,) * 3)
        with jax.set_mesh(mesh):

            @nnx.jit
            def create():
                model = make()
                return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

            @nnx.jit
            def step(model, optimizer):
                value, grads = nnx.value_and_grad(loss)(model, TOKENS)
                optimizer.update(model, grads)
                return value

            model, optimizer = create()
            embedding = model.params["embedding"].get_value()
            assert embedding.sharding.spec == jax.sharding.PartitionSpec("tensor", "fsdp")
            for of in (model, optimizer):  # which has its moments
                specs = [leaf.sharding.spec for leaf in jax.tree.leaves(nnx.state(of)) if leaf.ndim == 2]
                assert embedding.sharding.spec in specs
            _, abstract = nnx.get_abstract_model(make, mesh)
            assert abstract["params"]["embedding"].sharding == embedding.sharding
            if kind == jax.sharding.AxisType.Auto:  # Explicit: tests/test_explicit_mesh.py
                assert bj.generate(MODEL, model.variables, TOKENS[:, :4], 2).shape == (2, 2)
                continue
            np.testing.assert_allclose(step(model, optimizer), alone, rtol=1e-5)
            assert model.params["embedding"].get_value().sharding.spec == embedding.sharding.spec
            assert step(model, optimizer) < alone


def make(rngs):
    return bj.nnx.wrap(MODEL, rngs, TOKENS)


def shapes_of(module, start=0):
    return jax.tree.map(lambda leaf: leaf.shape[start:], nnx.state(module))


def test_a_constructor_can_be_traced(wrapped):
    assert shapes_of(nnx.eval_shape(lambda: make(nnx.Rngs(0)))) == shapes_of(wrapped)


@pytest.mark.release
def test_a_constructor_runs_within_transformations(wrapped):
    made = nnx.jit(make)(nnx.Rngs(0))
    np.testing.assert_array_equal(outputs(made, TOKENS)[0], outputs(wrapped, TOKENS)[0])
    three = nnx.split_rngs(splits=3)(nnx.vmap(make))(nnx.Rngs(0))
    assert shapes_of(three, 1) == shapes_of(wrapped)
    assert len(np.unique(three.params["embedding"][:, 0, 0])) == 3


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_a_pipeline_on_eight_devices(framework):
    if framework == "equinox":
        pytest.importorskip("equinox")
    out = run_python(f"import tests.nnx.pipeline_{framework}", devices=8)
    assert "correct rows: 8" in out
    assert "P('fsdp'" in out


def test_what_is_no_module_of_ours_is_refused(unchecked):
    with pytest.raises(TypeError, match="module = Dense: expected a mixer or model of based_jax"):
        bj.nnx.wrap(nn.Dense(3), nnx.Rngs(0), jnp.ones((1, 2)))
    with pytest.raises(TypeError, match="expected the arguments of one call"):
        bj.nnx.wrap(MODEL, nnx.Rngs(0))
    with pytest.raises(TypeError, match="module = Dense: expected a mixer or model of based_jax"):
        bj.functional(nn.Dense(3))


def test_functional_is_two_pure_functions():
    init, apply = bj.functional(bj.mixers.make("short_conv", d_model=8))
    x = jnp.ones((1, 5, 8))
    params = init(jax.random.key(0), x)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    y, state = apply(params, x)
    assert (y.shape, state) == (x.shape, None)
