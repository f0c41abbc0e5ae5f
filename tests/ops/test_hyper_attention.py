"""HyperAttention: the blocks, the window and the cache against all tuples at once."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from tests.arrays import array
from tests.ops import draw
from tests.ops.hyper_attention_cases import Case, cast, difference, inputs, oracle, slotted, with_gradients
from tests.tolerances import FINITE_DIFFERENCE, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close

MODULE = sys.modules["based_jax.ops.hyper_attention"]  # the package has a function of that name

# Blocks that do not divide the call, of one query and of all; windows shorter and longer than a block.
CASES = [
    Case(3, (2, 7, 2, 3, 2), "segments padded", block=4 * 49 * 3),
    Case(3, (1, 9, 2, 2, 3), "shared strict segments", left=3, block=1),
    Case(3, (2, 5, 1, 2, 2), "bidirectional unordered segments padded"),
    Case(4, (1, 5, 1, 2, 2), "strict", block=125 * 2),
]
IN_FLOAT32 = CASES[0]
"""one is enough: it takes a program of its own"""


def call(arrays, placement, case: Case, **state):
    # Small blocks, so that small inputs have several; while tracing, jit keeps the cases apart.
    with mock.patch.multiple(MODULE, SCORES=case.block, MIN_WINDOW_BLOCK=2):
        q, ks, vs = slotted(case, arrays)
        return ops.hyper_attention(q, ks, vs, **case.form, left=case.left, scale=0.7, **placement, **state)


values_and_gradients = with_gradients(call)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    """float64 against the tuples and finite differences, float32 against float64."""

    @settings(max_examples=5)
    @given(inputs(case))
    def law(drawn):
        expected = oracle(case, drawn)
        real = draw.mask(drawn.counts, case.sizes[1])[..., None, None]
        placement = jax.tree.map(array, drawn.placement)
        with jax.enable_x64(True):
            y, gradients = values_and_gradients(
                cast(drawn.arrays, jnp.float64), placement, drawn.weights, case=case
            )
        assert np.isfinite(y).all(), "outputs at padding are meaningless but finite"
        assert_close(np.where(real, y, 0), expected, FLOAT64)
        for name in ("q", "ks", "vs"):
            direction, slope = difference(case, drawn, name, 0)
            products = np.asarray(gradients[name] if name == "q" else gradients[name][0]) * direction
            scale = max(np.abs(products).sum(), 1)
            assert abs(products.sum() - slope) < FINITE_DIFFERENCE * scale, name
        if case != IN_FLOAT32:
            return
        y, low = values_and_gradients(
            cast(drawn.arrays, jnp.float32), placement, cast(drawn.weights, jnp.float32), case=case
        )
        assert y.dtype == jnp.float32
        assert_close(np.where(real, y, 0), expected, FLOAT32, "float32")
        assert_close(low, gradients, FLOAT32_GRADIENT, "float32 gradient", magnitude=0.1)

    law()


def test_outputs_without_a_tuple_are_zero():
    """Three different tokens are there from the third token on; before it 0, and so are all gradients."""
    case = CASES[-1]
    rng = np.random.default_rng(0)
    arrays = {"q": rng.normal(size=(1, 5, 1, 2)), "ks": tuple(rng.normal(size=(3, 1, 5, 1, 2)))}
    with jax.enable_x64(True):
        y, gradients = values_and_gradients(
            cast(arrays | {"vs": arrays["ks"]}, jnp.float64), {},
            np.broadcast_to(np.arange(5)[:, None, None] < 2, (1, 5, 1, 2)).astype(float), case=case,
        )  # fmt: skip
    assert not np.any(y[:, :2])
    assert np.all(y[:, 2:])
    assert not any(np.any(gradient) for gradient in jax.tree.leaves(gradients))


def test_order_two_is_softmax_attention():
    x = jnp.ones((2, 5, 2, 3))
    one = jax.make_jaxpr(lambda q, k, v: ops.hyper_attention(q, (k,), (v,), left=2))(x, x, x)
    other = jax.make_jaxpr(lambda q, k, v: ops.softmax_attention(q, k, v, left=2, scale=1.0))(x, x, x)
    assert str(one) == str(other)


def test_memory_is_that_of_a_block_of_queries():
    """Gradients of 64^3 scores, 1 MiB of them, in blocks of 4 queries: less is kept than the scores alone."""
    case = Case(3, (1, 64, 1, 4, 4), "shared", block=2**14)
    x = jax.ShapeDtypeStruct((1, 64, 1, 4), jnp.float32)
    program = values_and_gradients.lower({"q": x, "ks": (x,), "vs": (x,)}, {}, x, case=case)
    memory = program.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**20


def _arguments(**changes):
    x = jnp.ones((2, 3, 2, 4))
    return {"q": x, "ks": (x, x), "vs": (x, x)} | changes


Y = jnp.ones((2, 3, 2, 5))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": jnp.ones((2, 3, 4))}, ValueError, "q has shape"),
        ({"q": jnp.ones((2, 3, 2, 4), int)}, TypeError, "q has dtype"),
        ({"ks": (), "vs": ()}, ValueError, "number of ks = 0: expected at least 1"),
        ({"vs": (Y,)}, ValueError, "number of vs = 1: expected 2"),
        ({"ks": (jnp.ones((2, 3, 2, 4)), Y)}, ValueError, r"ks\[1\] has shape \(2, 3, 2, 5\)"),
        ({"vs": (Y, jnp.ones((2, 3, 2, 4)))}, ValueError, r"vs\[1\] has shape"),
        ({"ordered": False, "strict": True}, ValueError, "strict = True: expected False where ordered"),
        ({"left": -1}, ValueError, "left = -1"),
        ({"left": 1, "causal": False}, ValueError, "left = 1: expected None"),
        ({"return_state": True}, ValueError, "return_state = True"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        ({"segment_ids": jnp.ones((1, 3), int)}, ValueError, "segment_ids has shape"),
        ({"initial_state": ops.init_kv_cache(2, 3, 2, 8, 4)}, ValueError, r"initial_state\.k has shape"),
        (
            {"initial_state": ops.init_kv_cache(2, 2, 2, 4, 4)},
            ValueError,
            "length = 3: expected at most max_len",
        ),
        ({"initial_state": ops.init_kv_cache(2, 3, 2, 4, 4), "left": 1}, ValueError, "expected left . 1 = 2"),
        ({"initial_state": ops.init_kv_cache(2, 3, 2, 4, 4), "causal": False}, ValueError, "causal = False"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.hyper_attention(**_arguments(**changes))
