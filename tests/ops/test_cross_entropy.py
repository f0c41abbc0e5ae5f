"""The loss from hidden vectors: values and gradients of the logits' own, in one chunk and in many."""

import importlib
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from based_jax import ops
from based_jax.ops.core import platforms, sharding
from pallas_kernels import interpreted, is_interpreted
from tests.arrays import array, ones, zeros
from tests.tolerances import FLOAT32_GRADIENT, assert_close

MODULE = importlib.import_module("based_jax.ops.cross_entropy")  # the package's attribute is the function
ROWS, LENGTH, WIDTH, VOCAB = 3, 11, 8, 13


def drawn():
    generator = np.random.default_rng(0)
    hidden, embedding = (
        generator.normal(size=shape).astype(np.float32) for shape in ((ROWS, LENGTH, WIDTH), (VOCAB, WIDTH))
    )
    targets = generator.integers(0, VOCAB, (ROWS, LENGTH))
    weights = np.where(targets == 3, 0, generator.uniform(size=(ROWS, LENGTH))).astype(np.float32)
    return array(hidden), array(embedding), array(targets), array(weights)


def changed(x, value):
    """With another value at one token."""
    x = np.array(x)
    x[1, 2] = value
    return array(x)


def expected(hidden, embedding, targets, weights):
    """The definition, through all logits. Weights of 0 stay 0."""
    weights = jnp.where(weights == 0, 0, weights)
    logits = jnp.einsum("bnd,vd->bnv", hidden, embedding)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.sum(weights * (jax.nn.logsumexp(logits, axis=-1) - chosen))


def pretend(monkeypatch, platform, logits):
    """Take the form for a platform and a limit of the logits; kernels run in the interpreter only."""
    monkeypatch.setattr(MODULE, "LOGITS", {platform: logits})
    monkeypatch.setattr(platforms, "platform_of", lambda arrays: platform)
    monkeypatch.setattr(MODULE, "runs_kernels", lambda x: is_interpreted())


@jax.jit
def definition(hidden, embedding, targets, weights):
    differentiated = jax.value_and_grad(lambda h, e, w: expected(h, e, targets, w), argnums=(0, 1, 2))
    return differentiated(hidden, embedding, weights)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("logits", [1 << 25, ROWS * 4 * VOCAB, 1], ids=["whole", "4 chunks", "tokens"])
def test_value_and_gradients_are_those_of_the_logits(monkeypatch, logits, platform):
    """The form for GPUs runs anywhere: the vocabulary padded, the sum of exponentials in one pass."""
    pretend(monkeypatch, platform, logits)
    hidden, embedding, targets, weights = drawn()

    def doubled(hidden, embedding, weights):
        return 2 * ops.cross_entropy(hidden, embedding, targets, weights)

    ours = jax.jit(jax.value_and_grad(doubled, argnums=(0, 1, 2)))(hidden, embedding, weights)
    with jax.enable_x64(True):
        wide = [np.asarray(x, np.float64) for x in (hidden, embedding, weights)]
        theirs = jax.tree.map(lambda x: 2 * np.asarray(x), definition(*wide[:2], targets, wide[2]))
    # float32 sums of at most 33 terms.
    chex.assert_trees_all_close(ours, theirs, rtol=2e-5, atol=2e-6)
    alone = jax.jit(ops.cross_entropy)(hidden, embedding, targets, weights)
    np.testing.assert_allclose(2 * np.asarray(alone), ours[0], rtol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_small_loss_beside_large_logits_keeps_its_digits(monkeypatch, platform):
    """Of a token that is nearly certain, 1.8e-3, at logits of 1e4, which float32 knows to 1e-3."""
    pretend(monkeypatch, platform, 1 << 25)
    logits = jnp.array([[1e4], [1e4 - 8], [1e4 - 9]], jnp.float32)
    targets, ones = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4))
    run = jax.jit(jax.value_and_grad(ops.cross_entropy, argnums=3))
    total, losses = run(jnp.ones((1, 4, 1)), logits, targets, ones)
    expected = np.log1p(np.exp(-8) + np.exp(-9))
    np.testing.assert_allclose(losses, np.full((1, 4), expected), rtol=1e-4)  # 1 + 1.8e-3 to 6e-8
    np.testing.assert_allclose(total, 4 * expected, rtol=1e-4)


@pytest.mark.release
def test_the_kernel_of_the_logits_gradient_has_the_same_numbers(monkeypatch):
    """In 4 chunks; of a target that is no token the loss is NaN, of those left out nothing counts."""
    pretend(monkeypatch, "gpu", ROWS * 4 * 64)
    hidden, embedding, targets, weights = drawn()
    calls = [(targets, weights), (changed(targets, -100), weights), (changed(targets, VOCAB), weights)]

    def results():
        run = jax.value_and_grad(lambda *arrays: ops.cross_entropy(*arrays), argnums=(0, 1, 3))
        compiled = jax.jit(run)
        program = str(compiled.trace(hidden, embedding, *calls[0]).jaxpr)
        return [compiled(hidden, embedding, *call) for call in calls], "name=softmax_loss" in program

    plain, is_fused = results()
    assert not is_fused
    with interpreted():
        kernel, is_fused = results()
    assert is_fused
    assert_close(kernel[:2], plain[:2], FLOAT32_GRADIENT)
    assert np.isnan(kernel[2][0])


