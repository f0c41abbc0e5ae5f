"""The linear recurrence: a loop in NumPy, the token form, and the chunked form agree on everything."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import stream_at
from tests.ops import draw
from tests.tolerances import (
    BFLOAT16,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    FLOAT64,
    assert_close,
)

GATES = [0.0, -1e-3, -0.3, -3.0, -1e4, -np.inf]
"""logarithms of gates: open, ..., exactly shut"""


class Case(NamedTuple):
    """One compiled program: sizes and the optional arguments that are present."""

    sizes: tuple[int, int, int, int, int, int]  # B, N, G, H, K, V
    chunk: int | None
    gate: str  # "head" or "channel"
    options: str = ""  # of "bonus segments padded state"

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([sizes, f"chunk{self.chunk}", self.gate, *self.options.split()])


CASES = [
    Case((1, 1, 1, 1, 1, 1), 4, "channel"),
    Case((2, 19, 1, 2, 3, 2), 8, "head", "segments padded state"),
    Case((2, 37, 2, 2, 2, 3), 32, "channel", "bonus segments padded state"),
    Case((1, 37, 1, 2, 2, 1), None, "channel", "segments"),
]


class Inputs(NamedTuple):
    arrays: dict[str, np.ndarray]
    """differentiable: q, k, v, log_decay, bonus, and kv of the initial state"""
    placement: dict[str, Any]
    """segment_ids, mask, stream"""
    weights: dict[str, np.ndarray]
    """of the outputs in the scalar whose gradient is taken"""

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, groups, heads, width, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))
    channels = (width,) if case.gate == "channel" else ()
    shape = (batch, length, heads, *channels)
    arrays = {
        "q": rng.normal(size=(batch, length, groups, width)),
        "k": rng.normal(size=(batch, length, groups, width)),
        "v": rng.normal(size=(batch, length, heads, value_size)),
        "log_decay": rng.choice(GATES, size=shape, p=[0.2, 0.3, 0.3, 0.1, 0.05, 0.05]),
    }
    placement: dict[str, Any] = {}
    if "bonus" in case.options:
        arrays["bonus"] = rng.normal(size=(heads, width))
    if "state" in case.options:  # of rows that have come differently far
        seen = rng.integers(0, 4, size=batch)
        arrays["kv"] = rng.normal(size=(batch, heads, width, value_size))
        placement["stream"] = seen, seen // 2, np.minimum(seen, 1)
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    if "padded" in case.options:
        placement["mask"] = draw.mask(draw_(draw.counts(batch, length)), length)
    weights = {
        "y": rng.normal(size=(batch, length, heads, value_size)),
        "kv": rng.normal(size=(batch, heads, width, value_size)),
    }
    return Inputs(arrays, placement, weights)


def call(arrays, placement, *, case: Case, implementation: str):
    """The op on these arrays, with its state."""
    state = None
    if "kv" in arrays:
        stream = stream_at(*(jnp.asarray(x, jnp.int32) for x in placement["stream"]))
        begun = stream.length[:, None, None, None] > 0  # before the first token the sum is zero
        state = ops.LinearRecurrenceState(jnp.where(begun, arrays["kv"], 0), stream)
    return ops.linear_recurrence(
        *(arrays[name] for name in ("q", "k", "v", "log_decay")),
        bonus=arrays.get("bonus"),
        initial_state=state,
        return_state=True,
        segment_ids=placement.get("segment_ids"),
        mask=placement.get("mask"),
        chunk_size=case.chunk,
        implementation=implementation,
    )


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def values_and_gradients(arrays, placement, weights, *, case: Case, implementation: str):
    """y, the state, and the gradient of the weighted sum of both."""

    def loss(arrays):
        y, state = call(arrays, placement, case=case, implementation=implementation)
        return (weights["y"] * y).sum() + (weights["kv"] * state.kv).sum(), (y, state.kv)

    (_, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return outputs, gradients


values = jax.jit(call, static_argnames=("case", "implementation"))


def loop(case: Case, drawn: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence of the module's docstring over rows, tokens and heads."""
    batch, length, groups, heads, width, value_size = case.sizes
    arrays, placement = drawn.arrays, drawn.placement
    gates = np.exp(arrays["log_decay"].reshape(batch, length, heads, -1))
    seen, _, last = placement.get("stream", np.zeros((3, batch), int))
    kv = np.zeros((batch, heads, width, value_size))
    kv[seen > 0] = arrays.get("kv", kv)[seen > 0]
    y = np.zeros((batch, length, heads, value_size))
    for row in range(batch):
        for t in range(length):
            if "mask" in placement and not placement["mask"][row, t]:
                continue
            if "segment_ids" in placement:
                current = placement["segment_ids"][row, t]
                before = placement["segment_ids"][row, t - 1] if t else last[row]
                if current != before and (t or seen[row]):
                    kv[row] = 0
            for head in range(heads):
                q, k = (arrays[name][row, t, head * groups // heads] for name in "qk")
                added = np.outer(k, arrays["v"][row, t, head])
                new = gates[row, t, head][:, None] * kv[row, head] + added
                read = new
                if "bonus" in arrays:
                    read = kv[row, head] + arrays["bonus"][head][:, None] * added
                kv[row, head] = new
                y[row, t, head] = q @ read / np.sqrt(width)
    return y, kv


def cast(tree, dtype):
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_states_and_gradients(case):
    """Both forms in float64 and float32; gates that are exactly shut or open are among them."""

    @settings(max_examples=5)
    @given(inputs(case))
    def law(drawn):
        expected = loop(case, drawn)
        with jax.enable_x64(True):
            arguments = cast(drawn.arrays, jnp.float64), drawn.placement, drawn.weights
            outputs, exact = values_and_gradients(*arguments, case=case, implementation="reference")
            assert_close(outputs, expected, FLOAT64, "reference")
            outputs, gradients = values_and_gradients(*arguments, case=case, implementation="xla")
            assert_close(outputs, expected, FLOAT64, "xla")
            assert_close(gradients, exact, FLOAT64, "gradient", magnitude=0.1)
        arguments = cast(drawn.arrays, jnp.float32), drawn.placement, cast(drawn.weights, jnp.float32)
        outputs, gradients = values_and_gradients(*arguments, case=case, implementation="xla")
        assert_close(outputs[0], expected[0], FLOAT32, "float32")
        assert_close(outputs[1], expected[1], FLOAT32_STATE, "float32 state")
        assert_close(gradients, exact, FLOAT32_GRADIENT, "float32 gradient", magnitude=0.1)

    law()


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_split_law(implementation):
    """Two calls equal one, cut behind or before a single token, inside a segment or not; states included."""
    case = Case((2, 17, 1, 2, 3, 2), 8, "channel", "segments state")

    @settings(max_examples=6)
    @given(inputs(case), st.sampled_from([1, 16]))
    def law(drawn, cut):
        run = functools.partial(values, case=case, implementation=implementation)
        arrays = cast(drawn.arrays, jnp.float32)
        whole, state = run(arrays, drawn.placement)
        kv, stream = arrays.pop("kv"), drawn.placement.pop("stream")
        outputs = []
        for part in (slice(cut), slice(cut, None)):
            piece, placement = jax.tree.map(lambda x: x[:, part], (arrays, drawn.placement))  # noqa: B023
            y, end = run(piece | {"kv": kv}, placement | {"stream": stream})
            outputs.append(y)
            kv, stream = end.kv, (end.stream.length, end.stream.start, end.stream.segment)
        assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)
        assert_close(end, state, FLOAT32_STATE)

    law()


@pytest.mark.parametrize("shut", [-1e4, -np.inf])
def test_bfloat16_behind_alternating_gates(shut):
    """Gates that are open at one token and shut at the next: finite backward, and close forward."""
    case = CASES[3]

    @settings(max_examples=3)
    @given(inputs(case))
    def law(drawn):
        tokens = np.arange(case.sizes[1])
        drawn.arrays["log_decay"][:] = np.where(tokens % 2, 0.0, shut)[:, None, None]
        low = cast(drawn.arrays, jnp.bfloat16)
        rounded = jax.tree.map(lambda x: np.asarray(x, np.float64), low)
        outputs, gradients = values_and_gradients(
            low, drawn.placement, cast(drawn.weights, jnp.float32), case=case, implementation="xla"
        )
        assert outputs[0].dtype == jnp.bfloat16
        assert outputs[1].dtype == jnp.float32
        assert_close(outputs[0], loop(case, drawn._replace(arrays=rounded))[0], BFLOAT16)
        assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients.values())

    law()


