"""Products of scores: loops in NumPy, both forms, their states, and the identity behind the linear state."""

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import draw, oracles
from tests.tolerances import (
    BFLOAT16,
    FINITE_DIFFERENCE,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT64,
    assert_close,
)

RECURRENT = 1e-12
"""float64: sums of some 60 terms below 100 in another order"""


class Case(NamedTuple):
    """One compiled program: sizes and the optional arguments that are present."""

    sizes: tuple[int, int, int, int]  # B, N, H, V
    widths: tuple[int, ...]
    kind: str
    options: str = ""  # of "bidirectional normalized segments padded"
    chunk: int | None = None
    scale: Any = 1.0

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([self.kind, sizes, *map(str, self.widths), *self.options.split()])


CASES = [
    Case((1, 1, 1, 1), (1, 1), "softmax"),
    Case((2, 9, 2, 3), (2, 1, 3), "softmax", "segments padded", 4, (0.5, 3.0, 1.0)),
    Case((2, 5, 1, 2), (2, 2), "softmax", "bidirectional segments padded", 2),
    Case((2, 9, 2, 3), (2, 1, 3), "linear", "segments padded", 4, (0.5, 3.0, 1.0)),
    Case((2, 7, 1, 2), (2, 2), "linear", "normalized segments", None, 0.5),
    Case((2, 5, 1, 2), (2, 2), "linear", "bidirectional segments padded", 2),
]


class Inputs(NamedTuple):
    arrays: dict[str, Any]
    """differentiable: the tuples qs and ks, and v"""
    placement: dict[str, Any]
    """segment_ids, mask"""
    weights: np.ndarray
    """of the real tokens' outputs in the scalar whose gradient is taken"""

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))

    def factors() -> tuple[np.ndarray, ...]:
        drawn = (rng.normal(size=(batch, length, heads, width)) for width in case.widths)
        return tuple(np.abs(x) if "normalized" in case.options else x for x in drawn)

    arrays = {"qs": factors(), "ks": factors(), "v": rng.normal(size=(batch, length, heads, value_size))}
    placement: dict[str, Any] = {}
    weights = rng.normal(size=arrays["v"].shape)
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    if "padded" in case.options:
        placement["mask"] = draw.mask(draw_(draw.counts(batch, length)), length)
        weights = np.where(placement["mask"][..., None, None], weights, 0)
    return Inputs(arrays, placement, weights)


def call(arrays, placement, *, case: Case, **more):
    return ops.hyper_feature_attention(
        *(arrays[name] for name in ("qs", "ks", "v")),
        "bidirectional" not in case.options,
        case.kind,
        scale=case.scale,
        normalize="normalized" in case.options,
        chunk_size=case.chunk,
        **placement,
        **more,
    )


@functools.partial(jax.jit, static_argnames="case")
def values_and_gradients(arrays, placement, weights, *, case: Case):
    def loss(arrays):
        y = call(arrays, placement, case=case)
        return (weights * y).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return y, gradients


def loop(case: Case, arrays: dict[str, Any], placement: dict[str, Any]) -> np.ndarray:
    """The module's formulas, query by query, over an explicit list of keys; 0 at padding."""
    batch, length, heads, _ = case.sizes
    scales = np.broadcast_to(case.scale, len(case.widths))
    y = np.zeros(arrays["v"].shape)
    for row in range(batch):
        count = placement["mask"][row].sum() if "mask" in placement else length
        ids = placement["segment_ids"][row] if "segment_ids" in placement else np.zeros(length)
        starts = oracles.segment_starts(ids)
        for i in range(count):
            last = count if "bidirectional" in case.options else i + 1
            keys = [j for j in range(last) if starts[j] == starts[i]]
            for head in range(heads):
                scores = np.ones(len(keys))
                for scale, q, k in zip(scales, arrays["qs"], arrays["ks"], strict=True):
                    scores = scores * (k[row, keys, head] @ q[row, i, head]) * scale
                if case.kind == "softmax":
                    scores = np.exp(scores - scores.max())
                    scores = scores / scores.sum()
                if "normalized" in case.options:
                    scores = scores / (scores.sum() + 1e-12)
                y[row, i, head] = scores @ arrays["v"][row, keys, head]
    return y


