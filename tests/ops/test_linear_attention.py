"""The laws of linear attention, for both ops and each of their implementations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.dispatch import KERNELS
from tests.arrays import array
from tests.marks import slow_but
from tests.ops import draw, oracles
from tests.ops.linear_attention_cases import (
    Case,
    cast,
    cut,
    in_pieces,
    inputs,
    oracle,
    oracle_parts,
    parts,
    place,
    stream_of,
    values,
    values_and_gradients,
)
from tests.tolerances import (
    FINITE_DIFFERENCE,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    FLOAT64,
    assert_close,
)

# Lengths below, at and above a chunk, odd ones, one token, one row, one channel.
CASES = [
    Case("taylor", (1, 1, 1, 1, 1), 1),
    Case("taylor", (2, 1, 2, 3, 2), 4, "gates", "segments state"),
    Case("taylor", (2, 13, 2, 4, 3), 5),
    Case("taylor", (3, 12, 1, 5, 1), 4, options="segments padded"),
    Case("taylor", (3, 17, 2, 3, 2), 6, "gates", "segments padded state"),
    Case("taylor", (1, 11, 3, 8, 2), 64, "fixed", "state"),
    Case("linear", (2, 10, 2, 6, 3), 4, "fixed", "padded state"),
    Case("linear", (2, 7, 1, 4, 4), 1, "gates", "segments", normalize=False),
]


def implementations(case: Case) -> tuple[str, ...]:
    """Those that run on a CPU in any dtype; the kernels have the same laws in tests/kernels."""
    return tuple(name for name in ops.implementations(f"{case.op}_attention") if name not in KERNELS)


LIKE_OTHERS = {2, 3, 5, 7}
"""What these combine, the others have; each compiles four programs."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (number in LIKE_OTHERS))
        for number, case in enumerate(CASES)
    ],
)
def test_values_states_and_gradients(case):
    """Every implementation, in float64 and float32, against the recurrence and its finite differences."""

    @settings(max_examples=5)
    @given(inputs(case))
    def law(drawn):
        y, state = oracle(case, drawn)
        with_segments = bool({"state", "segments"} & set(case.options.split()))
        state = oracle_parts(state, with_segments)
        exact = None
        for implementation in reversed(implementations(case)):  # the reference first
            with jax.enable_x64(True):
                arguments = cast(drawn.arrays, jnp.float64), place(drawn.placement), place(drawn.weights)
                outputs, gradients = values_and_gradients(
                    *arguments, case=case, implementation=implementation
                )
                assert_close(outputs[0], y, FLOAT64, f"{implementation} y")
                assert_close(parts(outputs[1]), state, FLOAT64, f"{implementation} state")
            if exact is None:
                exact = gradients
                _check_against_differences(case, drawn, gradients)
            assert_close(gradients, exact, FLOAT64, f"{implementation} gradient", magnitude=0.1)
            if implementation == "reference":
                continue
            arguments = cast(drawn.arrays, jnp.float32), place(drawn.placement)
            outputs, gradients = values_and_gradients(
                *arguments, cast(drawn.weights, jnp.float32), case=case, implementation=implementation
            )
            assert outputs[0].dtype == outputs[1].kv.dtype == outputs[1].k.dtype == jnp.float32
            assert_close(outputs[0], y, FLOAT32, f"{implementation} y in float32")
            assert_close(parts(outputs[1]), state, FLOAT32_STATE, f"{implementation} state in float32")
            assert_close(
                gradients, exact, FLOAT32_GRADIENT, f"{implementation} gradient in float32", magnitude=0.1
            )

    law()


def _check_against_differences(case, drawn, gradients):
    """The derivative of the oracle along one random direction per argument."""
    rng = np.random.default_rng(0)
    step = 1e-5

    def loss(arrays):
        y, state = oracle(case, drawn, arrays)
        weights = drawn.weights
        return (weights["y"] * y).sum() + (weights["kv"] * state.kv).sum() + (weights["k"] * state.k).sum()

    for name, x in drawn.arrays.items():
        direction = rng.normal(size=x.shape)
        if drawn.state is not None and name in ("kv", "k_sum"):  # before the first token both are zero
            direction[drawn.state.length == 0] = 0
        ahead, behind = (loss(drawn.arrays | {name: x + sign * step * direction}) for sign in (1, -1))
        slope = (np.asarray(gradients[name]) * direction).sum()
        # Relative to what the sum would be without cancellation.
        scale = max(np.abs(np.asarray(gradients[name]) * direction).sum(), abs(loss(drawn.arrays)), 1)
        assert abs(slope - (ahead - behind) / (2 * step)) < FINITE_DIFFERENCE * scale, f"gradient of {name}"


