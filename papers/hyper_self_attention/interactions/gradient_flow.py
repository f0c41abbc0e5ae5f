"""Follow the gradient flow of linear self-attention and HyperAttention, with the theorems' bounds.

    dC/dt = -dL/dC,     dW/dt = -dL/dW,     L = 1/B sum_n |layer(X_n) - Y_n|^2

In one-hot coordinates the weights are c(a, b) = x_a^T C x_b and w(b) = <x_b, W>; for HyperAttention b is a
tuple of symbols. From C(0) = 0 and w(0) >= b0 > 0, with orthonormal embeddings, versatile data and one
output, the flow ends with zero error (Ustaomeroglu & Qu 2025, theorems 4.4 and G.7). Along the path

    w(b)^2 - sum_a c(a, b)^2 is constant (lemmas C.2 and G.9), so w >= b0,
    L(t) <= L(0) exp(-4 b0^2 lambda t / B), lambda the smallest eigenvalue of the data's `Moments`.

The rate follows from |dL/dC|^2 >= 4 b0^2 lambda L / B; lambda is at least the paper's zeta^2, so the bound
implies the paper's.
"""

import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.typing import Array, Float
from based_jax.validate import expect, expect_array, expect_choice
from papers.hyper_self_attention.interactions.constructions import Weights, exact
from papers.hyper_self_attention.interactions.moments import Moments
from papers.hyper_self_attention.interactions.transform import on_axes

Method = Literal["rk4", "euler"]


class Point(NamedTuple):
    """A point of a path of the flow."""

    time: float
    weights: Weights


def start(
    initial: float | Float[np.ndarray, "*keys"], table: Float[np.ndarray, "S S"], keys: int = 1
) -> Weights:
    """Return the theorems' start: C = 0, and W with <x_b, W> = `initial`, positive, a number or one per b."""
    size = len(table)
    values = np.broadcast_to(np.asarray(initial, float), (size,) * keys)
    expect(bool((values > 0).all()), "initial", float(values.min()), "positive values")
    return exact(np.zeros((size,) * (keys + 1)), values[..., None], table)


def flow(
    weights: Weights,
    moments: Moments,
    table: Float[np.ndarray, "S S"] | None = None,
    *,
    step: float,
    steps: int,
    checkpoints: int = 10,
    method: Method = "rk4",
    time: float = 0.0,
) -> Iterator[Point]:
    """Follow the flow in float64; return a point at each checkpoint, excluding the start.

    Args:
        weights: start of the path, for the layer with embeddings `table`.
        moments: of the training data.
        table: orthonormal embeddings.
        step: time step; a ValueError reports that it is so long that the weights diverge.
        steps: number of steps, a multiple of `checkpoints`.
        checkpoints: number of points, evenly spaced.
        method: "rk4", the classical Runge-Kutta method; "euler" is full-batch gradient descent with the
            learning rate `step`.
        time: time of the start.
    """
    _expect(weights, moments, table)
    expect(step > 0, "step", step, "a positive number")
    divides = checkpoints >= 1 and steps >= checkpoints and steps % checkpoints == 0
    expect(divides, "steps", steps, f"a positive multiple of checkpoints = {checkpoints}")
    expect_choice("method", method, tuple(_METHODS))
    every = steps // checkpoints
    with jax.enable_x64(True):
        data = jax.tree.map(jnp.asarray, (moments.gram, moments.cross, float(moments.sequences), table))
    for number in range(1, checkpoints + 1):
        with jax.enable_x64(True):
            weights = jax.tree.map(np.asarray, _advance(weights, data, step, every, method))
        now = time + number * every * step
        finite = all(bool(np.isfinite(leaf).all()) for leaf in weights)
        expect(finite, "step", step, f"a shorter step: the weights are not finite at time {now:g}")
        yield Point(now, weights)


def in_entities(
    weights: Weights, table: Float[np.ndarray, "S S"] | None = None
) -> tuple[Float[Array, "S F"], Float[Array, " F"]]:
    """Return the weights in one-hot coordinates, c(a, b) and w(b), with one axis for all b; jit works."""
    c, w = jnp.asarray(weights.c), jnp.asarray(weights.w)[..., 0]
    if table is not None:
        c, w = (on_axes(jnp.asarray(table), form, form.ndim, jnp) for form in (c, w))
    return c.reshape(len(c), -1), w.reshape(-1)


