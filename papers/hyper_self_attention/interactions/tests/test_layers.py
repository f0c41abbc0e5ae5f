"""The linear layers: loops over entities, special cases that coincide, gradients, errors."""

import functools
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from papers.hyper_self_attention.interactions import layers
from tests.tolerances import FLOAT32, FLOAT64, assert_close

WIDTH, OUTPUTS = 3, 2
LENGTHS = [1, 5]


def form(tensor: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    """The multilinear form `tensor` of vectors, one axis after the other."""
    for vector in vectors:
        tensor = np.tensordot(vector, tensor, (0, 0))
    return tensor


def normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def low(*arrays: np.ndarray) -> list[jax.Array]:
    return [jnp.asarray(array, jnp.float32) for array in arrays]


def hyper_loop(x: np.ndarray, c: np.ndarray, w: np.ndarray, order: str) -> np.ndarray:
    """Definition 6.1 for one sequence."""
    follows = {"all": lambda a, b: True, "ordered": lambda a, b: a <= b, "strict": lambda a, b: a < b}[order]
    y = np.zeros((len(x), w.shape[-1]))
    for i, *js in product(range(len(x)), repeat=c.ndim):
        if all(follows(a, b) for a, b in pairwise(js)):
            y[i] += form(c, x[i], *x[js]) * form(w, *x[js])
    return y


@pytest.mark.parametrize("length", LENGTHS)
def test_self_attention(x64, length):
    x, c, w = normal((2, length, WIDTH), (WIDTH, WIDTH), (WIDTH, OUTPUTS))
    expected = np.array([[sum((a @ c @ b) * (w.T @ b) for b in row) for a in row] for row in x])

    @jax.jit
    def alike(x, c, w):
        tensors = [layers.hyper_attention(x, c, w, order) for order in ("ordered", "strict", "all")]
        return layers.linear_self_attention(x, c, w), layers.linear_hfa(x, c[None], w[None]), *tensors

    for y in alike(x, c, w):
        assert_close(y, expected, FLOAT64)
    for y in alike(*low(x, c, w)):
        assert y.dtype == jnp.float32
        assert_close(y, expected, FLOAT32, "float32")


@pytest.mark.parametrize("length", LENGTHS)
def test_hyper_feature_attention(x64, length):
    x, cs, ws = normal((length, WIDTH), (3, WIDTH, WIDTH), (3, WIDTH, OUTPUTS))
    expected = np.zeros((length, OUTPUTS))
    for i, j in product(range(length), repeat=2):
        scores = [x[i] @ c @ x[j] for c in cs]
        expected[i] += np.prod(scores) * np.prod([w.T @ x[j] for w in ws], axis=0)
    y = jax.jit(layers.linear_hfa)(np.stack([x, 2 * x]), cs, ws)
    assert_close(y[0], expected, FLOAT64)
    assert_close(y[1], expected * 2**9, FLOAT64, "of degree 3 A")


@pytest.mark.parametrize(
    ("axes", "order"), [(3, "ordered"), (3, "strict"), (3, "all"), (4, "ordered"), (4, "strict")]
)
def test_hyper_attention(x64, axes, order):
    c, w = normal((WIDTH,) * axes, (WIDTH,) * (axes - 1) + (OUTPUTS,))
    attend = jax.jit(layers.hyper_attention, static_argnames="order")
    for length in LENGTHS:
        (x,) = normal((2, length, WIDTH))
        y = attend(x, c, w, order)
        assert_close(y, np.stack([hyper_loop(row, c, w, order) for row in x]), FLOAT64, f"length {length}")


def test_factored_features_are_the_op(x64):
    """C = W_Q W_K^T with every key visible: `ops.hyper_feature_attention` without a softmax."""
    x, wq, wk, wv = normal((2, 5, WIDTH), (2, WIDTH, 4), (2, WIDTH, 4), (2, WIDTH, OUTPUTS))
    qs, ks = ([(x @ w)[:, :, None] for w in ws] for ws in (wq, wk))
    values = (x @ wv[0]) * (x @ wv[1])
    run = jax.jit(functools.partial(ops.hyper_feature_attention, causal=False, kind="linear"))
    expected = run(qs, ks, values[:, :, None])[:, :, 0]
    assert_close(jax.jit(layers.linear_hfa)(x, wq @ wk.mT, wv), expected, FLOAT64)


def test_factored_tensors_are_the_op(x64):
    """Tensors of low rank (section 6): all tuples, and ordered ones, which the op counts downwards from i."""
    x, wq, k1, k2, v1, v2 = normal((2, 5, WIDTH), *[(WIDTH, 4)] * 3, *[(WIDTH, OUTPUTS)] * 2)
    w = np.einsum("et,ft->eft", v1, v2)
    c = np.einsum("ar,er,fr->aef", wq, k1, k2)
    q, *heads = ((x @ weight)[:, :, None] for weight in (wq, k1, k2, v1, v2))
    full = jax.jit(functools.partial(ops.linear_hyper_attention, causal=False, ordered=False))
    attend = jax.jit(layers.hyper_attention, static_argnames="order")
    assert_close(attend(x, c, w, order="all"), full(q, tuple(heads[:2]), tuple(heads[2:]))[:, :, 0], FLOAT64)
    causal = jax.jit(ops.linear_hyper_attention)(q, tuple(heads[1::-1]), tuple(heads[:1:-1]))
    assert_close(attend(x, c, w)[:, -1], causal[:, -1, 0], FLOAT64, "the last sees all")