@pytest.mark.parametrize("decay", [pytest.param("", marks=pytest.mark.slow), "gates"])
def test_every_chunk_size(decay):
    """Chunks of 1 ... N + 3 tokens, N odd: none divides it but 1 and N."""
    case = Case("taylor", (2, 7, 2, 3, 2), 1, decay, "padded" if decay else "")
    programs = {
        chunk: functools.partial(values, case=case, implementation="xla", chunk=chunk)
        for chunk in range(1, case.sizes[1] + 4)
    }

    @settings(max_examples=5)
    @given(inputs(case))
    def law(drawn):
        expected, state = oracle(case, drawn)
        with jax.enable_x64(True):
            for chunk, program in programs.items():
                y, got = program(cast(drawn.arrays, jnp.float64), place(drawn.placement))
                assert_close(y, expected, FLOAT64, f"chunk_size {chunk}")
                assert_close(parts(got), oracle_parts(state, False), FLOAT64, f"chunk_size {chunk}")

    law()


SPLIT_CASES = [
    Case("taylor", (2, 6, 1, 2, 2), 2),
    Case("taylor", (2, 6, 2, 2, 1), 4, "gates", "segments"),
    Case("linear", (2, 6, 1, 3, 2), 3, "gates", "segments"),
]


@pytest.mark.parametrize("case", slow_but(SPLIT_CASES[:2], SPLIT_CASES), ids=str)
def test_split_law(case):
    """A text in pieces, cut anywhere, also inside a segment, equals the text in one call, states included."""

    @settings(max_examples=8)
    @given(inputs(case), draw.pieces(case.sizes[1]))
    def law(drawn, lengths):
        with jax.enable_x64(True):
            arrays, placement = cast(drawn.arrays, jnp.float64), place(drawn.placement)
            for implementation in implementations(case):
                whole, state = values(arrays, placement, case=case, implementation=implementation)
                y, state_of_pieces = in_pieces(case, implementation, arrays, placement, lengths)
                assert_close(y, whole, FLOAT64, f"{implementation} {lengths}")
                assert_close(parts(state_of_pieces), parts(state), FLOAT64, f"{implementation} {lengths}")

    law()


def alone(case: Case, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, oracles.Sums]:
    """One text by itself."""
    return oracles.linear_attention(
        case.phi(arrays["q"]), case.phi(arrays["k"]), arrays["v"], log_decay=arrays.get("log_decay")
    )


@pytest.mark.parametrize("decay", ["", "gates"])
def test_segment_law(decay):
    """Packed documents equal each document alone; an id may come back for another document."""
    case = Case("taylor", (1, 8, 1, 2, 2), 3, decay, "segments")

    @settings(max_examples=10)
    @given(inputs(case))
    def law(drawn):
        ids = drawn.placement["segment_ids"][0]
        begins = sorted(set(oracles.segment_starts(ids)))
        with jax.enable_x64(True):
            arrays = cast(drawn.arrays, jnp.float64)
            together = [values(arrays, place(drawn.placement), case=case, implementation=name)
                        for name in implementations(case)]  # fmt: skip
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            expected, state = alone(case, cut(drawn.arrays, slice(begin, end)))
            for y, _ in together:
                assert_close(np.asarray(y)[:, begin:end], expected, FLOAT64, f"document {begin}:{end}")
        for _, state_of_pack in together:  # the last document's sums are what is kept
            assert_close((state_of_pack.kv, state_of_pack.k), (state.kv, state.k), FLOAT64, "last state")

    law()


