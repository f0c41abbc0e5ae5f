"""HyperAttention: the blocks, the window and the cache against all tuples at once."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.marks import release_but
from tests.ops.declared import program
from tests.ops.hyper_attention_cases import Case, HyperContract, slotted
from tests.ops.placement import Placement

MODULE = sys.modules["based_jax.ops.hyper_attention"]  # the package has a function of that name

# Blocks that do not divide the call, of one query and of all; windows shorter and longer than a block.
CASES = [
    Case(3, (2, 7, 2, 3, 2), block=4 * 49 * 3),
    Case(3, (1, 9, 2, 2, 3), "shared strict", left=3, block=1),
    Case(4, (1, 5, 1, 2, 2), "strict", block=125 * 2),
]
BIDIRECTIONAL = [Case(3, (2, 5, 1, 2, 2), "bidirectional unordered")]


class TestHyperAttention(HyperContract):
    cases = release_but(CASES[:2], CASES)
    zero_padding = False

    def call(self, arrays, at, case, implementation):
        q, ks, vs = slotted(case, arrays)
        # Small blocks, so that small inputs have several; while tracing, jit keeps the cases apart.
        with mock.patch.multiple(MODULE, SCORES=case.block, MIN_WINDOW_BLOCK=2):
            y = ops.hyper_attention(q, ks, vs, **case.form, left=case.left, scale=0.7, **at.context)
        return y, {}, None


class TestBidirectional(TestHyperAttention):
    cases = BIDIRECTIONAL
    test_causality = test_bfloat16 = test_without_a_placement = None


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


@pytest.mark.release
def test_memory_is_that_of_a_block_of_queries():
    """Gradients of 64^3 scores, 1 MiB of them, in blocks of 4 queries: less is kept than the scores alone."""
    case = Case(3, (1, 64, 1, 4, 4), "shared", block=2**14)
    x = jax.ShapeDtypeStruct((1, 64, 1, 4), jnp.float32)
    arrays = {"q": x, "k0": x, "v0": x}
    lowered = program(TestHyperAttention, case, "xla").lower(arrays, Placement(), {"y": x})
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**20