def test_what_is_left_out_may_be_anything_and_other_targets_must_exist():
    hidden, embedding, targets, weights = drawn()
    loss = jax.jit(jax.value_and_grad(ops.cross_entropy, argnums=(0, 1)))
    wanted = loss(hidden, embedding, targets, changed(weights, 0))
    without = changed(targets, -100)
    for odd in (without, changed(targets, VOCAB), changed(targets, -1)):
        broken = changed(hidden, np.nan)
        chex.assert_trees_all_equal(loss(broken, embedding, odd, changed(weights, 0)), wanted)
    chex.assert_trees_all_equal(loss(hidden, embedding, without, weights), wanted)
    for missing in (-1, -99, VOCAB, 10**6):
        assert np.isnan(loss(hidden, embedding, changed(targets, missing), weights)[0])


def test_targets_of_few_bits_are_those_of_32():
    """Neither -100 nor the number of tokens fits into them: 156 would be -100, and 256 tokens none."""
    rng = np.random.default_rng(0)
    hidden, embedding = (array(rng.normal(size=size), "float32") for size in ((1, 3, 8), (256, 8)))
    targets, weights = np.array([[156, 0, 255]]), np.ones((1, 3), np.float32)
    wanted = ops.cross_entropy(hidden, embedding, targets, weights)
    assert ops.cross_entropy(hidden, embedding, targets.astype(np.uint8), weights) == wanted


def test_no_array_of_all_logits_is_made(monkeypatch):
    monkeypatch.setattr(MODULE, "LOGITS", {"cpu": ROWS * 4 * VOCAB})
    hidden, embedding, targets, weights = drawn()
    step = jax.grad(lambda *args: ops.cross_entropy(*args, targets, weights), argnums=(0, 1))
    program = str(jax.make_jaxpr(step)(hidden, embedding))
    assert f"[{ROWS * 3},{VOCAB}]" in program
    assert f"{ROWS},{LENGTH},{VOCAB}]" not in program
    assert f"[{ROWS * LENGTH},{VOCAB}]" not in program


def test_bfloat16_sums_in_float32():
    hidden, embedding, targets, weights = drawn()
    hidden = array(hidden, jnp.bfloat16)
    run = jax.jit(jax.value_and_grad(ops.cross_entropy, argnums=(0, 1)))
    value, grads = run(hidden, embedding, targets, weights)
    assert (value.dtype, grads[0].dtype, grads[1].dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    rounded = np.asarray(np.asarray(embedding, jnp.bfloat16), np.float64)
    exact, _ = definition(np.asarray(hidden, np.float64), rounded, targets, weights)
    np.testing.assert_allclose(value, exact, rtol=1e-5)  # products of bfloat16 are exact in float32


def test_gradients_of_a_mean_keep_their_digits_in_float16():
    """Probabilities times 2^-12 are below float16's normal numbers."""
    hidden, embedding, targets, _ = drawn()
    run = jax.jit(jax.grad(lambda e, w: ops.cross_entropy(array(hidden, jnp.float16), e, targets, w)))
    weights = np.full(targets.shape, 2.0**-12, np.float32)
    of_sum = run(0 * embedding, np.ones(targets.shape, np.float32))
    assert_close(run(0 * embedding, weights) * 2**12, of_sum, 1e-3)  # float16 rounds both to 11 bits
    assert np.all(np.isfinite(run(embedding, weights * 2.0**40)))


def test_wrong_arguments_are_named():
    for name, value in [
        ("hidden", np.zeros((2, 3), np.float32)),
        ("embedding", np.zeros((VOCAB, WIDTH + 1), np.float32)),
        ("targets", np.zeros((ROWS, LENGTH), np.float32)),
        ("weights", np.zeros((ROWS, LENGTH + 1), np.float32)),
    ]:
        arguments = dict(zip(("hidden", "embedding", "targets", "weights"), drawn(), strict=True))
        with pytest.raises((TypeError, ValueError), match=name):
            inspect.unwrap(ops.cross_entropy)(**(arguments | {name: value}))


def test_the_limit_is_each_devices(monkeypatch):
    """Eight devices that share the rows make eight times as many logits at a time."""
    hidden, embedding = ones((8, 4, 2)), ones((16, 2))
    targets, weights = zeros((8, 4), int), ones((8, 4))
    limit = 8 * 4 * 16 // 8
    monkeypatch.setattr(MODULE, "LOGITS", {"cpu": limit})
    monkeypatch.setattr(MODULE, "SHARED_LOGITS", limit)
    rows = NamedSharding(AbstractMesh((8,), ("data",)), PartitionSpec("data"))

    def program(tokens):
        with sharding.over(tokens):
            # Not the op itself: what has been traced once would not be traced again.
            return str(jax.make_jaxpr(lambda *x: ops.cross_entropy(*x))(hidden, embedding, targets, weights))

    assert "scan[" in program(None)
    assert "scan[" not in program(rows)
