"""The linear recurrence: a loop in NumPy, the token form, and the chunked form agree on everything."""

from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.core.platforms import on_platform
from tests.marks import slow_but
from tests.ops.contract import Contract, Interpreted
from tests.tolerances import BFLOAT16, assert_close

GATES = [0.0, -1e-3, -0.3, -3.0, -1e4, -np.inf]
"""logarithms of gates: open, ..., exactly shut"""


class Case(NamedTuple):
    """Sizes and forms of the arguments."""

    sizes: tuple[int, int, int, int, int, int]  # B, N, G, H, K, V
    chunk: int | None
    gate: str  # "head" or "channel"
    bonus: bool = False
    platform: str = "cpu"

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([sizes, f"chunk{self.chunk}", self.gate, *["bonus"] * self.bonus, self.platform])


CASES = [
    Case((2, 37, 2, 2, 2, 3), 32, "channel", bonus=True),
    Case((2, 19, 1, 2, 3, 2), 8, "head"),
    Case((2, 37, 1, 2, 2, 3), 8, "channel", bonus=True, platform="gpu"),
    Case((2, 37, 2, 2, 2, 1), 1, "head", platform="gpu"),  # more than `CHUNKS_ON_GPU` chunks
    Case((1, 37, 1, 2, 2, 1), None, "channel"),
    Case((1, 1, 1, 1, 1, 1), 4, "channel"),
]


class TestLinearRecurrence(Contract):
    """Gates that are exactly shut or open are among those drawn."""

    cases = slow_but([CASES[0], CASES[2]], CASES, core=CASES[:1])
    bare = CASES[1:2]
    tokens, state = ("q", "k", "v", "log_decay"), ("kv",)

    def arrays(self, rng, case):
        batch, length, groups, heads, width, value_size = case.sizes
        shape = (batch, length, heads, *[width] * (case.gate == "channel"))
        q, k = rng.normal(size=(2, batch, length, groups, width))
        arrays = {
            "q": q,
            "k": k,
            "v": rng.normal(size=(batch, length, heads, value_size)),
            "log_decay": rng.choice(GATES, size=shape, p=[0.2, 0.3, 0.3, 0.1, 0.05, 0.05]),
            "kv": rng.normal(size=(batch, heads, width, value_size)),
        }
        return arrays | ({"bonus": rng.normal(size=(heads, width))} if case.bonus else {})

    def call(self, arrays, at, case, implementation):
        with on_platform(case.platform):
            y, state = ops.linear_recurrence(
                *(arrays[name] for name in ("q", "k", "v", "log_decay")),
                bonus=arrays.get("bonus"),
                initial_state=at.after(lambda stream: ops.LinearRecurrenceState(arrays["kv"], stream)),
                return_state=True,
                **at.context,
                chunk_size=case.chunk,
                implementation=implementation,
            )
        return y, {"kv": state.kv}, state.stream

    def oracle(self, arrays, at, case):
        """The recurrence of the module's docstring over rows, tokens and heads."""
        batch, length, groups, heads, width, _ = case.sizes
        gates = np.exp(arrays["log_decay"].reshape(batch, length, heads, -1))
        y, kv = np.zeros(arrays["v"].shape), arrays["kv"].copy()
        for row, t in np.argwhere(at.mask):
            kv[row] *= not at.begins[row, t]
            for head in range(heads):
                q, k = (arrays[name][row, t, head * groups // heads] for name in "qk")
                added = np.outer(k, arrays["v"][row, t, head])
                new = gates[row, t, head][:, None] * kv[row, head] + added
                read = new
                if case.bonus:
                    read = kv[row, head] + arrays["bonus"][head][:, None] * added
                kv[row, head] = new
                y[row, t, head] = q @ read / np.sqrt(width)
        return y, {"kv": kv}


FUSED = [Case((2, 17, 1, 2, 4, 3), None, gate, bonus=gate == "channel") for gate in ("channel", "head")]


class TestLinearRecurrenceKernel(Interpreted, TestLinearRecurrence):
    cases = slow_but(FUSED[:1], FUSED, core=[])


@pytest.mark.release
@pytest.mark.parametrize("shut", [-1e4, -np.inf])
def test_bfloat16_after_alternating_gates(shut):
    """Gates that are open at one token and shut at the next: finite backward, and close forward."""
    laws, case = TestLinearRecurrence(), CASES[4]

    def law(drawn):
        tokens = np.arange(case.sizes[1])
        drawn.arrays["log_decay"][:] = np.where(tokens % 2, 0.0, shut)[:, None, None]
        low = {
            name: np.asarray(x, x.dtype if name in laws.state else jnp.bfloat16)
            for name, x in drawn.arrays.items()
        }
        y, _ = laws.oracle({name: np.asarray(x, np.float64) for name, x in low.items()}, drawn.at, case)
        result = laws.run(low, *drawn[1:3], case, "xla", "bfloat16")
        assert result.y.dtype == jnp.bfloat16
        assert_close(result.y, y, BFLOAT16)
        chex.assert_tree_all_finite(result.gradients)

    laws.law(case, law)
