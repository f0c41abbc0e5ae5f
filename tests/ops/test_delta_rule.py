"""The delta rule against its recurrence in NumPy: values, states, gradients, and what is exact."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array, stream_at
from tests.marks import slow_but
from tests.ops import draw
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close


class Case(NamedTuple):
    """One compiled program: sizes, the gates and the optional arguments that are present."""

    op: str  # "rule" or "general"
    decay: str  # "", "heads" or "channels"
    sizes: tuple[int, int, int, int, int]  # B, N, H, K, V
    chunk: int
    options: str = ""  # of "segments padded state"

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([self.op, self.decay or "open", sizes, f"chunk{self.chunk}", *self.options.split()])


SIZES = (2, 17, 2, 4, 3)
CASES = [
    Case("rule", "", SIZES, 5, "segments padded state"),
    Case("rule", "heads", SIZES, 64, "segments padded"),
    Case("general", "channels", SIZES, 64, "segments padded state"),
    Case(
        "general", "channels", (1, 65, 1, 3, 2), 64
    ),  # pairs of tokens in different blocks, and a second chunk
]
GATES = [0.0, -1e-3, -0.3, -5.0, -1e4, -np.inf]
BETAS = [0.0, 1e-6, 0.5, 1 - 1e-6, 1.0, 2.0]


class Inputs(NamedTuple):
    arrays: dict[str, np.ndarray]
    """differentiable, `kv` of the initial state among them"""
    placement: dict[str, Any]
    """segment_ids, mask, stream"""
    weights: tuple[np.ndarray, np.ndarray]
    """of y and the final state in the scalar whose gradient is taken"""
    counts: np.ndarray

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement}, counts={self.counts})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, width, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))

    def unit(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    per_head = (batch, length, heads)
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
    placement: dict[str, Any] = {}
    if "state" in case.options:  # all rows have seen three tokens of segment 1, but the last row none
        kv = rng.normal(size=(batch, heads, width, value_size))
        kv[-1] = 0
        seen = np.array([3] * (batch - 1) + [0], np.int32)
        arrays["kv"] = kv
        placement["stream"] = stream_at(seen, 0 * seen, np.sign(seen))
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    counts = np.full(batch, length, np.int32)
    if "padded" in case.options:
        counts = draw_(draw.counts(batch, length))
        placement["mask"] = draw.mask(counts, length)
    weights = rng.normal(size=(*per_head, value_size)), rng.normal(size=(batch, heads, width, value_size))
    return Inputs(arrays, placement, weights, counts)


def call(arrays, placement, case: Case, implementation: str | None, chunk: int | None = None):
    """The op on these arrays: y and the state's matrix."""
    state = None
    if "stream" in placement:
        state = ops.LinearRecurrenceState(arrays["kv"], placement["stream"])
    given_ = (arrays[name] for name in ("q", "k", "v", "beta", "a", "b") if name in arrays)
    op = ops.delta_rule if case.op == "rule" else ops.generalized_delta_rule
    y, state = op(
        *given_, arrays.get("log_decay"), initial_state=state, return_state=True,
        segment_ids=placement.get("segment_ids"), mask=placement.get("mask"),
        chunk_size=chunk or case.chunk, implementation=implementation,
    )  # fmt: skip
    return y, state.kv


values = jax.jit(call, static_argnames=("case", "implementation", "chunk"))


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def values_and_gradients(arrays, placement, weights, *, case: Case, implementation: str):
    def loss(arrays):
        y, kv = call(arrays, placement, case, implementation)
        return (weights[0] * y).sum() + (weights[1] * kv).sum(), (y, kv)

    (_, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return outputs, gradients


def cast(tree, dtype):
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)


