"""RWKV-4's average: the formula, exponents of any size, and the laws of every op with a state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from tests.arrays import array, stream_at
from tests.ops import draw
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close


class Case(NamedTuple):
    """One compiled program for each implementation and dtype."""

    sizes: tuple[int, int, int]  # B, N, E
    chunk: int | None
    full: bool  # with segments, padding and a state


CASES = [Case((2, 11, 3), 4, True), Case((1, 6, 2), None, False)]


def numbers(seed: int, sizes: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Arguments of the average: keys of all sizes, decays from none to all."""
    batch, _, channels = sizes
    rng = np.random.default_rng(seed)
    return {
        "k": rng.normal(size=sizes) * rng.choice([1, 30]),
        "v": rng.normal(size=sizes),
        "log_decay": -np.exp(rng.uniform(-8, 3, size=channels)),
        "bonus": rng.normal(size=channels),
        "numerator": rng.normal(size=(batch, channels)),
        "denominator": rng.exponential(size=(batch, channels)) + 1,
        "exponent": rng.normal(size=(batch, channels)),
    }


def oracle(
    k, v, log_decay, bonus, numerator, denominator, exponent, ids, counts, stateful: bool
) -> np.ndarray:
    """Every weight by itself, relative to the largest; the state is one more token, in segment 0."""
    y = np.zeros(k.shape)
    for row, count in enumerate(counts):
        before = 0 if stateful else ids[row, 0]
        begins = np.diff(ids[row], prepend=before) != 0
        for t in range(count):
            changes = np.flatnonzero(begins[: t + 1])
            past = range(changes[-1] if changes.size else 0, t)
            exponents = [(t - 1 - i) * log_decay + k[row, i] for i in past] + [bonus + k[row, t]]
            tops = [*(v[row, i] for i in past), v[row, t]]
            bottoms = [np.ones(k.shape[2])] * len(tops)
            if stateful and not changes.size:
                exponents.append(exponent[row] + t * log_decay)
                tops.append(numerator[row])
                bottoms.append(denominator[row])
            weights = np.exp(np.array(exponents) - np.max(exponents, axis=0))
            y[row, t] = (weights * tops).sum(0) / (weights * bottoms).sum(0)
    return y


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def everything(arrays, ids, mask, weights, *, case: Case, implementation: str) -> Any:
    """Outputs, the state, and gradients of a weighted sum of outputs here and behind the state."""

    def loss(arrays):
        inputs, options = [arrays[name] for name in ("k", "v", "log_decay", "bonus")], {}
        if case.full:
            stream = stream_at(*(jnp.full(len(ids), n, jnp.int32) for n in (5, 2, 0)))
            sums = (arrays[name] for name in ("numerator", "denominator", "exponent"))
            options = {"segment_ids": ids, "mask": mask, "initial_state": ops.WKVState(*sums, stream)}
        y, state = ops.wkv(
            *inputs, return_state=True, chunk_size=case.chunk, implementation=implementation, **options
        )
        k, v, log_decay, bonus = inputs
        read = ops.wkv(k[:, :1], v[:, :1], log_decay, bonus, initial_state=state)  # what the state is for
        return (weights * y).sum() + read.sum(), (y, read, state)

    return jax.value_and_grad(loss, has_aux=True)(arrays)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_states_and_gradients(case):
    """The reference against the formula; the chunked form against both, in float64 and float32."""
    batch, length = case.sizes[:2]

    @given(draw.seeds, draw.segment_ids(batch, length), draw.counts(batch, length))
    @settings(max_examples=6)
    def law(seed, ids, counts):
        arrays = numbers(seed, case.sizes)
        if not case.full:
            ids, counts = 0 * ids, np.full(batch, length)
        mask = draw.mask(counts, length)
        weights = np.random.default_rng(0).normal(size=case.sizes) * mask[..., None]
        expected = oracle(*arrays.values(), ids, counts, case.full)
        exact = None
        for implementation, dtype in (("reference", "float64"), ("xla", "float64"), ("xla", "float32")):
            wide = dtype == "float64"
            with jax.enable_x64(True):
                given_ = jax.tree.map(lambda a, dtype=dtype: array(a, dtype), (arrays, weights))
                (_, (y, read, state)), gradients = everything(
                    given_[0], array(ids), array(mask), given_[1],
                    case=case, implementation=implementation,
                )  # fmt: skip
            what = f"{implementation} {dtype}"
            assert y.dtype == state.numerator.dtype == state.exponent.dtype == dtype
            assert_close(np.where(mask[..., None], y, 0), expected, FLOAT64 if wide else FLOAT32, what)
            if case.full:
                assert state.stream.length.tolist() == (5 + counts).tolist()
            exact = (read, gradients) if exact is None else exact
            assert_close(read, exact[0], FLOAT64 if wide else FLOAT32, what)
            tolerance = FLOAT64 if wide else FLOAT32_GRADIENT
            assert_close(gradients, exact[1], tolerance, what, magnitude=0.1)

    law()


