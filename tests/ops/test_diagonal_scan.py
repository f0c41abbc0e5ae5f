"""Scans with an elementwise state: the token loop, its gradients, and what the laws ask of every op."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from tests.arrays import array, stream_at
from tests.ops import draw
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close


class Case(NamedTuple):
    """One compiled program for each implementation and dtype."""

    sizes: tuple[int, int, int, int]  # B, N, E, S
    chunk: int | None
    full: bool  # with segments, padding, a state and the skip


CASES = [Case((2, 11, 3, 2), 4, True), Case((1, 7, 2, 3), None, False), Case((2, 1, 1, 2), None, True)]


def numbers(seed: int, sizes: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    """Arguments of the scan; step sizes from shut to wide open."""
    batch, length, channels, states = sizes
    rng = np.random.default_rng(seed)
    open_by = rng.choice([0.0, 0.1, 1.0, 30.0], size=(batch, length, channels))
    return {
        "x": rng.normal(size=(batch, length, channels)),
        "dt": open_by * rng.random((batch, length, 1)),
        "A": -rng.exponential(size=(channels, states)),
        "B": rng.normal(size=(batch, length, states)),
        "C": rng.normal(size=(batch, length, states)),
        "D": rng.normal(size=channels),
        "h": rng.normal(size=(batch, channels, states)),
    }


def oracle(x, dt, A, B, C, D, h, ids, counts) -> tuple[np.ndarray, np.ndarray]:
    """The loop over tokens; the state's rows are in segment 0."""
    y, h = np.zeros(x.shape), h.copy()
    for row, count in enumerate(counts):
        for t in range(count):
            if ids[row, t] != (ids[row, t - 1] if t else 0):
                h[row] = 0
            h[row] = np.exp(dt[row, t][:, None] * A) * h[row] + np.outer(dt[row, t] * x[row, t], B[row, t])
            y[row, t] = h[row] @ C[row, t] + D * x[row, t]
    return y, h


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def everything(arrays, ids, mask, weights, *, case: Case, implementation: str) -> Any:
    """Outputs, the state, and the gradients of a weighted sum of both."""

    def loss(arrays):
        h, options = arrays["h"], {}
        if case.full:
            stream = stream_at(*(jnp.full(len(h), n, jnp.int32) for n in (5, 2, 0)))
            options = {"segment_ids": ids, "mask": mask, "initial_state": ops.DiagonalScanState(h, stream)}
        y, state = ops.selective_scan(
            *(arrays[name] for name in ("x", "dt", "A", "B", "C")), arrays["D"] if case.full else None,
            return_state=True, chunk_size=case.chunk, implementation=implementation, **options,
        )  # fmt: skip
        return (weights["y"] * y).sum() + (weights["h"] * state.h).sum(), (y, state)

    return jax.value_and_grad(loss, has_aux=True)(arrays)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_states_and_gradients(case):
    """The reference against the loop; the chunked form against both, in float64 and float32."""
    batch, length = case.sizes[:2]

    @given(draw.seeds, draw.segment_ids(batch, length), draw.counts(batch, length))
    @settings(max_examples=6)
    def law(seed, ids, counts):
        arrays = numbers(seed, case.sizes)
        if not case.full:
            arrays |= {"D": 0 * arrays["D"], "h": 0 * arrays["h"]}
            ids, counts = 0 * ids, np.full(batch, length)
        mask = draw.mask(counts, length)
        rng = np.random.default_rng(0)
        weights = {name: rng.normal(size=arrays[of].shape) for name, of in (("y", "x"), ("h", "h"))}
        weights["y"] *= mask[..., None]
        expected = oracle(*arrays.values(), ids, counts)
        exact = None
        for implementation, dtype in (("reference", "float64"), ("xla", "float64"), ("xla", "float32")):
            with jax.enable_x64(True):
                wide = dtype == "float64"
                given_ = jax.tree.map(lambda a, dtype=dtype: array(a, dtype), (arrays, weights))
                (_, (y, state)), gradients = everything(
                    given_[0], array(ids), array(mask), given_[1],
                    case=case, implementation=implementation,
                )  # fmt: skip
            assert y.dtype == state.h.dtype == dtype
            what = f"{implementation} {dtype}"
            y = np.where(mask[..., None], y, 0)
            assert_close((y, state.h), expected, FLOAT64 if wide else FLOAT32, what)
            exact = gradients if exact is None else exact
            tolerance = FLOAT64 if wide else FLOAT32_GRADIENT
            assert_close(gradients, exact, tolerance, what, magnitude=0.1)
            if case.full:
                assert state.stream.length.tolist() == (5 + counts).tolist()

    law()