def exact_entities(weights: Weights, table: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return `in_entities` in float64, as NumPy arrays."""
    with jax.enable_x64(True):
        c, w = in_entities(weights, table)
        return np.asarray(c), np.asarray(w)


def limit(
    target: Float[np.ndarray, "S F"], initial: float | Float[np.ndarray, " F"]
) -> tuple[Float[np.ndarray, "S F"], Float[np.ndarray, " F"]]:
    """Return the limit of the flow in closed form: c and w of `in_entities`.

    In the limit c(a, b) w(b) is the data's transform, and w^2 - |c|^2 is conserved: with tau the norm of the
    transform's column b, w(b)^2 = (w0^2 + sqrt(w0^4 + 4 tau^2)) / 2, for the data's transform `target` and
    w0 = `initial`. (Not in the paper; it follows from theorem 4.4, lemma C.2 and theorem 4.6.)
    """
    square = np.broadcast_to(np.asarray(initial, float) ** 2, target.shape[1:])
    w = np.sqrt((square + np.sqrt(square**2 + 4 * (target**2).sum(axis=0))) / 2)
    return target / w, w


class Promise(NamedTuple):
    """The theorems' bounds along the path from one start."""

    values: Float[np.ndarray, " F"]  # w(0)
    loss: float  # L(0)
    rate: float  # 4 b0^2 lambda / B, per time

    @property
    def smallest(self) -> float:
        """b0: the lower bound of w."""
        return float(self.values.min())

    def bound(self, time: float) -> float:
        """Return the upper bound of the loss."""
        return float(self.loss * np.exp(-self.rate * time))

    def drift(self, weights: Weights, table: Float[np.ndarray, "S S"] | None = None) -> float:
        """Return the largest change of w(b)^2 - sum_a c(a, b)^2 since the start: 0 up to step errors."""
        c, w = exact_entities(weights, table)
        return float(np.abs(w**2 - (c**2).sum(axis=0) - self.values**2).max())


def promise(
    weights: Weights, loss: float, moments: Moments, table: Float[np.ndarray, "S S"] | None = None
) -> Promise:
    """Return the bounds along the path from `weights`, see `start`; `loss` is that of the training data."""
    _expect(weights, moments, table)
    c, w = exact_entities(weights, table)
    expect(not c.any(), "weights.c", "not 0", "0, where the theorems start")
    expect(bool((w > 0).all()), "the smallest <x_b, W>", float(w.min()), "a positive number")
    eigenvalue = max(0.0, moments.smallest)  # of data that are not versatile rounding may make it negative
    return Promise(w, loss, 4 * float(w.min()) ** 2 * eigenvalue / moments.sequences)


def _euler(derivative: Any, y: Weights, step: Array) -> Weights:
    return jax.tree.map(lambda y, k: y + step * k, y, derivative(y))


def _rk4(derivative: Any, y: Weights, step: Array) -> Weights:
    def moved(k: Weights, part: float) -> Weights:
        return jax.tree.map(lambda y, k: y + part * step * k, y, k)

    first = derivative(y)
    second = derivative(moved(first, 0.5))
    third = derivative(moved(second, 0.5))
    fourth = derivative(moved(third, 1.0))
    mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, first, second, third, fourth)
    return moved(mean, 1.0)


_METHODS = {"rk4": _rk4, "euler": _euler}


@functools.partial(jax.jit, static_argnames=("method",))
def _advance(weights: Weights, data: Any, step: Array, steps: Array, method: Method) -> Weights:
    gram, cross, sequences, table = data

    def derivative(weights: Weights) -> Weights:
        def transform(weights: Weights) -> Array:
            c, w = in_entities(weights, table)
            return c * w

        made, back = jax.vjp(transform, weights)
        slope = 2 / sequences * (jnp.einsum("afg,ag->af", gram, made) - cross)
        return back(-slope)[0]

    return lax.fori_loop(0, steps, lambda _, y: _METHODS[method](derivative, y, step), weights)


def _expect(weights: Weights, moments: Moments, table: np.ndarray | None) -> None:
    size, width = moments.cross.shape
    keys = weights.c.ndim - 1
    expect_array("weights.c", weights.c, (size,) * (keys + 1), "floating")
    expect(size**keys == width, "weights.c.ndim", keys + 1, f"the order of moments of {width} tuples")
    expect_array("weights.w", weights.w, (size,) * keys + (1,), "floating")
    if table is not None:
        expect_array("table", table, (size, size), "floating")
        off = float(np.abs(table @ table.T - np.eye(size)).max())
        expect(off < 1e-9, "largest error of table's orthonormality", off, "orthonormal rows")
