"""The language model: the papers' sizes, initialisation, the contract, numbers under bfloat16."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.mixers.module import find_stream
from based_jax.models import MixerSpec
from based_jax.testing.laws import QUICKLY
from tests.arrays import normals
from tests.tolerances import FINITE_DIFFERENCE, FLOAT64, assert_close

CONFIG = bj.ModelConfig(
    vocab_size=50,
    d_model=24,
    schedule="CLSA",
    mixers={
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {"num_heads": 2, "feature_dim": 4}),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
        "A": MixerSpec("attention", {"num_heads": 2}),
    },
    mlp_hidden=48,
    output_norms="A",
)


LENGTH, PIECE = 22, 7
"""Every call is (2, LENGTH), (2, PIECE) or (2, 1): each shape is a program."""


@pytest.fixture(scope="module")
def model() -> bj.LanguageModel:
    return bj.LanguageModel(CONFIG)


@pytest.fixture(scope="module")
def params(model):
    """Far from the small initial weights."""
    generator = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return jax.tree.map(
        lambda leaf: np.float32(0.08 * generator.normal(size=leaf.shape) + 4 * (leaf.ndim == 1)), shapes
    )


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50, (2, LENGTH))


@pytest.fixture(scope="module")
def apply(model, params):
    """The compiled model with the parameters."""
    return functools.partial(jax.jit(model.apply), params)


@pytest.fixture(scope="module")
def whole(apply, tokens) -> np.ndarray:
    """The logits of one pass without a state."""
    logits, state = apply(tokens)
    assert state is None
    assert (logits.shape, logits.dtype) == ((2, LENGTH, 56), np.float32)  # the padded vocabulary
    return np.asarray(logits)


@pytest.fixture(scope="module")
def in_chunks(model, apply):
    """The logits of calls that hand the state on, and the last state."""

    def run(tokens, sizes):
        state, chunks, begin = model.init_state(batch_size=2, max_length=LENGTH), [], 0
        for size in sizes:
            logits, state = apply(tokens[:, begin : begin + size], state)
            chunks.append(logits)
            begin += size
        return np.concatenate(chunks, axis=1), state

    return run


def test_parameter_counts_are_the_papers():
    """To the last digit."""
    for preset, count in [
        ("based-360m", 362_620_928),
        ("based-1b", 1_349_453_056),
        ("based-1b-50b", 1_349_453_056),
        ("attn-360m", 359_810_048),
        ("attn-1b", 1_327_080_720),
    ]:
        assert bj.param_count(bj.presets.get(preset)) == count


def test_the_small_presets_are_of_one_size():
    based, attention = (bj.param_count(bj.presets.get(name)) for name in ("based-tiny", "attn-tiny"))
    assert 1e6 < based < 5e6
    assert abs(based - attention) < 0.05 * based


@pytest.mark.release
def test_initialisation_is_the_authors():
    """0.02 everywhere, 0.02 / sqrt(2 layers) back into the stream, U(+-3^-1/2) for conv taps."""
    config = CONFIG.replace(d_model=128, mlp_hidden=256, vocab_size=500)
    variables = jax.jit(bj.LanguageModel(config).init)(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))
    tree = jax.tree.map(np.asarray, nn.meta.unbox(variables))["params"]

    def std(array, expected):
        # Standard error of a standard deviation: 1 / sqrt(2 n); five of them.
        assert abs(array.std() / expected - 1) < 5 / (2 * array.size) ** 0.5

    residual = 0.02 / (2 * 4) ** 0.5
    std(tree["embedding"], 0.02)
    for layer in range(4):
        block = tree[f"layers_{layer}"]
        std(block["mixer"]["out"]["kernel"], residual)
        std(block["mlp"]["out"]["kernel"], residual)
        std(block["mlp"]["in_proj"]["kernel"], 0.02)
        np.testing.assert_array_equal(block["norm1"]["scale"], 1)
    std(tree["layers_1"]["mixer"]["q"]["kernel"], 0.02)
    taps = tree["layers_0"]["mixer"]["conv_kernel"]
    assert abs(taps).max() <= 3**-0.5
    std(taps, 3**-0.5 / 3**0.5)
    np.testing.assert_array_equal(tree["layers_0"]["mixer"]["in_proj"]["bias"], 0)


@pytest.mark.parametrize("sizes", [[1, 7, 7, 7], [7, 1, 7, 7], [7, 7, 7, 1], [1] * LENGTH], ids=str)
def test_prefill_and_decoding_equal_the_full_pass(in_chunks, tokens, whole, sizes):
    assert_close(in_chunks(tokens, sizes)[0], whole, 3e-6)  # float32, four layers


def test_packed_documents_are_independent(apply, in_chunks, tokens):
    lengths = [5, 10, 7]
    ids = np.repeat([0, 1, 0], lengths)[None].repeat(2, axis=0)
    packed, _ = apply(tokens, segment_ids=ids)
    for begin, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        sizes = [PIECE] * (length // PIECE) + [1] * (length % PIECE)
        alone, _ = in_chunks(tokens[:, begin:], sizes)
        assert_close(packed[:, begin : begin + length], alone, 3e-6)


def test_padding_changes_nothing(model, apply, in_chunks, tokens):
    """Its ids may be any, such as -100; its outputs are finite, for the gradients of the weights."""
    mask = np.arange(LENGTH - 1) < np.array([[LENGTH - 1], [4]])
    alone, alone_state = in_chunks(tokens, [1] * 4)
    step = np.array([[3], [3]])
    for before in (0, LENGTH - 5, 7):  # the second row's padding is after, before and around its tokens
        given, real = np.where(mask, tokens[:, :-1], -100), mask.copy()
        given[1], real[1] = np.roll(given[1], before), np.roll(real[1], before)
        padded, state = apply(given, model.init_state(2, LENGTH), mask=real)
        assert np.isfinite(padded).all()
        assert_close(padded[1, real[1]], alone[1], 3e-6)
        assert_close(apply(step, state)[0][1], apply(step, alone_state)[0][1], 3e-6)


@pytest.mark.release
def test_remat_changes_no_number(tokens, x64):
    """Of one layer; tests/transformations has the other mixers."""
    config = CONFIG.replace(dtype="float64", schedule="L")
    params = normals(bj.LanguageModel(config).init, tokens, dtype=np.float64)

    def gradients(config):
        def loss(params):
            return jnp.mean(bj.LanguageModel(config).apply(params, tokens[:, :PIECE])[0] ** 2)

        return jax.jit(jax.grad(loss), compiler_options=QUICKLY)(params)

    wanted = gradients(config)
    for remat in ("dots", "block"):
        assert_close(gradients(config.replace(remat=remat)), wanted, FLOAT64)


@pytest.mark.slow
def test_remat_keeps_less_for_the_backward_pass(params):
    """By tracing: on a CPU the compiler may undo it where layers are not scanned."""

    def kept(remat: str) -> int:
        model = bj.LanguageModel(CONFIG.replace(remat=remat))

        def backward(params):
            return jax.vjp(lambda params: model.apply(params, jnp.zeros((2, 64), jnp.int32))[0], params)[1]

        return sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(backward, params))
        )

    none, dots, block = (kept(remat) for remat in ("none", "dots", "block"))
    assert none > 2 * dots
    assert dots > 2 * block


@pytest.mark.release
def test_bfloat16_is_close_and_keeps_float32_sums(params, tokens, whole):
    low = bj.LanguageModel(CONFIG.replace(dtype="bfloat16"))
    logits, state = jax.jit(low.apply)(params, tokens, low.init_state(2, LENGTH))
    assert logits.dtype == jnp.float32
    assert state[1].kv.dtype == jnp.float32
    assert state[3].k.dtype == jnp.bfloat16
    assert_close(logits, whole, 0.05)  # 8 bits through four layers


@pytest.mark.slow
def test_a_model_is_differentiable_in_float64(params, tokens, whole, x64):
    """The same code in double precision, the arbiter for everything above: values, and a slope."""
    model = bj.LanguageModel(CONFIG.replace(dtype="float64"))
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        logits, _ = model.apply(params, tokens)
        return jnp.mean(logits**2), logits

    (_, logits), gradient = loss(params)
    assert logits.dtype == jnp.float64
    assert_close(whole, logits, 3e-6)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), params)
    step = 1e-5
    (above, _), _ = loss(jax.tree.map(lambda leaf, along: leaf + step * along, params, direction))
    (below, _), _ = loss(jax.tree.map(lambda leaf, along: leaf - step * along, params, direction))
    slope = jax.tree.reduce(np.add, jax.tree.map(np.vdot, gradient, direction))
    assert_close(slope, (above - below) / (2 * step), FINITE_DIFFERENCE)


def test_tokens_out_of_range_give_nan(model, apply, tokens, whole):
    """Never a wrapped or clamped, wrong answer; what comes before and other rows are not touched."""
    for token in (99, -1, model.config.vocab_size, 2**31 - 1, -(2**31)):
        bad = tokens.copy()
        bad[1, 2] = token
        logits, _ = apply(bad)
        assert np.all(np.isnan(logits[1, 2:]))
        assert_close([logits[0], logits[1, :2]], [whole[0], whole[1, :2]], 3e-6)


def test_steps_find_what_is_no_number_in_the_stream(model, apply, tokens, whole):
    """A token out of range is NaN, and spoils the rest of its text in every layer's state, and no other."""
    bad, state = tokens[:, :5].copy(), model.init_state(2, LENGTH)
    bad[1, 2] = 99
    for t in range(5):
        logits, state = apply(bad[:, t : t + 1], state)
        assert np.isnan(logits[1]).all() == (t >= 2)
        assert_close(logits[0, 0], whole[0, t], 3e-6)
        for layer in state:
            assert find_stream(layer).broken.tolist() == [False, t >= 2]