def test_padding_law():
    """Two calls padded on the right equal one call on the real tokens of each row; a row may have none."""
    case = Case("taylor", (3, 5, 1, 2, 2), 2, "gates", "padded")

    @settings(max_examples=10)
    @given(inputs(case), inputs(case))
    def law(first, second):
        for implementation in implementations(case):
            with jax.enable_x64(True):
                arrays = [cast(part.arrays, jnp.float64) for part in (first, second)]
                placement = [place(part.placement) for part in (first, second)]
                y1, state = values(arrays[0], placement[0], case=case, implementation=implementation)
                y2, state = values(
                    arrays[1] | {"kv": state.kv, "k_sum": state.k},
                    placement[1] | {"stream": stream_of(state)},
                    case=case, implementation=implementation,
                )  # fmt: skip
            y1, y2, state = jax.tree.map(np.asarray, (y1, y2, state))
            for row, (a, b) in enumerate(zip(first.counts, second.counts, strict=True)):
                assert not y1[row, a:].any()
                assert not y2[row, b:].any()
                assert state.stream.length[row] == a + b
                if a + b == 0:
                    assert not state.kv[row].any()
                    assert not state.k[row].any()
                    continue
                text = {
                    name: np.concatenate([x[[row], :a], second.arrays[name][[row], :b]], axis=1)
                    for name, x in first.arrays.items()
                }
                expected, sums = alone(case, text)
                y = np.concatenate([y1[row, :a], y2[row, :b]])
                assert_close(y, expected[0], FLOAT64, f"{implementation} row {row}")
                assert_close((state.kv[row], state.k[row]), (sums.kv[0], sums.k[0]), FLOAT64, f"state {row}")

    law()


@pytest.mark.parametrize("case", [CASES[2], CASES[4], CASES[7]], ids=str)
def test_causality(case):
    """Changing tokens t ... N - 1 changes no output before t, and does change the one at t."""

    @given(inputs(case), st.integers(0, case.sizes[1] - 1), draw.seeds)
    @settings(max_examples=8)
    def law(drawn, t, seed):
        rng = np.random.default_rng(seed)
        drawn.placement.pop("mask", None)
        arrays = {name: np.float32(x) for name, x in drawn.arrays.items()}
        changed = dict(arrays)
        for name in ("q", "k", "v", "log_decay"):
            if name in arrays:
                x = arrays[name]
                noise = -1 - rng.random(x.shape) if name == "log_decay" else 1 + rng.random(x.shape)
                changed[name] = np.where(
                    (np.arange(x.shape[1]) >= t)[None, :, None, *[None] * (x.ndim - 3)], x + noise, x
                ).astype(np.float32)
        for implementation in implementations(case):
            run = functools.partial(values, case=case, implementation=implementation)
            before, after = (np.asarray(run(x, place(drawn.placement))[0]) for x in (arrays, changed))
            assert np.array_equal(before[:, :t], after[:, :t]), implementation
            assert not np.array_equal(before[:, t], after[:, t]), implementation

    law()


@pytest.mark.parametrize("shut", [-1e4, -np.inf])
def test_gates_that_are_shut(shut):
    """Gates of 0, open ones and nothing between: exact in float32, and no NaN backward."""
    case = Case("taylor", (2, 9, 2, 3, 2), 4, "gates", "state")

    @settings(max_examples=5)
    @given(inputs(case), draw.seeds)
    def law(drawn, seed):
        rng = np.random.default_rng(seed)
        shape = drawn.arrays["log_decay"].shape
        drawn.arrays["log_decay"] = rng.choice([0.0, -0.1, shut], size=shape)
        expected, state = oracle(case, drawn)
        for implementation in implementations(case):
            (y, got), gradients = values_and_gradients(
                cast(drawn.arrays, jnp.float32), place(drawn.placement), cast(drawn.weights, jnp.float32),
                case=case, implementation=implementation,
            )  # fmt: skip
            assert_close(y, expected, FLOAT32, implementation)
            assert_close(got.kv, state.kv, FLOAT32_STATE, implementation)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients)), implementation

    law()


def test_fixed_decay_broadcasts():
    """(1, 1, H) and (B, 1, H) stand for the same numbers at every token."""
    case = Case("taylor", (2, 5, 2, 2, 2), 2, "gates")
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 5, 2, 2))
    per_row = -rng.random((2, 1, 2))
    for log_decay in (per_row[:1], per_row):
        everywhere = np.broadcast_to(log_decay, (2, 5, 2))
        short, long = (
            values(cast({"q": q, "k": k, "v": v, "log_decay": x}, jnp.float32), {}, case=case,
                   implementation="xla")
            for x in (log_decay, everywhere)
        )  # fmt: skip
        assert_close(short, long, 0)