def test_a_text_in_pieces():
    """Any implementation continues where any other has stopped, also by single tokens."""
    arrays = jax.tree.map(np.float32, numbers(1, (2, 9, 2, 3)))
    tokens, rest = [arrays[name] for name in ("x", "dt", "B", "C")], (array(arrays["A"]), array(arrays["D"]))

    @functools.partial(jax.jit, static_argnames="implementation")
    def scan(tokens, state=None, implementation=None):
        x, dt, B, C = tokens
        return ops.selective_scan(
            x, dt, rest[0], B, C, rest[1],
            initial_state=state, return_state=True, implementation=implementation,
        )  # fmt: skip

    whole, final = scan(tokens)
    state, outputs = ops.init_diagonal_scan_state(2, (2, 3)), []
    for piece, implementation in ((slice(0, 5), "xla"), (slice(5, 6), None), (slice(6, 9), "reference")):
        y, state = scan([a[:, piece] for a in tokens], state, implementation)
        outputs.append(y)
    assert_close((np.concatenate(outputs, 1), state), (whole, final), FLOAT32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extreme_gates(dtype):
    """Gates of exactly 0 and 1 give numbers, forward and backward."""
    arrays = jax.tree.map(np.float32, numbers(2, (1, 9, 2, 2)))
    dt = np.float32([[0.0], [1e4], [0.0], [1e-30], [1e4], [1e4], [0.0], [1.0], [0.0]]) * np.ones((1, 1, 2))
    arrays |= {"dt": dt, "A": np.float32([[-1e4, -1e-30], [0.0, -1.0]])}

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(arrays):
        x, dt, A, B, C = (arrays[name].astype(dtype) for name in ("x", "dt", "A", "B", "C"))
        y = ops.selective_scan(x, dt, A, B, C, chunk_size=4)
        return (y.astype(jnp.float32) ** 2).sum(), y

    (_, y), gradients = run(arrays)
    assert y.dtype == dtype
    assert all(np.isfinite(array).all() for array in jax.tree.leaves((y.astype(jnp.float32), gradients)))


def test_the_history_of_states_is_never_in_memory():
    """The backward pass included: a state per chunk, and one chunk's insides."""
    length, channels, states = 8192, 8, 16
    tokens, maps = jnp.zeros((1, length, channels)), jnp.zeros((1, length, states))

    def loss(x, dt, A, B, C):
        return ops.selective_scan(x, dt, A, B, C).sum()

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    compiled = program.lower(tokens, tokens, jnp.zeros((channels, states)), maps, maps).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 4 * length * channels * states


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.ones((2, 3))}, ValueError, "x has shape"),
        ({"x": jnp.ones((2, 3, 4), int)}, TypeError, "x has dtype"),
        ({"dt": jnp.ones((2, 3, 1))}, ValueError, "dt has shape"),
        ({"A": jnp.ones((5, 2))}, ValueError, "A has shape"),
        ({"B": jnp.ones((2, 3, 5))}, ValueError, "B has shape"),
        ({"C": jnp.ones((2, 3, 5))}, ValueError, "C has shape"),
        ({"D": jnp.ones(3)}, ValueError, "D has shape"),
        (
            {"initial_state": ops.init_diagonal_scan_state(2, (4, 3))},
            ValueError,
            r"initial_state\.h has shape",
        ),
        ({"mask": jnp.ones((2, 3))}, TypeError, "mask has dtype"),
        ({"chunk_size": 0}, ValueError, "chunk_size = 0"),
        ({"implementation": "pallas"}, ValueError, "implementation = 'pallas'"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    arguments = {
        "x": jnp.ones((2, 3, 4)), "dt": jnp.ones((2, 3, 4)), "A": -jnp.ones((4, 2)),
        "B": jnp.ones((2, 3, 2)), "C": jnp.ones((2, 3, 2)),
    }  # fmt: skip
    with pytest.raises(error, match=message):
        ops.selective_scan(**arguments | changes)
