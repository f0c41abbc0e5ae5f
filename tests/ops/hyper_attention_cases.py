"""HyperAttention over all tuples at once: the scores as one array with an axis per token of a tuple."""

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from based_jax import ops
from tests.ops import oracles
from tests.ops.contract import Contract


class Case(NamedTuple):
    """Sizes, and which tuples there are and count for what."""

    order: int
    sizes: tuple[int, int, int, int, int]  # B, N, H, K, V
    options: str = ""  # of "shared strict unordered bidirectional"
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


class HyperContract(Contract):
    """Of the ops over tuples, which have one implementation; their states are tested apart."""

    tokens = ("q", *(f"{name}{slot}" for name in "kv" for slot in range(3)))
    implementations = ("xla",)
    test_the_reference = test_split = test_shorter_calls = None

    def arrays(self, rng, case):
        batch, length, heads, width, value_size = case.sizes
        arrays = {"q": rng.normal(size=(batch, length, heads, width))}
        for slot in range(1 if "shared" in case.options else case.order - 1):
            arrays[f"k{slot}"] = rng.normal(size=(batch, length, heads, width))
            arrays[f"v{slot}"] = rng.normal(size=(batch, length, heads, value_size))
        return arrays

    def oracle(self, arrays, at, case, scale=0.7):
        """All tuples of a row's real tokens at once."""
        q, ks, vs = slotted(case, arrays)
        y = np.zeros((*q.shape[:3], vs[0].shape[-1]))
        for row, count in enumerate(at.counts):
            if not count:
                continue
            allowed = tuples(case, np.array(oracles.segment_starts(at.segment_ids[row, :count])))
            for head in range(q.shape[2]):
                values, *keys = (x[row, :count, head] for x in (q, *ks))
                axes = "jklm"[: len(ks)]
                scores = scale * np.einsum(f"ir,{','.join(a + 'r' for a in axes)}->i{axes}", values, *keys)
                p = weigh(case, scores, (values * scale, *keys), axes)
                p = normalised(case, np.where(allowed, p, 0), allowed, scores)
                terms = ",".join(a + "t" for a in axes)
                y[row, :count, head] = np.einsum(
                    f"i{axes},{terms}->it", p, *(v[row, :count, head] for v in vs)
                )
        return y, {}


def slotted(case: Case, arrays: dict[str, Any]) -> tuple[Any, tuple, tuple]:
    """q, ks and vs with an array in each slot."""
    slots = case.order - 1
    return arrays["q"], *(
        tuple(arrays.get(f"{name}{slot}", arrays[f"{name}0"]) for slot in range(slots)) for name in "kv"
    )


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
    """Divided by their sum, or by nothing."""
    axes = tuple(range(1, p.ndim))
    if case.weigh == "softmax" or case.normalize == "sum":
        total = p.sum(axis=axes, keepdims=True)
        return np.divide(p, total, out=np.zeros_like(p), where=allowed)
    return p


FEATURES = {
    "identity": lambda order: ops.IDENTITY,
    "pos_elu": lambda order: ops.feature_maps.FEATURE_MAPS["pos_elu"],
    "taylor": ops.hyper_taylor_map,
}
"""the order to the feature map whose products are those of `weigh`"""
