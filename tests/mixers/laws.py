"""The five laws of architecture.md as functions that any mixer's test can call.

split       mixer(concat(a, b)) == concat(mixer(a, s0), mixer(b, s1))
segments    packed documents == each document alone
padding     right-padded rows with a mask == each row alone, states included
causality   y[:, :t] does not change when x[:, t:] changes
containment what is no number stays in its document, and padding and the past never see it
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers import Mixer
from tests.arrays import normals
from tests.tolerances import assert_close

TOLERANCE = 2e-6
"""float32 sums in another order, relative to the largest magnitude; measured 1e-7 to 6e-7"""

MAX_LENGTH = 48
"""tokens that a state has room for"""

ROWS, LENGTH, PIECE = 2, 13, 6
"""Every call is (ROWS, LENGTH), (ROWS, PIECE) or (ROWS, 1): compiling a mixer takes most of a law's time."""


QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options for the compiler: these programs run a few times, optimizing takes most of the time"""


def inputs(rows: int, length: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, length, width)).astype(np.float32)


class Runner:
    """A mixer with parameters that are far from their initial values, called through jit."""

    def __init__(self, mixer: Mixer):
        self.mixer = mixer
        x = jnp.zeros((1, 4, mixer.d_model))
        self.variables = normals(mixer.init, x, dtype=jnp.float32)
        self._apply = jax.jit(mixer.apply, compiler_options=QUICKLY)

    def __call__(self, x: Any, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
        y, state = self._apply(self.variables, x, state, **context)
        return np.asarray(y), state

    def fresh(self, rows: int) -> Any:
        return self.mixer.init_state(rows, MAX_LENGTH)


def in_pieces(
    run: Runner, x: np.ndarray, sizes: list[int], state: Any = None, **context: Any
) -> tuple[np.ndarray, Any]:
    """Outputs and state of as many calls as there are sizes, each PIECE or 1."""
    state, pieces, begin = run.fresh(len(x)) if state is None else state, [x[:, :0]], 0
    for size in sizes:
        part = {name: array[:, begin : begin + size] for name, array in context.items()}
        y, state = run(x[:, begin : begin + size], state, **part)
        pieces.append(y)
        begin += size
    return np.concatenate(pieces, axis=1), state


def alone(run: Runner, x: np.ndarray, length: int) -> tuple[np.ndarray, Any]:
    """The first tokens by themselves, in pieces."""
    return in_pieces(run, x[:, :length], [PIECE] * (length // PIECE) + [1] * (length % PIECE))


def one_document(x: np.ndarray) -> np.ndarray:
    """Segment ids of rows that are not packed: padding and packing share their programs."""
    return np.zeros(x.shape[:2], int)


NO_NUMBERS = np.resize(np.array([np.nan, np.inf, 1e30, -np.inf, -1e30], np.float32), LENGTH)
"""What padding, other documents and later tokens may be; the last two are of a third power beyond float32."""


def split_law(run: Runner, x: np.ndarray, sizes: list[int], **context: Any) -> None:
    """Cutting a sequence anywhere changes nothing, and the state only when it is asked for is returned."""
    whole, nothing = run(x, **context)
    assert nothing is None
    assert_close(in_pieces(run, x, sizes, **context)[0], whole, TOLERANCE)


def split_law_under_padding(
    run: Runner, x: np.ndarray, cut: int, mask: np.ndarray, ids: np.ndarray | None = None
) -> None:
    """The same with a cut at any token, the pieces padded to one length, and rows of different lengths."""
    ids = one_document(x) if ids is None else ids
    whole, _ = run(x, mask=mask, segment_ids=ids)
    parts, real = in_two(run, x, cut, mask, ids), mask[..., None]
    assert_close(np.where(real, parts, 0), np.where(real, whole, 0), TOLERANCE)


def in_two(run: Runner, x: np.ndarray, cut: int, mask: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Outputs of two calls, cut at any token, each padded to the whole length: they share a program."""
    index = np.arange(x.shape[1])
    first, state = run(x, run.fresh(len(x)), mask=mask & (index < cut), segment_ids=ids)
    rest = np.roll(mask, -cut, axis=1) & (index < len(index) - cut)
    second, _ = run(np.roll(x, -cut, axis=1), state, mask=rest, segment_ids=np.roll(ids, -cut, axis=1))
    return np.where((index < cut)[:, None], first, np.roll(second, cut, axis=1))


def segment_law(run: Runner, x: np.ndarray, lengths: list[int]) -> None:
    """Documents packed into a row do not see each other, even when an id comes back later."""
    ids = np.concatenate([np.full(length, number % 2) for number, length in enumerate(lengths)])
    packed, _ = run(x, segment_ids=np.broadcast_to(ids, x.shape[:2]), mask=np.ones(x.shape[:2], bool))
    begin = 0
    for length in lengths:
        expected, _ = alone(run, x[:, begin:], length)
        assert_close(packed[:, begin : begin + length], expected, TOLERANCE)
        begin += length


def containment(run: Runner, x: np.ndarray, cut: int) -> None:
    """Tokens that are no numbers reach the later ones of their document, over calls too, and no others."""
    index = np.arange(x.shape[1])
    ids = np.broadcast_to(np.repeat([0, 1, 2], [4, 5, 4]), x.shape[:2])
    broken = (ids == 1) & (index >= 6)
    bad = np.where(broken[..., None], NO_NUMBERS[:, None], x)
    every = np.ones(x.shape[:2], bool)
    clean, _ = run(x, segment_ids=ids, mask=every)
    whole, _ = run(bad, segment_ids=ids, mask=every)
    expect_broken(whole, clean, broken)
    expect_broken(in_two(run, bad, cut, every, ids), clean, broken)


def expect_broken(y: np.ndarray, expected: np.ndarray, broken: np.ndarray) -> None:
    """NaN where it must be, and the expected outputs elsewhere."""
    assert np.all(np.isnan(y[broken]))
    y, expected = (np.where(broken[..., None], 0, array) for array in (y, expected))
    assert_close(y, expected, TOLERANCE)


def padding_law(run: Runner, x: np.ndarray, lengths: list[int], more: np.ndarray) -> None:
    """Padding changes no real output, and continuing behind it is continuing behind the last real token."""
    mask = np.arange(x.shape[1]) < np.array(lengths)[:, None]
    garbage = np.where(mask[..., None], x, NO_NUMBERS[: x.shape[1], None])
    padded, state = run(garbage, run.fresh(len(x)), mask=mask, segment_ids=one_document(x))
    stateless, _ = run(garbage, mask=mask, segment_ids=one_document(x))
    after, _ = run(more, state)
    for row, length in enumerate(lengths):
        expected, behind = alone(run, x, length)
        if length:
            assert_close(padded[row, :length], expected[row], TOLERANCE)
            assert_close(stateless[row, :length], expected[row], TOLERANCE)
        assert_close(after[row], run(more, behind)[0][row], TOLERANCE)


def causality(run: Runner, x: np.ndarray, t: int, tolerance: float = 0.0) -> None:
    """The past does not know the future, by default to the last bit; and the present does see itself."""
    other = x.copy()
    other[:, t:] += 1.0
    before, after = run(x)[0], run(other)[0]
    assert_close(after[:, :t], before[:, :t], tolerance)
    assert np.any(before[:, t] != after[:, t])
    other[:, t:] = NO_NUMBERS[t:, None]
    after = run(other)[0]
    assert_close(after[:, :t], before[:, :t], tolerance)
    assert np.all(np.isnan(after[:, t:]))