def cast(tree, dtype):
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    """In float64 and, the largest cases, in float32, against loops and their finite differences."""

    @settings(max_examples=4)
    @given(inputs(case))
    def law(drawn):
        expected = loop(case, drawn.arrays, drawn.placement)
        real = drawn.placement.get("mask", np.ones(case.sizes[:2], bool))[..., None, None]
        with jax.enable_x64(True):
            y, exact = values_and_gradients(drawn.arrays, drawn.placement, drawn.weights, case=case)
        assert np.isfinite(y).all(), "outputs at padding are meaningless but finite"
        assert_close(np.where(real, y, 0), expected, FLOAT64)
        _check_against_differences(case, drawn, exact)
        if case.chunk != 4:
            return
        y, gradients = values_and_gradients(
            cast(drawn.arrays, np.float32), drawn.placement, cast(drawn.weights, np.float32), case=case
        )
        assert_close(np.where(real, y, 0), expected, FLOAT32, "float32")
        assert_close(gradients, exact, FLOAT32_GRADIENT, "float32 gradient", magnitude=0.1)

    law()


def _check_against_differences(case, drawn, gradients):
    """The derivative of the loops along one random direction of all arguments together."""
    rng = np.random.default_rng(0)
    step = 1e-5
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), drawn.arrays)
    ahead, behind = (
        (loop(case, _moved(drawn.arrays, direction, sign * step), drawn.placement) * drawn.weights).sum()
        for sign in (1, -1)
    )
    products = jax.tree.leaves(jax.tree.map(lambda x, y: np.asarray(x) * y, gradients, direction))
    scale = max(sum(np.abs(x).sum() for x in products), 1)
    assert abs(sum(x.sum() for x in products) - (ahead - behind) / (2 * step)) < FINITE_DIFFERENCE * scale


def _moved(arrays, direction, step):
    return jax.tree.map(lambda x, along: x + step * along, arrays, direction)


LENGTH = 11
CUTS = [0, 5, 6, 11]


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_pieces_continue_each_other(kind):
    """Calls behind a state, a single token among them, equal the loops over all pairs, in float64."""
    case = Case((2, LENGTH, 1, 2), (2, 3), kind)

    @settings(max_examples=3)
    @given(inputs(case), draw.segment_ids(2, LENGTH), draw.counts(2, 5))
    def law(drawn, ids, counts):
        mask = draw.mask(counts + 6, LENGTH)
        context = {"segment_ids": ids, "mask": mask}
        expected = np.where(mask[..., None, None], loop(case, drawn.arrays, context), 0)
        with jax.enable_x64(True):
            state: Any = ops.init_kv_cache(2, LENGTH, 1, 5, 2, jnp.float64)
            if kind == "linear":
                state = ops.init_linear_attention_state(2, 1, 6, 2, jnp.float64)
            outputs = []
            for begin, end in pairwise(CUTS):
                part = jax.tree.map(lambda x: x[:, begin:end], (drawn.arrays, context))  # noqa: B023
                y, state = continued(*part, state, case=case)
                outputs.append(y)
            y = np.where(mask[..., None, None], np.concatenate(outputs, axis=1), 0)
            assert_close(y, expected, RECURRENT)
            assert np.array_equal(state.stream.length, counts + 6)

    law()


@functools.partial(jax.jit, static_argnames="case")
def continued(arrays, context, state, *, case: Case):
    return call(arrays, context, case=case, initial_state=state, return_state=True)


values = jax.jit(call, static_argnames="case")


