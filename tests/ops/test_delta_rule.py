"""The delta rule against its recurrence in NumPy: values, states, gradients, and what is exact."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import array, ones
from tests.marks import slow_but
from tests.ops.contract import Contract, Interpreted
from tests.tolerances import BFLOAT16, assert_close


class Case(NamedTuple):
    """Sizes and the gates."""

    op: str  # "rule" or "general"
    decay: str  # "", "heads" or "channels"
    sizes: tuple[int, int, int, int, int]  # B, N, H, K, V
    chunk: int

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([self.op, self.decay or "open", sizes, f"chunk{self.chunk}"])


SIZES = (2, 17, 2, 4, 3)
CASES = [
    Case("rule", "heads", SIZES, 5),
    Case("general", "channels", (1, 33, 2, 3, 2), 32),  # pairs in different blocks, and a second chunk
    Case("rule", "", SIZES, 64),
]
GATES = [0.0, -1e-3, -0.3, -5.0, -1e4, -np.inf]
BETAS = [0.0, 1e-6, 0.5, 1 - 1e-6, 1.0, 2.0]


class TestDeltaRule(Contract):
    """Gates may be shut, beta 0 to 2."""

    cases = slow_but(CASES[:2], CASES, core=CASES[:1])
    bare = slow_but(CASES[:1], CASES[:2])
    tokens, state = ("q", "k", "v", "beta", "a", "b", "log_decay"), ("kv",)

    def arrays(self, rng, case):
        batch, length, heads, width, value_size = case.sizes
        per_head = (batch, length, heads)

        def unit(*shape: int) -> np.ndarray:
            x = rng.normal(size=shape)
            return x / np.linalg.norm(x, axis=-1, keepdims=True)

        # Keys come back: what they hold is erased, not added to.
        k = unit(3, width)[rng.integers(3, size=per_head)]
        arrays = {"q": rng.normal(size=k.shape), "k": k, "v": rng.normal(size=(*per_head, value_size))}
        if case.op == "rule":
            arrays["beta"] = rng.choice(BETAS, size=per_head)
        else:
            a = unit(*k.shape)
            arrays |= {"a": a, "b": -a * rng.choice(BETAS, size=k.shape)}
        if case.decay:
            arrays["log_decay"] = rng.choice(GATES, size=per_head if case.decay == "heads" else k.shape)
        return arrays | {"kv": rng.normal(size=(batch, heads, width, value_size))}

    def call(self, arrays, at, case, implementation):
        op = ops.delta_rule if case.op == "rule" else ops.generalized_delta_rule
        y, state = op(
            *(arrays[name] for name in ("q", "k", "v", "beta", "a", "b") if name in arrays),
            arrays.get("log_decay"),
            initial_state=at.after(lambda stream: ops.LinearRecurrenceState(arrays["kv"], stream)),
            return_state=True,
            **at.context,
            chunk_size=case.chunk,
            implementation=implementation,
        )
        return y, {"kv": state.kv}, state.stream

    def oracle(self, arrays, at, case):
        """The papers' recurrences."""
        width = case.sizes[3]
        y, kv = np.zeros(arrays["v"].shape), np.array(arrays["kv"])
        for row, t in np.argwhere(at.mask):
            kv[row] *= not at.begins[row, t]
            for head in range(case.sizes[2]):
                here = row, t, head
                gate = np.exp(np.broadcast_to(arrays["log_decay"][here] if case.decay else 0.0, width))
                old, k, v = kv[row, head], arrays["k"][here], arrays["v"][here]
                if case.op == "rule":
                    left = gate[:, None] * old
                    new = left + arrays["beta"][here] * np.outer(k, v - k @ left)
                else:
                    transition = np.diag(gate) + np.outer(arrays["b"][here], arrays["a"][here])
                    new = transition @ old + np.outer(k, v)
                kv[row, head] = new
                y[here] = arrays["q"][here] @ new / np.sqrt(width)
        return y, {"kv": kv}


FUSED = [Case(op, decay, (2, 17, 1, 4, 3), 5) for op, decay in (("general", "channels"), ("rule", "heads"))]


class TestDeltaRuleKernel(Interpreted, TestDeltaRule):
    cases = slow_but(FUSED[:1], FUSED, core=[])


@pytest.mark.slow
def test_gradients_in_bfloat16():
    """With segments, padding and a state: values close to those of the rounded inputs, gradients finite."""
    laws, case = TestDeltaRule(), CASES[0]

    def law(drawn):
        low = {name: np.asarray(x, jnp.bfloat16) for name, x in drawn.arrays.items() if name != "kv"}
        rounded = {name: np.asarray(x, np.float64) for name, x in low.items()}
        y, state = laws.oracle(drawn.arrays | rounded, drawn.at, case)
        result = laws.run(*drawn[:3], case, "xla", "bfloat16")
        assert result.y.dtype == jnp.bfloat16
        assert result.state["kv"].dtype == np.float32
        assert_close((result.y, result.state), (y, state), BFLOAT16)
        chex.assert_tree_all_finite(result.gradients)

    laws.law(case, law)


def test_nan_at_padding_keeps_out_of_the_gradient_of_a_fixed_decay():
    x, beta, mask = ones((1, 3, 1, 2)), ones((1, 3, 1)), array([[True, True, False]])
    gradient = jax.grad(lambda *args: ops.delta_rule(x, *args, mask=mask).sum(), argnums=3)
    decay = array(np.full((1, 1, 1), -0.5, np.float32))
    broken = x.at[:, 2].set(np.nan), x, beta.at[:, 2].set(np.nan), decay
    assert_close(gradient(*broken), gradient(x, x, beta, decay), 0)


unscaled = jax.jit(functools.partial(ops.delta_rule, scale=1.0, return_state=True, chunk_size=64))


@pytest.mark.parametrize("beta", [1, 2])
def test_one_key_for_all_is_exact(beta):
    """beta = 1 replaces, to the last bit: only the newest value is left. beta = 2 reflects at it."""
    length = 65
    v = np.random.default_rng(0).integers(-9, 9, size=(1, length, 1, 3)).astype(np.float32)
    key = np.broadcast_to(np.float32([1, 0]), (1, length, 1, 2))
    y, state = jax.tree.map(np.asarray, unscaled(key, key, v, np.full((1, length, 1), beta, np.float32)))
    held = np.zeros(3)
    for t in range(length):
        held = held + beta * (v[0, t, 0] - held)
        np.testing.assert_array_equal(y[0, t, 0], held)
    np.testing.assert_array_equal(state.kv[0, 0], [held, 0 * held])


def test_products_have_full_precision():
    """On a GPU the default has 10 bits, whose errors would add up where the transition reflects."""

    x, beta = ones((1, 9, 1, 4)), ones((1, 9, 1))
    gradient = jax.grad(lambda *args: ops.delta_rule(*args, chunk_size=5).sum(), argnums=(0, 1, 2, 3))
    program = str(jax.make_jaxpr(gradient)(x, x, x, beta))
    assert program.count("dot_general[") == program.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")
    assert program.count("dot_general[") > 20
