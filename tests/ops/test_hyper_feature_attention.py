"""Products of scores: loops in NumPy, both forms, their states, and the linear state's identity."""

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import array, blank
from tests.marks import release_but, slow_but
from tests.ops import oracles
from tests.ops.contract import Contract
from tests.ops.placement import Placement
from tests.tolerances import BFLOAT16, assert_close

RECURRENT = 1e-12
"""float64: sums of some 60 terms below 100 in another order"""


class Case(NamedTuple):
    """Sizes and forms."""

    sizes: tuple[int, int, int, int]  # B, N, H, V
    widths: tuple[int, ...]
    kind: str
    options: str = ""  # of "bidirectional normalized"
    chunk: int | None = None
    scale: float = 1.0

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([self.kind, sizes, *map(str, self.widths), *self.options.split()])


CASES = [
    Case((2, 9, 2, 3), (2, 1, 3), "softmax", "", 4, 1.5),
    Case((2, 9, 2, 3), (2, 1, 3), "linear", "", 4, 1.5),
    Case((2, 7, 1, 2), (2, 2), "linear", "normalized", None, 0.5),
    Case((1, 1, 1, 1), (1, 1), "softmax"),
]
BIDIRECTIONAL = [
    Case((2, 5, 1, 2), (2, 2), "softmax", "bidirectional", 2),
    Case((2, 5, 1, 2), (2, 2), "linear", "bidirectional", 2),
]


def factors(arrays, name):
    return tuple(arrays[f"{name}{slot}"] for slot in range(4) if f"{name}{slot}" in arrays)


class TestHyperFeatureAttention(Contract):
    """The module's formulas, query by query, over an explicit list of keys."""

    cases = slow_but(CASES[:3], CASES, core=CASES[:2])
    tokens = ("v", *(f"{name}{slot}" for name in "qk" for slot in range(4)))
    implementations = ("xla",)
    zero_padding = False
    test_the_reference = test_split = test_one_token = test_bfloat16 = None

    def arrays(self, rng, case):
        batch, length, heads, value_size = case.sizes
        arrays = {"v": rng.normal(size=(batch, length, heads, value_size))}
        for name in "qk":
            for slot, width in enumerate(case.widths):
                x = rng.normal(size=(batch, length, heads, width))
                arrays[f"{name}{slot}"] = np.abs(x) if "normalized" in case.options else x
        return arrays

    def call(self, arrays, at, case, implementation, **state):
        y = ops.hyper_feature_attention(
            factors(arrays, "q"),
            factors(arrays, "k"),
            arrays["v"],
            "bidirectional" not in case.options,
            case.kind,
            scale=case.scale,
            normalize="normalized" in case.options,
            chunk_size=case.chunk,
            **at.context,
            **state,
        )
        return y, {}, None

    def oracle(self, arrays, at, case):
        qs, ks, v = factors(arrays, "q"), factors(arrays, "k"), arrays["v"]
        y = np.zeros(v.shape)
        for row, count in enumerate(at.counts):
            starts = oracles.segment_starts(at.segment_ids[row])
            for i in range(count):
                last = count if "bidirectional" in case.options else i + 1
                keys = [j for j in range(last) if starts[j] == starts[i]]
                for head in range(case.sizes[2]):
                    scores = np.ones(len(keys))
                    for q, k in zip(qs, ks, strict=True):
                        scores = scores * (k[row, keys, head] @ q[row, i, head]) * case.scale
                    if case.kind == "softmax":
                        scores = np.exp(scores - scores.max())
                        scores = scores / scores.sum()
                    if "normalized" in case.options:
                        scores = scores / (scores.sum() + 1e-12)
                    y[row, i, head] = scores @ v[row, keys, head]
        return y, {}


class TestBidirectional(TestHyperFeatureAttention):
    cases = release_but([], BIDIRECTIONAL)
    test_causality = test_without_a_placement = test_in_float64 = None


LENGTH = 11
CUTS = [0, 5, 6, 11]


@pytest.mark.parametrize("kind", release_but(["linear"], ["softmax", "linear"]))
def test_chunks_continue_each_other(kind):
    """Calls after a state, a single token among them, equal the loops over all pairs, in float64."""
    laws, case = TestHyperFeatureAttention(), Case((2, LENGTH, 1, 2), (2, 3), kind)

    def law(drawn):
        real = drawn.at.mask[..., None, None]
        with jax.enable_x64(True):
            state: Any = blank(ops.init_kv_cache, 2, LENGTH, 1, 5, 2, jnp.float64)
            if kind == "linear":
                state = blank(ops.init_linear_attention_state, 2, 1, 6, 2, jnp.float64)
            outputs = []
            for begin, end in pairwise(CUTS):
                at = Placement(*(x[:, begin:end] for x in drawn.at[:2]))
                arrays = {name: x[:, begin:end] for name, x in drawn.arrays.items()}
                y, state = continued(arrays, at, state, case=case)
                outputs.append(y)
            y = np.where(real, np.concatenate(outputs, axis=1), 0)
        assert_close(y, drawn.y, RECURRENT)
        assert np.array_equal(state.stream.length, drawn.at.counts)

    laws.law(case, law, fresh=True)


@functools.partial(jax.jit, static_argnames="case")
def continued(arrays, at, state, *, case: Case):
    laws = TestHyperFeatureAttention()
    return laws.call(arrays, at, case, "xla", initial_state=state, return_state=True)[0]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_bfloat16_scores_are_multiplied_in_float32(kind):
    """Inputs, weights of the softmax and outputs are rounded to 8 bits; four products are not."""
    laws, case = TestHyperFeatureAttention(), Case((2, 9, 1, 3), (4, 4, 4, 4), kind)
    low = {name: x.astype(jnp.bfloat16) for name, x in laws.arrays(np.random.default_rng(0), case).items()}
    y = jax.jit(lambda arrays: laws.call(arrays, Placement(), case, "xla")[0])(low)
    assert y.dtype == jnp.bfloat16
    at = laws.alone(Placement(np.zeros((2, 9), np.int32)))
    rounded = {name: x.astype(np.float64) for name, x in low.items()}
    assert_close(y, laws.oracle(rounded, at, case)[0], BFLOAT16)


def test_a_cache_is_as_large_as_attentions_and_overflows_to_nan():
    cache = blank(ops.init_kv_cache, 1, 3, 1, 6, 4)
    qs = ks = tuple(map(array, numbers(3, 1, 2, 1, 2)))
    v = array(numbers(1, 2, 1, 4))
    step = jax.jit(
        functools.partial(ops.hyper_feature_attention, return_state=True), static_argnames="causal"
    )
    y, cache = step(qs, ks, v, initial_state=cache)
    assert np.isfinite(y).all()
    with pytest.raises(ValueError, match="at most max_length = 3 tokens"):
        ops.hyper_feature_attention(qs, ks, v, initial_state=cache, return_state=True)
    assert np.isnan(step(qs, ks, v, initial_state=cache)[0]).all()