def test_state_size_adds_up(model):
    assert model.state_size(100) == 48 * 3 + 2 * (12 + 1) * 15 + 2 * 24 * 4 + 2 * 24 * 100


def test_bad_input_is_named(model, params, unchecked):
    for call, error, message in [
        (lambda m, p: m.apply(p, jnp.zeros((4,), jnp.int32)), ValueError, r"tokens has shape \(4,\)"),
        (lambda m, p: m.apply(p, jnp.zeros((1, 4))), TypeError, "tokens has dtype float32"),
        (lambda m, p: m.apply(p, jnp.zeros((1, 0), jnp.int32)), ValueError, "no empty axis"),
        (lambda m, p: m.apply(p, jnp.zeros((1, 4), jnp.int32), ()), ValueError, "the 4 layers' states"),
        (lambda m, p: bj.LanguageModel("based-tiny"), ValueError, "config = 'based-tiny': expected a Mod"),
        (lambda m, p: m.init_state(0, 4), ValueError, "batch_size = 0"),
        (lambda m, p: m.init_state(1), ValueError, "max_length = None"),
        (
            lambda m, p: m.apply(p, jnp.zeros((2, 4), jnp.int32), segment_ids=jnp.zeros((2, 3), jnp.int32)),
            ValueError,
            r"segment_ids has shape \(2, 3\):",
        ),
        (
            lambda m, p: m.apply(p, jnp.zeros((2, 4), jnp.int32), mask=jnp.ones((2, 4))),
            TypeError,
            "mask has dtype float32: expected a bool dtype",
        ),
        (
            lambda m, p: m.apply(p, jnp.zeros((2, 4), jnp.int32), mask=jnp.ones((2, 3), bool)),
            ValueError,
            r"mask has shape \(2, 3\): expected \(2, 4\)",
        ),
        (lambda m, p: m.apply(p, jnp.zeros((3, 4), jnp.int32), m.init_state(2, 9)), ValueError, "state"),
    ]:
        with pytest.raises(error, match=message):
            jax.eval_shape(functools.partial(call, model, params))
