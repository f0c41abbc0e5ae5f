"""HyperAttention, with a softmax and linear, against all tuples at once: scores with an axis per token."""

import functools
import itertools
import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import blank
from tests.marks import release_but, slow_but
from tests.ops import oracles
from tests.ops.contract import Contract
from tests.ops.declared import program
from tests.ops.placement import Placement
from tests.tolerances import assert_close


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
    test_the_reference = test_split = test_one_token = None

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


MODULE = sys.modules["based_jax.ops.hyper_attention"]  # the package has a function of that name

# Blocks that do not divide the call, of one query and of all; windows shorter and longer than a block.
CASES = [
    Case(3, (2, 7, 2, 3, 2), block=4 * 49 * 3),
    Case(3, (1, 9, 2, 2, 3), "shared strict", left=3, block=1),
    Case(4, (1, 5, 1, 2, 2), "strict", block=125 * 2),
]
BIDIRECTIONAL = [Case(3, (2, 5, 1, 2, 2), "bidirectional unordered")]


class TestHyperAttention(HyperContract):
    cases = slow_but(CASES[:3], CASES, core=CASES[:2])
    zero_padding = False

    def call(self, arrays, at, case, implementation):
        q, ks, vs = slotted(case, arrays)
        # Small blocks, so that small inputs have several; while tracing, jit keeps the cases apart.
        with mock.patch.multiple(MODULE, SCORES=case.block, MIN_WINDOW_BLOCK=2):
            y = ops.hyper_attention(q, ks, vs, **case.form, left=case.left, scale=0.7, **at.context)
        return y, {}, None


class TestBidirectional(TestHyperAttention):
    cases = release_but([], BIDIRECTIONAL)
    test_causality = test_bfloat16 = test_without_a_placement = test_in_float64 = None


def test_outputs_without_a_tuple_are_zero():
    """Three different tokens are there from the third token on; before it 0, and so are all gradients."""
    laws, case = TestHyperAttention(), CASES[1]

    def law(drawn):
        first = np.broadcast_to(np.arange(case.sizes[1])[:, None, None] < 1, drawn.y.shape)
        result = laws.run(drawn.arrays, laws.alone(drawn.at), {"y": first}, case, "xla", "float32")
        assert not np.any(result.y[:, :1])
        assert np.all(result.y[:, 1:])
        assert not any(np.any(gradient) for gradient in result.gradients.values())

    laws.law(case, law, full=True)


@pytest.mark.slow
def test_memory_is_that_of_a_block_of_queries():
    """Gradients of 64^3 scores, 1 MiB of them, in blocks of 4 queries: less is kept than the scores alone."""
    case = Case(3, (1, 64, 1, 4, 4), "shared", block=2**14)
    x = jax.ShapeDtypeStruct((1, 64, 1, 4), jnp.float32)
    arrays = {"q": x, "k0": x, "v0": x}
    lowered = program(TestHyperAttention, case, "xla").lower(arrays, Placement(), {"y": x})
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**20


# Chunks that do not divide the call, of one token and of all.
LINEAR = [
    Case(3, (2, 7, 2, 2, 3), weigh="taylor", normalize="sum", block=3),
    Case(4, (2, 6, 1, 2, 2), "strict", weigh="pos_elu", normalize="sum", block=2),
    Case(4, (1, 5, 1, 2, 2), "strict", weigh="identity", normalize="none", block=2),
    Case(3, (2, 6, 1, 2, 2), "shared unordered", weigh="pos_elu", normalize="sum", block=4),
    Case(3, (2, 9, 1, 2, 2), "strict", weigh="pos_elu", normalize="sum", block=4),
]
LINEAR_BIDIRECTIONAL = [
    Case(3, (2, 5, 1, 3, 2), "bidirectional strict", weigh="identity", normalize="none", block=1)
]


class TestLinearHyperAttention(HyperContract):
    cases = slow_but(LINEAR[:2], LINEAR, core=LINEAR[:1])

    def call(self, arrays, at, case, implementation, **state):
        q, ks, vs = slotted(case, arrays)
        y = ops.linear_hyper_attention(
            q,
            ks,
            vs,
            **case.form,
            **at.context,
            **state,
            feature_map=FEATURES[case.weigh](case.order),
            normalize=case.normalize,
            scale=0.7,
            eps=0.0,
            chunk_size=case.block,
        )
        return y, {}, None


class TestLinearBidirectional(TestLinearHyperAttention):
    """Without segments, which it does not take."""

    cases = release_but([], LINEAR_BIDIRECTIONAL)
    segments = False
    test_segments = test_causality = test_bfloat16 = None
    test_without_a_placement = test_in_float64 = None


CHUNKS = LINEAR[1]


@jax.jit
def chunk(arrays, at, state):
    laws = TestLinearHyperAttention()
    return laws.call(arrays, at, CHUNKS, "xla", initial_state=state, return_state=True)[0]


def test_chunks_are_the_parallel_form():
    """float64, cut anywhere, token by token too."""
    laws = TestLinearHyperAttention()

    def law(drawn, sizes):
        with jax.enable_x64(True):
            state = blank(ops.init_linear_hyper_state, 2, 1, 3, 2, 2, normalize="sum", dtype=jnp.float64)
            outputs, begin = [], 0
            for size in sizes:
                part = {name: x[:, begin : begin + size] for name, x in drawn.arrays.items()}
                at = Placement(*(x[:, begin : begin + size] for x in drawn.at[:2]))
                y, state = chunk(part, at, state)
                outputs.append(y)
                begin += size
        assert_close(np.concatenate(outputs, axis=1), drawn.y, 1e-12)

    laws.law(CHUNKS, law, st.sampled_from([[1] * 6, [1, 4, 1], [4, 1, 1]]), fresh=True)
