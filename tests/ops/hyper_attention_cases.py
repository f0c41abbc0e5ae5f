"""HyperAttention over all tuples at once: the scores as one array with an axis per token of a tuple."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array
from tests.ops import draw, oracles


class Case(NamedTuple):
    """One compiled program: sizes and the optional arguments that are present."""

    order: int
    sizes: tuple[int, int, int, int, int]  # B, N, H, K, V
    options: str = ""  # of "shared strict unordered bidirectional segments padded"
    left: int | None = None
    weigh: str = "softmax"
    normalize: str = "none"
    block: int = 2**24
    """scores at a time of the softmax, tokens of a chunk of the linear form"""

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([f"order{self.order}", sizes, *self.options.split(), self.weigh, self.normalize])

    @property
    def form(self) -> dict[str, Any]:
        """Arguments of the ops that choose tuples."""
        return {
            "causal": "bidirectional" not in self.options,
            "ordered": "unordered" not in self.options,
            "strict": "strict" in self.options,
        }


class Inputs(NamedTuple):
    arrays: dict[str, Any]
    """differentiable: q, ks, vs"""
    placement: dict[str, Any]
    """segment_ids, mask"""
    weights: np.ndarray
    """of the real tokens' outputs in the scalar whose gradient is taken"""
    counts: np.ndarray

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, width, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))
    slots = 1 if "shared" in case.options else case.order - 1
    arrays = {
        "q": rng.normal(size=(batch, length, heads, width)),
        "ks": tuple(rng.normal(size=(slots, batch, length, heads, width))),
        "vs": tuple(rng.normal(size=(slots, batch, length, heads, value_size))),
    }
    placement: dict[str, Any] = {}
    counts = np.full(batch, length)
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    if "padded" in case.options:
        counts = draw_(draw.counts(batch, length))
        placement["mask"] = draw.mask(counts, length)
    weights = rng.normal(size=(batch, length, heads, value_size))
    return Inputs(arrays, placement, weights * draw.mask(counts, length)[..., None, None], counts)


def slotted(case: Case, arrays: dict[str, Any]) -> tuple[Any, tuple, tuple]:
    """q, ks and vs with an array in each place."""
    times = case.order - 1 if "shared" in case.options else 1
    return arrays["q"], arrays["ks"] * times, arrays["vs"] * times


def oracle(case: Case, drawn: Inputs, arrays: dict[str, Any] | None = None, scale: float = 0.7) -> np.ndarray:
    """All tuples of a row's real tokens at once; outputs at padding are 0."""
    q, ks, vs = slotted(case, drawn.arrays if arrays is None else arrays)
    y = np.zeros((*q.shape[:3], vs[0].shape[-1]))
    for row, count in enumerate(drawn.counts):
        if not count:
            continue
        ids = drawn.placement.get("segment_ids")
        starts = np.array(oracles.segment_starts(ids[row, :count]) if ids is not None else [0] * count)
        allowed = tuples(case, starts)
        for head in range(q.shape[2]):
            values, *keys = (x[row, :count, head] for x in (q, *ks))
            axes = "jklm"[: len(ks)]
            scores = scale * np.einsum(f"ir,{','.join(a + 'r' for a in axes)}->i{axes}", values, *keys)
            p = weigh(case, scores, (values * scale, *keys), axes)
            p = normalised(case, np.where(allowed, p, 0), allowed, scores)
            terms = ",".join(a + "t" for a in axes)
            y[row, :count, head] = np.einsum(f"i{axes},{terms}->it", p, *(v[row, :count, head] for v in vs))
    return y


def tuples(case: Case, starts: np.ndarray) -> np.ndarray:
    """Whether query i has the tuple (j_1, ...): (N, N, ..., N)."""
    i, *js = np.indices((len(starts),) * case.order)
    allowed = functools.reduce(np.logical_and, (starts[j] == starts[i] for j in js))
    if case.form["causal"]:
        allowed &= functools.reduce(np.logical_and, (j <= i for j in js))
    if case.left is not None:
        allowed &= functools.reduce(np.logical_and, (j >= i - case.left for j in js))
    for first, second in itertools.pairwise(js):
        if case.form["ordered"]:
            allowed &= first > second if case.form["strict"] else first >= second
    return allowed


def weigh(case: Case, scores: np.ndarray, factors: tuple, axes: str) -> np.ndarray:
    """What a tuple counts, before anything is divided."""
    if case.weigh == "taylor":
        return 1 + scores + scores**2 / 2
    if case.weigh == "pos_elu":
        features = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in factors)
        return np.einsum(f"ir,{','.join(a + 'r' for a in axes)}->i{axes}", *features)
    return np.exp(scores) if case.weigh == "softmax" else scores


def normalised(case: Case, p: np.ndarray, allowed: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Divided by their sum, by their number, or by nothing."""
    axes = tuple(range(1, p.ndim))
    if case.weigh == "softmax" or case.normalize == "sum":
        total = p.sum(axis=axes, keepdims=True)
        return np.divide(p, total, out=np.zeros_like(p), where=allowed)
    if case.normalize == "count":
        return p / np.maximum(allowed.sum(axis=axes, keepdims=True), 1)
    return p


def difference(case: Case, drawn: Inputs, name: str, place: int, step: float = 1e-5) -> tuple[Any, float]:
    """A random direction of one array, and the derivative of the oracle's weighted sum along it."""
    group = drawn.arrays[name]
    x = group[place] if isinstance(group, tuple) else group
    direction = np.random.default_rng(0).normal(size=x.shape)

    def total(sign: int) -> float:
        moved: Any = x + sign * step * direction
        if isinstance(group, tuple):
            moved = (*group[:place], moved, *group[place + 1 :])
        return float((oracle(case, drawn, drawn.arrays | {name: moved}) * drawn.weights).sum())

    return direction, (total(1) - total(-1)) / (2 * step)


FEATURES = {
    "identity": lambda order: ops.IDENTITY,
    "pos_elu": lambda order: ops.FEATURE_MAPS["pos_elu"],
    "taylor": ops.hyper_taylor_map,
}
"""the order to the feature map whose products are those of `weigh`"""


def with_gradients(call: Any) -> Any:
    """The program of an op's outputs, and of the gradients of their weighted sum."""

    @functools.partial(jax.jit, static_argnames="case")
    def values_and_gradients(arrays, placement, weights, *, case: Case):
        def loss(arrays):
            y = call(arrays, placement, case)
            return (weights * y).sum(), y

        (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
        return y, gradients

    return values_and_gradients


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: array(x, dtype), tree)