def oracle(case: Case, drawn: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The papers' recurrences, row by row and token by token."""
    batch, _, heads, width, value_size = case.sizes
    arrays, y = drawn.arrays, np.zeros(drawn.arrays["v"].shape)
    kv = np.array(arrays.get("kv", np.zeros((batch, heads, width, value_size))))
    ids, stream = drawn.placement.get("segment_ids"), drawn.placement.get("stream")
    for row in range(batch):
        before = None if stream is None or not stream.length[row] else stream.segment[row]
        for t in range(drawn.counts[row]):
            if ids is not None:
                kv[row] *= before is None or before == ids[row, t]
                before = ids[row, t]
            for head in range(heads):
                at = row, t, head
                gate = np.exp(np.broadcast_to(arrays["log_decay"][at] if case.decay else 0.0, width))
                old, k, v = kv[row, head], arrays["k"][at], arrays["v"][at]
                if case.op == "rule":
                    left = gate[:, None] * old
                    new = left + arrays["beta"][at] * np.outer(k, v - k @ left)
                else:
                    transition = np.diag(gate) + np.outer(arrays["b"][at], arrays["a"][at])
                    new = transition @ old + np.outer(k, v)
                kv[row, head] = new
                y[at] = arrays["q"][at] @ new / np.sqrt(width)
    return y, kv


@pytest.mark.parametrize("case", slow_but(CASES[:3], CASES), ids=str)
def test_values_states_and_gradients(case):
    """Both implementations in float64, the chunked one in float32 too; gates may be shut, beta 0 to 2."""

    @settings(max_examples=6)
    @given(inputs(case))
    def law(drawn):
        expected = oracle(case, drawn)
        with jax.enable_x64(True):
            arguments = cast(drawn.arrays, jnp.float64), drawn.placement, drawn.weights
            outputs, exact = values_and_gradients(*arguments, case=case, implementation="reference")
            assert_close(outputs, expected, FLOAT64, "reference")
            outputs, gradients = values_and_gradients(*arguments, case=case, implementation="xla")
            assert_close(outputs, expected, FLOAT64, "xla")
            assert_close(gradients, exact, FLOAT64, "gradient", magnitude=0.1)
        arrays, weights = cast((drawn.arrays, drawn.weights), jnp.float32)
        outputs, gradients = values_and_gradients(
            arrays, drawn.placement, weights, case=case, implementation="xla"
        )
        assert outputs[0].dtype == outputs[1].dtype == jnp.float32
        assert_close(outputs, expected, FLOAT32, "float32")
        assert_close(gradients, exact, FLOAT32_GRADIENT, "gradient in float32", magnitude=0.1)

    law()


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunk_sizes(chunk):
    case = CASES[2]

    @settings(max_examples=4)
    @given(inputs(case))
    def law(drawn):
        y = values(cast(drawn.arrays, jnp.float32), drawn.placement, case, "xla", chunk)
        assert_close(y, oracle(case, drawn), FLOAT32)

    law()


@settings(max_examples=6)
@given(inputs(CASES[0]))
def test_split_law(drawn):
    """In two calls, cut inside or between documents and padding: the same outputs and state."""
    case, cut = CASES[0], 9
    placement = {name: drawn.placement[name] for name in ("segment_ids", "mask")}
    batch, _, heads, width, value_size = case.sizes
    arrays = cast({name: x for name, x in drawn.arrays.items() if name != "kv"}, jnp.float32)
    whole, state = _rule(arrays, placement, ops.init_linear_recurrence_state(batch, heads, width, value_size))
    parts, behind = [], ops.init_linear_recurrence_state(batch, heads, width, value_size)
    for piece in (slice(None, cut), slice(cut, None)):
        y, behind = _rule(*jax.tree.map(lambda x: x[:, piece], (arrays, placement)), behind)  # noqa: B023
        parts.append(y)
    assert_close(np.concatenate(parts, axis=1), whole, FLOAT32)
    assert_close(behind, state, FLOAT32)


@jax.jit
def _rule(arrays, placement, state):
    return ops.delta_rule(**arrays, **placement, initial_state=state, return_state=True)


@pytest.mark.parametrize("beta", [1, 2])
def test_one_key_for_all_is_exact(beta):
    """beta = 1 replaces, to the last bit: only the newest value is left. beta = 2 reflects at it."""
    length = 65
    v = np.random.default_rng(0).integers(-9, 9, size=(1, length, 1, 3)).astype(np.float32)
    key = jnp.zeros((1, length, 1, 2)).at[..., 0].set(1)
    betas = jnp.full((1, length, 1), float(beta))
    y, state = jax.jit(functools.partial(ops.delta_rule, scale=1.0, return_state=True))(
        key, key, array(v), betas
    )
    held = np.zeros(3)
    for t in range(length):
        held = held + beta * (v[0, t, 0] - held)
        np.testing.assert_array_equal(y[0, t, 0], held)
    np.testing.assert_array_equal(state.kv[0, 0], [held, 0 * held])


@settings(max_examples=4)
@given(inputs(CASES[1]))
def test_bfloat16(drawn):
    """Values close to those of the rounded inputs; gradients finite."""
    case = CASES[1]
    low = cast(drawn.arrays, jnp.bfloat16)
    rounded = drawn._replace(arrays=jax.tree.map(lambda x: np.asarray(x, np.float64), low))
    (y, kv), gradients = values_and_gradients(
        low, drawn.placement, cast(drawn.weights, jnp.float32), case=case, implementation="xla"
    )
    assert y.dtype == jnp.bfloat16
    assert kv.dtype == jnp.float32
    assert_close((y, kv), oracle(case, rounded), BFLOAT16)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(gradients))


def _arguments(**changes: Any) -> dict[str, Any]:
    arguments = {name: jnp.ones((2, 3, 2, 4)) for name in ("q", "k", "a", "b")}
    return arguments | {"v": jnp.ones((2, 3, 2, 5)), "log_decay": jnp.zeros((2, 3, 2))} | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": jnp.ones((2, 3, 4))}, ValueError, "q has shape"),
        ({"k": jnp.ones((2, 3, 1, 4))}, ValueError, "k has shape"),
        ({"v": jnp.ones((2, 4, 2, 5))}, ValueError, "v has shape"),
        ({"a": jnp.ones((2, 3, 2, 4), int)}, TypeError, "a has dtype"),
        ({"b": jnp.ones((2, 3, 2, 5))}, ValueError, "b has shape"),
        ({"log_decay": jnp.ones((2, 3, 1))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 3, 2, 5))}, ValueError, "log_decay has shape"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"implementation": "torch"}, ValueError, "implementation = 'torch'"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        (
            {"initial_state": ops.init_linear_recurrence_state(2, 2, 4, 4)},
            ValueError,
            r"initial_state\.kv has shape",
        ),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.generalized_delta_rule(**_arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": jnp.ones((2, 3))}, "beta has shape"),
        ({"k": jnp.ones((2, 3, 4))}, "k has shape"),
        ({"log_decay": jnp.zeros((2, 3, 2, 4))}, "log_decay has shape"),
    ],
)
def test_errors_of_the_rule_proper(unchecked, changes, message):
    arguments = _arguments(**{"beta": jnp.ones((2, 3, 2))} | changes)
    del arguments["a"], arguments["b"]
    with pytest.raises(ValueError, match=message):
        ops.delta_rule(**arguments)
