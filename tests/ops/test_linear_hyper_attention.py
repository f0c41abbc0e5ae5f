"""Linear HyperAttention: the chunked sums against all tuples at once, and the identities that they use."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array, blank, ones
from tests.marks import release_but, slow_but
from tests.ops.declared import program
from tests.ops.hyper_attention_cases import FEATURES, Case, HyperContract, slotted
from tests.ops.placement import Placement
from tests.tolerances import assert_close

MODULE = sys.modules["based_jax.ops.linear_hyper_attention"]  # the package has a function of that name

# Chunks that do not divide the call, of one token and of all.
CASES = [
    Case(3, (2, 7, 2, 2, 3), weigh="taylor", normalize="sum", block=3),
    Case(4, (2, 6, 1, 2, 2), "strict", weigh="pos_elu", normalize="sum", block=2),
    Case(4, (1, 5, 1, 2, 2), "strict", weigh="identity", normalize="count", block=2),
    Case(3, (2, 6, 1, 2, 2), "shared unordered", weigh="pos_elu", normalize="sum", block=4),
]
BIDIRECTIONAL = [
    Case(3, (2, 5, 1, 3, 2), "bidirectional strict", weigh="identity", normalize="count", block=1)
]


class TestLinearHyperAttention(HyperContract):
    cases = slow_but([CASES[0], *CASES[2:]], CASES, core=CASES[:1])

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


class TestBidirectional(TestLinearHyperAttention):
    """Without segments, which it does not take."""

    cases = release_but([], BIDIRECTIONAL)
    segments = False
    test_segments = test_causality = test_bfloat16 = test_without_a_placement = None


CHUNKS = CASES[1]


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


def sums_of(arrays: Any, strict: bool) -> list[np.ndarray]:
    """S_[s,e] of a stretch of three slots, by the recurrence with one slot range at a time: (e, s)."""
    kv = np.einsum("anf,anv->anfv", *arrays)
    result = []
    for e in range(3):
        sums = np.zeros((e + 1, *kv.shape[2:]))
        for t in range(kv.shape[1]):
            old = sums.copy()
            for s in range(e, -1, -1):
                after = 1 if s == e else (old if strict else sums)[s + 1]
                sums[s] += kv[s, t] * after
        result.append(sums[None, None])
    return result


@pytest.mark.parametrize("strict", [False, True])
def test_stretches_merge_by_chens_identity(strict):
    """In any grouping; where a new segment begins nothing is left of what was before."""
    arrays = np.random.default_rng(0).normal(size=(2, 3, 9, 2, 2))[..., 0]
    one = np.ones((1, 1, 1, 1))

    @jax.jit
    def merged(a, b, c):
        merge = MODULE._merge
        return merge(merge(a, b), c)[1], merge(a, merge(b, c))[1], merge(a, (0 * b[0], b[1]))[1]

    with jax.enable_x64(True):
        parts = np.split(np.arange(9), [2, 6])
        a, b, c = ((one, sums_of(arrays[:, :, part], strict)) for part in parts)
        *both, fresh = merged(a, b, c)
        for whole in both:
            assert_close(whole, sums_of(arrays, strict), 1e-13)
        assert_close(fresh, b[1], 0)


def test_taylor_features_multiply_to_the_polynomial(x64):
    """1 + x + x^2 / 2 of any number of factors, which is exp(x) but for x^3 / 6."""
    for order in (2, 3, 4):
        z = np.random.default_rng(order).normal(size=(order, 20, 3))
        x = np.prod(z, axis=0).sum(axis=-1)
        features = np.asarray(jax.jit(ops.hyper_taylor_map(order).features)(z))
        assert features.shape[-1] == ops.hyper_taylor_map(order).size(3) == 10
        np.testing.assert_allclose(np.prod(features, axis=0).sum(axis=-1), 1 + x + x**2 / 2, rtol=1e-13)


def test_taylor_is_near_softmax_for_small_scores(x64):
    """The error shrinks with the third power of the scores."""
    q, k, v = (array(x) for x in np.random.default_rng(0).normal(size=(3, 1, 8, 1, 4)))

    @jax.jit
    def both(q):
        how = {"feature_map": ops.hyper_taylor_map(3), "normalize": "sum"}
        return ops.linear_hyper_attention(q, (k, k), (v, v), **how), ops.hyper_attention(q, (k, k), (v, v))

    errors = [np.abs(np.subtract(*both(q * size))).max() for size in (0.02, 0.01)]
    assert errors[1] < 2e-5
    assert 7 < errors[0] / errors[1] < 9


def test_ordered_tuples_of_shared_factors_are_half_of_all_and_the_diagonal(x64):
    """(all pairs + pairs of one token twice) / 2, because the two orders of a pair count the same."""
    q, k, v = (array(x) for x in np.random.default_rng(0).normal(size=(3, 2, 6, 2, 3)))

    @jax.jit
    def sides(q, k, v):
        ordered, everything = (
            ops.linear_hyper_attention(q, (k, k), (v, v), ordered=ordered) for ordered in (True, False)
        )
        return ordered, (everything + ops.linear_hyper_attention(q, (k * k,), (v * v,))) / 2

    assert_close(*sides(q, k, v), 1e-13)


def test_factors_of_full_tensors_are_the_papers_definition(x64):
    """Definition 6.1 with tensors C and W_V whose factors are those of definition G.3, with the map V^3."""
    rng = np.random.default_rng(0)
    x, (w_q, w_k, w_l, w_v, w_w, mix) = rng.normal(size=(6, 3)), rng.normal(size=(6, 3, 2))
    c = np.einsum("ar,er,fr->aef", w_q, w_k, w_l)
    w = np.einsum("er,fr,tr->eft", w_v, w_w, mix)
    scores, values = np.einsum("aef,ia,je,kf->ijk", c, x, x, x), np.einsum("je,kf,eft->jkt", x, x, w)
    i, j, k = np.indices((6, 6, 6))
    masks = {
        (True, True, False): (i >= j) & (j >= k),
        (False, True, False): j >= k,
        (False, True, True): j > k,
        (False, False, False): i >= 0,
    }
    q, *factors = (array((x @ w)[None, :, None]) for w in (w_q, w_k, w_l, w_v, w_w))

    @jax.jit
    def factored(q, ks, vs):
        return [
            ops.linear_hyper_attention(q, ks, vs, causal=causal, ordered=ordered, strict=strict)
            for causal, ordered, strict in masks
        ]

    outputs = factored(q, tuple(factors[:2]), tuple(factors[2:]))
    for mask, y in zip(masks.values(), outputs, strict=True):
        expected = np.einsum("ijk,jkt->it", scores * mask, values)
        assert_close(np.asarray(y)[0, :, 0] @ mix.T, expected, 1e-13)


def test_the_number_of_tuples_divides_a_sum_of_ones():
    """Where all scores and values are 1, so are the outputs, or 0 where there is no tuple."""
    forms = [(slots, strict) for slots in (1, 3) for strict in (False, True)]

    @jax.jit
    def divided(x):
        return [
            ops.linear_hyper_attention(x, (x,) * slots, (x,) * slots, strict=strict, normalize="count")
            for slots, strict in forms
        ]

    for (slots, strict), y in zip(forms, divided(np.ones((1, 7, 1, 1), np.float32)), strict=True):
        there_are = np.arange(7) >= (slots - 1 if strict else 0)
        np.testing.assert_allclose(y[0, :, 0, 0], there_are, rtol=1e-6)  # float32


@pytest.mark.release
def test_memory_is_not_a_matrix_per_token():
    """512 tokens of two matrices each would be 4 MiB; the gradient keeps those between chunks."""
    x = jax.ShapeDtypeStruct((1, 512, 1, 32), jnp.float32)
    case = Case(3, (1, 512, 1, 32, 32), "shared", weigh="identity", block=32)
    arrays = {"q": x, "k0": x, "v0": x}
    lowered = program(TestLinearHyperAttention, case, "xla").lower(arrays, Placement(), {"y": x})
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 2**21


def _arguments(**changes):
    x = ones((2, 3, 2, 4))
    return {"q": x, "ks": (x, x), "vs": (x, x)} | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": ones((2, 3, 4))}, ValueError, "q has shape"),
        ({"ks": (ones((2, 3, 2, 4)),)}, ValueError, "number of vs = 2: expected 1"),
        ({"normalize": "rms"}, ValueError, "normalize = 'rms': expected one of 'none'"),
        ({"ordered": False, "strict": True}, ValueError, "strict = True: expected False if ordered"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        (
            {"causal": False, "segment_ids": ones((2, 3), int)},
            ValueError,
            "segment_ids = .* when causal is F",
        ),
        ({"causal": False, "return_state": True}, ValueError, "return_state = True"),
        ({"mask": ones((2, 3), int)}, TypeError, "mask has dtype"),
        (
            {"initial_state": blank(ops.init_linear_hyper_state, 2, 2, 2, 4, 4), "normalize": "sum"},
            ValueError,
            r"initial_state\.sums has shape \(2, 2, 2, 4, 4\): expected \(2, 2, 2, 4, 5\)",
        ),
        (
            {"initial_state": blank(ops.init_linear_hyper_state, 2, 2, 2, 4, 4), "causal": False},
            ValueError,
            "initial_state = 'LinearHyperState': expected None when causal is False",
        ),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.linear_hyper_attention(**_arguments(**changes))


def test_an_order_has_two_factors_at_least():
    with pytest.raises(ValueError, match="order = 1: expected at least 2"):
        ops.hyper_taylor_map(1)