def numbers(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_one_factor_is_softmax_attention():
    """The same operations in the same order: equal but for how matrix products are blocked."""
    q, k, v = numbers(3, 2, 9, 2, 4)
    run = jax.jit(lambda q, k, v: ops.hyper_feature_attention((q,), (k,), v, scale=0.5))
    assert_close(run(q, k, v), jax.jit(ops.softmax_attention)(q, k, v), 1e-6)


@pytest.mark.parametrize("widths", [(3,), (2, 1, 4), (3, 3)])
def test_tensor_products_multiply_scores(widths):
    """The identity behind the linear state; the channels are in the order of `np.kron`."""
    qs, ks = ([np.asarray(numbers(width, seed=seed)) for width in widths] for seed in (0, 1))
    phi = ops.tensor_product_map(widths)
    features = jax.jit(phi.features)
    phi_q, phi_k = (np.asarray(features(np.concatenate(factors)), np.float64) for factors in (qs, ks))
    assert phi_q.shape == (phi.size(sum(widths)),)
    assert_close(phi_q, functools.reduce(np.kron, qs), FLOAT32)
    scores = [np.float64(q) @ k for q, k in zip(qs, ks, strict=True)]
    assert_close(phi_q @ phi_k, np.prod(scores), FLOAT32)
    if len(set(widths)) == 1 and len(widths) == 2:  # tied factors: the square of a score
        tied = [np.asarray(features(np.concatenate([x[0], x[0]])), np.float64) for x in (qs, ks)]
        assert_close(tied[0] @ tied[1], scores[0] ** 2, FLOAT32)


def test_sketched_products_are_right_on_average():
    """The mean of 2000 sketches of one feature, which is a sketch of 2000: within 5 standard errors."""
    rng = np.random.default_rng(0)
    (q1, k1), (q2, k2) = rng.normal(size=(2, 3)), rng.normal(size=(2, 5))
    q, k = jnp.asarray(np.concatenate([q1, q2])), jnp.asarray(np.concatenate([k1, k2]))
    phi = ops.sketched_product_map(jax.random.key(0), [3, 5], 2000)
    assert phi.size(8) == phi.features(q).shape[-1] == 2000
    terms = np.asarray(phi.features(q) * phi.features(k)) * 2000
    error = terms.std() / 2000**0.5
    assert abs(terms.mean() - (q1 @ k1) * (q2 @ k2)) < 5 * error
    assert error < 0.2 * np.linalg.norm(q1) * np.linalg.norm(k1) * np.linalg.norm(q2) * np.linalg.norm(k2)


def test_sketched_linear_attention_comes_near_the_products():
    (q1, q2, k1, k2), v = numbers(4, 1, 9, 2, 4), numbers(1, 9, 2, 3, seed=1)
    exact = ops.hyper_feature_attention((q1, q2), (k1, k2), v, kind="linear")
    q, k = jnp.concatenate([q1, q2], axis=-1), jnp.concatenate([k1, k2], axis=-1)

    def error(size):
        phi = ops.sketched_product_map(jax.random.key(1), [4, 4], size)
        y = ops.linear_attention(q, k, v, feature_map=phi, normalize=False)
        return float(jnp.linalg.norm(y - exact) / jnp.linalg.norm(exact))

    assert error(4096) < 0.2
    assert error(4096) < 0.5 * error(64)  # an eighth on average


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_bfloat16_scores_are_multiplied_in_float32(kind):
    """Inputs, weights of the softmax and outputs are rounded to 8 bits; four products are not."""
    case = Case((2, 9, 1, 3), (4, 4, 4, 4), kind)
    drawn = cast({"qs": numbers(4, 2, 9, 1, 4), "ks": numbers(4, 2, 9, 1, 4, seed=1)}, jnp.bfloat16)
    arrays = jax.tree.map(tuple, drawn) | {"v": np.asarray(numbers(2, 9, 1, 3, seed=2), jnp.bfloat16)}
    y = values(arrays, {}, case=case)
    assert y.dtype == jnp.bfloat16
    assert_close(y, loop(case, cast(arrays, np.float64), {}), BFLOAT16)


def temporary_bytes(order: int, length: int, width: int = 32) -> int:
    """Of a forward and a backward pass."""
    factor = jax.ShapeDtypeStruct((1, length, 1, width // order), jnp.float32)
    v = jax.ShapeDtypeStruct((1, length, 1, width), jnp.float32)
    step = jax.value_and_grad(lambda *x: ops.hyper_feature_attention(*x).sum(), (0, 1, 2))
    compiled = jax.jit(step).lower((factor,) * order, (factor,) * order, v).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_does_not_grow_with_the_factors():
    """Forward and backward; and with twice the length it is twice as large, as no (N, N) scores are."""
    one, four = (temporary_bytes(order, 2048) for order in (1, 4))
    assert 0 < four <= one
    assert temporary_bytes(4, 4096) <= 2.1 * four


def test_a_cache_is_as_large_as_attentions_and_overflows_to_nan():
    cache = ops.init_kv_cache(1, 3, 1, 6, 4)
    qs = ks = tuple(numbers(3, 1, 2, 1, 2))
    v = numbers(1, 2, 1, 4)
    step = jax.jit(
        functools.partial(ops.hyper_feature_attention, return_state=True), static_argnames="causal"
    )
    y, cache = step(qs, ks, v, initial_state=cache)
    assert np.isfinite(y).all()
    with pytest.raises(ValueError, match="at most max_length = 3 tokens"):
        ops.hyper_feature_attention(qs, ks, v, initial_state=cache, return_state=True)
    assert np.isnan(step(qs, ks, v, initial_state=cache)[0]).all()


def _arguments(**changes):
    x = jnp.ones((2, 3, 2, 4))
    return {"qs": (x, x), "ks": (x, x), "v": jnp.ones((2, 3, 2, 5))} | changes


CACHE = ops.init_kv_cache(2, 4, 2, 8, 5)
SUMS = ops.init_linear_attention_state(2, 2, 16, 5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"qs": ()}, ValueError, "factors in qs = 0: expected at least 1"),
        ({"ks": (jnp.ones((2, 3, 2, 4)),)}, ValueError, "factors in ks = 1: expected as many as in qs, 2"),
        ({"ks": (jnp.ones((2, 3, 2, 4)), jnp.ones((2, 3, 2, 3)))}, ValueError, r"ks\[1\] has shape"),
        ({"qs": (jnp.ones((2, 3, 2, 4)), jnp.ones((2, 3, 1, 4)))}, ValueError, r"qs\[1\] has shape"),
        ({"qs": (jnp.ones((2, 3, 2, 4), int),) * 2}, TypeError, r"qs\[0\] has dtype"),
        ({"v": jnp.ones((2, 3, 5))}, ValueError, "v has shape"),
        ({"kind": "cosine"}, ValueError, "kind = 'cosine': expected one of 'softmax', 'linear'"),
        ({"scale": (1.0,)}, ValueError, r"scale = \(1.0,\): expected a number or one for each of the 2"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"normalize": True}, ValueError, "normalize = True: expected False unless causal, with kind ="),
        ({"return_state": True}, ValueError, "return_state = True: expected False without an initial_state"),
        ({"causal": False, "kind": "linear", "return_state": True}, ValueError, "False when causal is False"),
        ({"causal": False, "initial_state": CACHE}, ValueError, "causal = False: expected True"),
        ({"kind": "linear", "initial_state": CACHE}, ValueError, "initial_state = 'KVCache': expected a Lin"),
        ({"initial_state": SUMS}, ValueError, "'LinearAttentionState': expected a KVCache with kind = 'soft"),
        ({"initial_state": ops.init_kv_cache(2, 4, 2, 4, 5)}, ValueError, r"initial_state\.k has shape"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        ({"segment_ids": jnp.ones((1, 3), int)}, ValueError, "segment_ids has shape"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.hyper_feature_attention(**_arguments(**changes))
