"""The laws of linear attention, for both ops and each of their implementations."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.core.implementations import KERNELS
from pallas_kernels import interpreted
from tests.arrays import array, blank
from tests.marks import slow_but
from tests.ops import draw, oracles
from tests.ops.contract import Contract, Interpreted, where
from tests.ops.linear_attention_cases import Case, call, cast, decays, recurrence, tokens, values
from tests.tolerances import FLOAT32, assert_close

# Lengths below and above a chunk and in one, odd ones, one token, one row, one channel.
CASES = [
    Case("taylor", (3, 17, 2, 3, 2), 6, "gates"),
    Case("taylor", (2, 13, 2, 4, 3), 5),
    Case("linear", (2, 7, 1, 4, 4), 1, "gates", normalize=False),
    Case("taylor", (2, 1, 2, 3, 2), 4, "gates"),
    Case("taylor", (1, 1, 1, 1, 1), 1),
    Case("taylor", (3, 12, 1, 5, 1), 4),
    Case("taylor", (1, 11, 3, 8, 2), 64, "fixed"),
    Case("linear", (2, 10, 2, 6, 3), 4, "fixed"),
]


def implementations(case: Case) -> tuple[str, ...]:
    """Those that run on a CPU in any dtype, the reference first; tests/kernels has the laws of the others."""
    return tuple(name for name in ops.implementations(f"{case.op}_attention") if name not in KERNELS)[::-1]


class TestLinearAttention(Contract):
    cases = slow_but(CASES[:2], CASES)
    tokens, state = ("q", "k", "v", "log_decay"), ("kv", "k_sum")
    implementations = implementations(CASES[0])

    def arrays(self, rng, case):
        _, before = recurrence(case, tokens(rng, case, 4))
        state = {"kv": before.kv, "k_sum": before.k}
        return tokens(rng, case, case.sizes[1]) | decays(rng, case) | state

    def call(self, arrays, at, case, implementation):
        stream = {} if at.length is None else {"stream": (at.length, at.start, at.segment)}
        y, state = call(arrays, at.context | stream, case, implementation)
        return y, {"kv": state.kv, "k_sum": state.k}, state.stream

    def oracle(self, arrays, at, case):
        before = oracles.Sums(arrays["kv"], arrays["k_sum"], at.length, at.start, at.segment)
        y, state = recurrence(case, arrays, at.segment_ids, at.counts, before)
        return y, {"kv": state.kv, "k_sum": state.k}


FUSED = [
    Case("linear", (2, 17, 2, 4, 3), None, "gates"),
    Case("linear", (2, 13, 1, 3, 2), None, normalize=False),
]


class TestLinearAttentionKernel(Interpreted, TestLinearAttention):
    cases = slow_but(FUSED[:1], FUSED, core=[])


@pytest.mark.release
def test_the_kernel_gives_padding_finite_gradients():
    """Features of NaN would have none, nor would 0 / eps without an eps."""
    rng = np.random.default_rng(0)
    mask = np.arange(20) < np.array([[20], [13]])
    q, k, v = (array(where(mask, x, np.nan), np.float32) for x in rng.normal(size=(3, 2, 20, 1, 2)))

    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def run(q, k, v):
        how = {"feature_map": ops.feature_map("exp_half"), "eps": 0.0, "mask": array(mask)}
        return jnp.sin(ops.linear_attention(q, k, v, **how, implementation="pallas")).sum()

    with interpreted():
        gradients = jax.jit(run)(q, k, v)
    chex.assert_tree_all_finite(gradients)
    assert all(np.any(x) for x in gradients)


@pytest.mark.parametrize("shut", [-1e4, -np.inf])
def test_gates_that_are_shut(shut):
    """Gates of 0, open ones and nothing between: exact in float32, and no NaN backward."""
    laws, case = TestLinearAttention(), CASES[0]

    def law(drawn, seed):
        shape = drawn.arrays["log_decay"].shape
        drawn.arrays["log_decay"] = np.random.default_rng(seed).choice([0.0, -0.1, shut], size=shape)
        y, state = laws.oracle(drawn.arrays, drawn.at, case)
        for name, dtype in laws.programs(case):
            result = laws.run(*drawn[:3], case, name, dtype)
            laws.check(result, drawn._replace(y=y, state=state), name, dtype)
            chex.assert_tree_all_finite(result.gradients, custom_message=name)

    laws.law(case, law, draw.seeds)


@pytest.mark.parametrize("rows", [1, 2])
def test_fixed_decay_broadcasts(rows):
    """(1, 1, H) and (B, 1, H) stand for the same numbers at every token."""
    case = Case("taylor", (2, 5, 2, 2, 2), 2)
    rng = np.random.default_rng(0)
    arrays = tokens(rng, case, 5) | {"log_decay": -rng.random((rows, 1, 2))}
    y, _ = values(cast(arrays, np.float32), {}, case=case, implementation="xla")
    assert_close(y, recurrence(case, arrays)[0], FLOAT32)


def test_state_of_lower_precision_is_continued_in_float32():
    q = np.zeros((1, 3, 1, 2), jnp.bfloat16)
    state = blank(ops.init_linear_attention_state, 1, 1, 2, 2, dtype=jnp.bfloat16)
    run = functools.partial(ops.linear_attention, return_state=True)
    y, state = jax.eval_shape(run, q, q, q, initial_state=state)
    assert y.dtype == jnp.bfloat16
    assert state.kv.dtype == state.k.dtype == jnp.float32


def test_numpy_arrays_are_arrays(unchecked):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 4, 1, 2)).astype(np.float32)
    extras = {"mask": np.ones((1, 4), bool), "segment_ids": np.zeros((1, 4), np.int32)}
    y = jax.jit(lambda: ops.taylor_attention(q, k, v, **extras))()  # constants, not traced arguments
    assert_close(y, recurrence(Case("taylor", (1, 4, 1, 2, 2), 4), {"q": q, "k": k, "v": v})[0], FLOAT32)
