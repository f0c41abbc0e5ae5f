"""Linear attention: decay, gate, and what its feature maps add: sizes, limits, training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.convert import from_torch
from based_jax.testing import laws
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12


def make(name, **options):
    return mixers.make("linear_attention", d_model=WIDTH, feature_map=name, **options)


@pytest.mark.parametrize("decay", ["gated", pytest.param("fixed", marks=pytest.mark.release)])
def test_decay_and_gate_are_those_of_the_paper(decay):
    """Based, appendix C: gamma_h decays the numerator, and a map of the input scales each head's output."""
    heads, length = 2, 9
    run = laws.Runner(make("taylor", num_heads=heads, feature_dim=3, decay=decay))
    x = laws.inputs(2, length, WIDTH, 5)
    weights = jax.tree.map(np.float64, nn.meta.unbox(run.variables)["params"])
    q, k, v = (np.einsum("bnd,dhk->bhnk", x, weights[name]["kernel"]) for name in "qkv")
    s = q @ k.swapaxes(2, 3) / np.sqrt(3)
    a = np.tril(1 + s + s**2 / 2)
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    gamma = 1 - 2.0 ** (run.mixer.decay_const - np.arange(heads))
    y = (a * gamma[:, None, None] ** np.maximum(distance, 0)) @ v / a.sum(-1, keepdims=True)
    if decay == "gated":
        y *= (x @ weights["gate"]["kernel"] + weights["gate"]["bias"]).swapaxes(1, 2)[..., None]
    assert_close(run(x)[0], np.einsum("bhnv,hvd->bnd", y, weights["out"]["kernel"]), FLOAT32)


def test_sizes():
    """64 channels: what Zoology counts, and what the state holds."""
    for options, features, reported in [
        ({"feature_map": "taylor"}, 2145, 2145),
        *(
            ({"feature_map": name}, 64, 64)
            for name in ("relu", "pos_elu", "square", "squared_map", "identity")
        ),
        *(({"feature_map": name}, 128, 128) for name in ("exp_dim", "softmax_dim", "cosformer")),
        ({"feature_map": "all_poly"}, 64, 64),
        ({"feature_map": "all_poly", "num_features": 32}, 32, 32),
        ({"feature_map": "performer"}, 256, 64),  # Zoology's code does not count what it expands to
    ]:
        mixer = mixers.make("linear_attention", d_model=64, num_heads=1, feature_dim=64, **options)
        assert mixer.state_size(1024) == reported * (64 + 1)
        if mixer.feature_map == "cosformer":
            mixer = mixer.clone(max_length=1024)
        state = jax.eval_shape(lambda: mixer.init_state(1))  # noqa: B023
        assert state.kv.size + state.k.size == features * (64 + 1)


@pytest.mark.parametrize(
    ("name", "options", "learned"),
    [
        pytest.param("all_poly", {}, True, marks=pytest.mark.release),
        ("all_poly", {"learned_map": False}, False),
        ("performer", {}, False),
    ],
)
def test_learned_and_frozen_maps(name, options, learned):
    """Gradients reach all_poly's projections unless they are frozen, and never Performer's."""
    run = laws.Runner(make(name, num_features=5, **options))
    x = laws.inputs(1, 5, WIDTH, 2)

    def loss(variables):
        return jnp.sum(run.mixer.apply(variables, x)[0] ** 2)

    gradients = jax.jit(jax.grad(loss), compiler_options=laws.QUICKLY)(run.variables)["params"]
    maps = [gradients[key].unbox() for key in gradients if key not in "qkv" and key != "out"]
    assert len(maps) == (1 if name == "performer" else 2)
    assert all(np.any(gradient) == learned for gradient in maps)
    assert np.any(gradients["q"]["kernel"].unbox())