def test_retention_is_the_parallel_form():
    """((Q K^T) * D) V with D_nm = gamma^(n - m): Sun et al. 2023, equation 5; gamma of shape (1, 1, H)."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 21, 2, 4))
    gamma = 1 - 2.0 ** (-5 - np.arange(2))
    distance = np.subtract.outer(np.arange(21), np.arange(21))
    mask = np.where(distance >= 0, gamma[:, None, None] ** np.maximum(distance, 0), 0)
    expected = np.einsum("bnhk,bmhk,hnm,bmhv->bnhv", q, k, mask, v) / 2
    log_decay = ops.fixed_log_decay(2)[None, None]
    for implementation in ops.implementations("linear_recurrence"):
        run = jax.jit(functools.partial(ops.linear_recurrence, chunk_size=8, implementation=implementation))
        assert_close(run(*cast((q, k, v), jnp.float32), log_decay), expected, FLOAT32, implementation)


def _arguments(**changes):
    arguments: dict[str, Any] = {
        "q": jnp.ones((2, 3, 2, 4)),
        "k": jnp.ones((2, 3, 2, 4)),
        "v": jnp.ones((2, 3, 4, 5)),
        "log_decay": jnp.zeros((2, 3, 4)),
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": jnp.ones((2, 3, 4))}, ValueError, "q has shape"),
        ({"q": jnp.ones((2, 3, 2, 4), int)}, TypeError, "q has dtype"),
        ({"k": jnp.ones((2, 3, 1, 4))}, ValueError, "k has shape"),
        ({"v": jnp.ones((2, 2, 4, 5))}, ValueError, "v has shape"),
        (
            {"v": jnp.ones((2, 3, 3, 5))},
            ValueError,
            "heads of v = 3: expected a multiple of heads of q and k",
        ),
        ({"log_decay": jnp.ones((2, 3))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 3, 2))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 3, 4, 1))}, ValueError, r"expected \(2, 3, 4, 4\)"),
        ({"log_decay": jnp.ones((2, 3, 4), int)}, TypeError, "log_decay has dtype"),
        ({"bonus": jnp.ones((2, 4))}, ValueError, "bonus has shape"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"implementation": "torch"}, ValueError, "implementation = 'torch'"),
        ({"segment_ids": jnp.ones((1, 3), int)}, ValueError, "segment_ids has shape"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        (
            {"initial_state": ops.init_linear_recurrence_state(2, 2, 4, 5)},
            ValueError,
            r"initial_state\.kv has shape",
        ),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.linear_recurrence(**_arguments(**changes))
