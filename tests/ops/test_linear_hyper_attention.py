"""Linear HyperAttention: the chunked sums against all tuples at once, and the identities that they use."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import blank
from tests.marks import release_but, slow_but
from tests.ops.hyper_attention_cases import FEATURES, Case, HyperContract, slotted
from tests.ops.placement import Placement
from tests.tolerances import assert_close

# Chunks that do not divide the call, of one token and of all.
CASES = [
    Case(3, (2, 7, 2, 2, 3), weigh="taylor", normalize="sum", block=3),
    Case(4, (2, 6, 1, 2, 2), "strict", weigh="pos_elu", normalize="sum", block=2),
    Case(4, (1, 5, 1, 2, 2), "strict", weigh="identity", normalize="none", block=2),
    Case(3, (2, 6, 1, 2, 2), "shared unordered", weigh="pos_elu", normalize="sum", block=4),
]
BIDIRECTIONAL = [
    Case(3, (2, 5, 1, 3, 2), "bidirectional strict", weigh="identity", normalize="none", block=1)
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