def test_state_of_lower_precision_is_continued_in_float32():
    rng = np.random.default_rng(0)
    q, k, v = (array(x, jnp.bfloat16) for x in rng.normal(size=(3, 1, 3, 1, 2)))
    state = ops.init_linear_attention_state(1, 1, 2, 2, dtype=jnp.bfloat16)
    run = jax.jit(functools.partial(ops.linear_attention, return_state=True))
    y, state = run(abs(q), abs(k), v, initial_state=state)
    assert y.dtype == jnp.bfloat16
    assert state.kv.dtype == state.k.dtype == jnp.float32


def _arguments(**changes):
    arguments: dict[str, Any] = {
        "q": jnp.ones((2, 3, 2, 4)),
        "k": jnp.ones((2, 3, 2, 4)),
        "v": jnp.ones((2, 3, 2, 5)),
    }
    return arguments | changes


def _state(**changes):
    sizes = {"batch_size": 2, "num_heads": 2, "feature_size": 4, "value_size": 5} | changes
    return ops.init_linear_attention_state(**sizes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "q = "),
        ({"q": jnp.ones((2, 3, 4))}, ValueError, "q has shape"),
        ({"q": jnp.ones((2, 3, 2, 4), int)}, TypeError, "q has dtype"),
        ({"q": jnp.ones((2, 0, 2, 4))}, ValueError, r"q has shape \(2, 0, 2, 4\): expected no empty axis"),
        ({"k": jnp.ones((1, 3, 2, 4))}, ValueError, "k has shape"),
        ({"k": jnp.ones((2, 3, 2, 3))}, ValueError, "k has shape"),
        ({"k": jnp.ones((2, 3, 2, 4), bool)}, TypeError, "k has dtype"),
        ({"v": jnp.ones((2, 4, 2, 5))}, ValueError, "v has shape"),
        ({"v": jnp.ones((2, 3, 1, 5))}, ValueError, "v has shape"),
        ({"v": jnp.ones((2, 3, 2, 0))}, ValueError, "v has shape"),
        ({"log_decay": jnp.ones((2, 3))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 3, 1))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 2, 2))}, ValueError, "log_decay has shape"),
        ({"log_decay": jnp.ones((2, 3, 2), int)}, TypeError, "log_decay has dtype"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"implementation": "torch"}, ValueError, "implementation = 'torch'"),
        ({"segment_ids": jnp.ones((2, 3))}, TypeError, "segment_ids has dtype"),
        ({"segment_ids": jnp.ones((1, 3), int)}, ValueError, "segment_ids has shape"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        ({"mask": jnp.ones((2, 4), bool)}, ValueError, "mask has shape"),
        ({"initial_state": _state(batch_size=1)}, ValueError, r"initial_state\.kv has shape"),
        ({"initial_state": _state(num_heads=1)}, ValueError, r"initial_state\.kv has shape"),
        ({"initial_state": _state(feature_size=15)}, ValueError, r"initial_state\.kv has shape"),
        ({"initial_state": _state(value_size=4)}, ValueError, r"initial_state\.kv has shape"),
        ({"initial_state": _state(dtype=jnp.int32)}, TypeError, r"initial_state\.kv has dtype"),
        (
            {"initial_state": ops.LinearAttentionState(_state().kv, jnp.ones((2, 2, 3)), _state().stream)},
            ValueError,
            r"initial_state\.k has shape",
        ),
        (
            {"initial_state": ops.LinearAttentionState(_state().kv, _state().k, ops.init_stream(3))},
            ValueError,
            "state length has shape",
        ),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.linear_attention(**_arguments(**changes))


def test_numpy_arrays_are_arrays(unchecked):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 4, 1, 2)).astype(np.float32)
    extras = {"mask": np.ones((1, 4), bool), "segment_ids": np.zeros((1, 4), np.int32)}
    y = jax.jit(lambda: ops.taylor_attention(q, k, v, **extras))()  # constants, not traced arguments
    assert_close(y, jax.jit(ops.taylor_attention)(q, k, v), FLOAT32)