def test_a_text_in_pieces():
    """Any implementation continues where any other has stopped, also by single tokens."""
    arrays = jax.tree.map(np.float32, numbers(1, (2, 9, 3)))
    k, v, log_decay, bonus = (arrays[name] for name in ("k", "v", "log_decay", "bonus"))

    @functools.partial(jax.jit, static_argnames="implementation")
    def average(k, v, state=None, implementation=None):
        return ops.wkv(
            k, v, array(log_decay), array(bonus),
            initial_state=state, return_state=True, chunk_size=4, implementation=implementation,
        )  # fmt: skip

    whole, _ = average(k, v)
    state, outputs = ops.init_wkv_state(2, 3), []
    for begin, end, implementation in ((0, 5, "xla"), (5, 6, "xla"), (6, 9, "reference")):
        y, state = average(k[:, begin:end], v[:, begin:end], state, implementation)
        outputs.append(y)
    assert_close(np.concatenate(outputs, 1), whole, FLOAT32)


@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_keys_and_decays_of_any_size(implementation):
    """Keys of +-1e4, decays of exactly 0 and 1: weights of 0 and 1, exact to float32, finite gradients."""
    k = np.float32([1e4, -1e4, 1e4 + 1, 0, 1e4 + 2, -1e4, 5, 1e4, 0])[None, :, None].repeat(4, axis=2)
    v = np.arange(36, dtype=np.float32).reshape(1, 9, 4) / 36
    log_decay = array([0.0, -1e-12, -1.0, -jnp.inf])
    bonus = array([0.25, -1.0, 0.5, 1e4])

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def run(k, v, log_decay, bonus):
        y = ops.wkv(k, v, log_decay, bonus, chunk_size=4, implementation=implementation)
        return (y**2).sum(), y

    (_, y), gradients = run(k, v, log_decay, bonus)
    assert all(np.isfinite(array).all() for array in gradients)
    arrays = [np.asarray(array, np.float64) for array in (k, v, np.maximum(log_decay, -1e9), bonus)]
    nothing = np.zeros((1, 4))
    expected = oracle(*arrays, nothing, nothing, nothing, np.zeros((1, 9), int), [9], False)
    assert_close(y, expected, FLOAT32)


def test_low_precision():
    arrays = numbers(3, (2, 20, 3))
    arguments = [array(arrays[name], jnp.bfloat16) for name in ("k", "v", "log_decay", "bonus")]
    y, state = jax.jit(functools.partial(ops.wkv, return_state=True))(*arguments)
    assert y.dtype == jnp.bfloat16
    assert state.numerator.dtype == jnp.float32
    exact = [np.asarray(a, np.float64) for a in arguments]
    nothing = np.zeros((2, 3))
    expected = oracle(*exact, nothing, nothing, nothing, np.zeros((2, 20), int), [20, 20], False)
    assert_close(y, expected, BFLOAT16)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": jnp.ones((2, 3))}, ValueError, "k has shape"),
        ({"v": jnp.ones((2, 3, 5))}, ValueError, "v has shape"),
        ({"log_decay": jnp.ones(3)}, ValueError, "log_decay has shape"),
        ({"bonus": jnp.ones(4, int)}, TypeError, "bonus has dtype"),
        ({"initial_state": ops.init_wkv_state(2, 3)}, ValueError, r"initial_state\.numerator has shape"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"implementation": "cuda"}, ValueError, "implementation = 'cuda'"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    arguments = {
        "k": jnp.ones((2, 3, 4)),
        "v": jnp.ones((2, 3, 4)),
        "log_decay": -jnp.ones(4),
        "bonus": jnp.ones(4),
    }
    with pytest.raises(error, match=message):
        ops.wkv(**arguments | changes)