def test_scaled_rotated_and_uneven_heads_are_the_formula():
    """Taylor's map of scaled queries that rotary embeddings turned; heads of 5 values in 12 channels."""
    length, scale = 7, 1.3
    options = {"rotary_fraction": 1.0, "rotary_base": 50.0, "feature_scale": scale}
    run = laws.Runner(make("taylor", num_heads=2, head_dim=5, feature_dim=4, **options))
    x = laws.inputs(1, length, WIDTH, 6)
    weights = jax.tree.map(np.float64, nn.meta.unbox(run.variables)["params"])
    q, k, v = (np.einsum("nd,dhk->hnk", x[0], weights[name]["kernel"]) for name in "qkv")
    assert v.shape == (2, length, 5)
    angle = np.arange(length)[:, None] * 50.0 ** (-np.arange(0, 4, 2) / 4)

    def turned(a):
        one, two = a[..., :2], a[..., 2:]
        cos, sin = np.cos(angle), np.sin(angle)
        return scale * np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)

    s = turned(q) @ turned(k).swapaxes(1, 2) / 2
    a = np.tril(1 + s + s**2 / 2)
    y = np.einsum("hnv,hvd->nd", a @ v / a.sum(-1, keepdims=True), weights["out"]["kernel"])
    assert_close(run(x)[0][0], y, FLOAT32)
    tokens, _ = laws.stepped(run, x)
    laws.assert_close(tokens, run(x)[0], laws.TOLERANCE)


def test_scales_and_floors_of_maps_without_them_are_errors():
    for name, value in (("feature_scale", 2.0), ("feature_floor", 0.1)):
        with pytest.raises(ValueError, match=f"{name} = {value}: expected"):
            laws.Runner(make("performer", **{name: value}))


def test_cosformer_without_a_longest_text_is_the_authors():
    """M is the call's length, so that whole rows are all it can take."""
    x = laws.inputs(laws.ROWS, 5, WIDTH, 3)
    whole, fixed = (
        laws.Runner(make("cosformer", num_heads=2, feature_dim=4, max_length=length)) for length in (None, 5)
    )
    laws.assert_close(whole(x)[0], fixed(x)[0], laws.TOLERANCE)
    ids = jnp.zeros((laws.ROWS, 5), jnp.int32)
    state = fixed.fresh(laws.ROWS)
    for context in ({"state": state}, {"segment_ids": ids}, {"mask": ids == 0}, {"positions": ids}):
        message = f"max_length = None: expected a number of tokens .* has {next(iter(context))}"
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(whole.mixer.apply, whole.variables, x, **context)
    with pytest.raises(ValueError, match=r"max_length = None: expected a number of tokens .* has a state"):
        whole.fresh(1)


@pytest.mark.release
def test_a_text_longer_than_cosformers():
    """An error where the length is known, else NaN; documents count for themselves, and padding does not."""
    x = laws.inputs(1, 6, WIDTH, 4)
    run = laws.Runner(make("cosformer", max_length=4))
    with pytest.raises(ValueError, match="length = 6: expected at most max_length = 4 tokens"):
        run(x)
    y, state = run(x[:, :3], run.fresh(1))
    assert np.all(np.isfinite(y))
    y, _ = run(x[:, 3:], state)
    assert np.array_equal(np.isnan(y).any(axis=(0, 2)), [False, True, True])
    packed, _ = run(x, segment_ids=jnp.array([[0, 0, 0, 1, 1, 1]]))
    assert np.all(np.isfinite(packed))
    padded, _ = run(x, run.fresh(1), mask=jnp.arange(6)[None] < 4)
    assert np.all(np.isfinite(padded[:, :4]))


def test_torch_maps_that_we_do_not_have():
    meta = {"module": "zoology.mixers.based.Based", "d_model": 8, "num_heads": 2}
    with pytest.raises(ValueError, match=r"feature_name = 'zoology\..*\.Hadamard': expected one of"):
        from_torch(meta | {"feature_name": "zoology.mixers.feature_maps.base.Hadamard"}, {})
    kwargs = {"feature_name": "cosformer", "feature_kwargs": {"act_fun": "elu"}}
    with pytest.raises(ValueError, match=r"feature_kwargs\.act_fun = 'elu': expected 'relu'"):
        from_torch(meta | kwargs, {})
