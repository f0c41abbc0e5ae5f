"""The laws that every mixer obeys, as functions that raise an AssertionError if one does not.

split       mixer(concat(a, b)) == concat(mixer(a, s0), mixer(b, s1)), and all streams of a state are equal
segments    packed documents == each document alone
padding     padded rows with a mask == each row alone, states included: padding before, after, on both sides
causality   y[:, :t] does not change when x[:, t:] changes
containment NaN and infinity stay in their document, and never reach earlier tokens or padding
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers import Mixer
from based_jax.mixers.module import streams
from based_jax.testing.arrays import assert_close, normals

TOLERANCE = 2e-6
"""float32 sums in another order, relative to the largest magnitude; measured 1e-7 to 6e-7"""

ROWS, LENGTH = 2, 13
"""Every call has one of three forms, since compiling a mixer takes most of a law's time: whole rows without a
state (`packed`), rows that continue (`continued`), both with masks and segment ids, and one token without
(`stepped`). Rows are cut by masks."""

MAX_LENGTH = 48
"""capacity of a state in tokens"""

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options for the compiler: these programs run a few times, optimizing takes most of the time"""


def inputs(rows: int, length: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, length, width)).astype(np.float32)


class Runner:
    """A mixer with parameters that are far from their initial values, called through jit.

    Args:
        mixer: with its options.
        tolerance: of the laws, relative to the largest magnitude of the outputs.
        max_length: capacity of the states in tokens.
    """

    def __init__(self, mixer: Mixer, tolerance: float = TOLERANCE, max_length: int = MAX_LENGTH):
        self.mixer, self.tolerance, self.max_length = mixer, tolerance, max_length
        x = jax.ShapeDtypeStruct((1, 4, mixer.d_model), jnp.float32)
        self.variables = normals(mixer.init, x, dtype=jnp.float32)
        self._apply = jax.jit(mixer.apply, compiler_options=QUICKLY)

    def __call__(self, x: Any, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
        y, state = self._apply(self.variables, x, state, **context)
        return np.asarray(y), state

    def fresh(self, rows: int) -> Any:
        return self.mixer.init_state(rows, self.max_length)


def packed(run: Runner, x: np.ndarray, **context: Any) -> np.ndarray:
    """Return the outputs of whole rows, as in training; by default one document without padding."""
    y, nothing = run(x, **everything(x, context))
    assert nothing is None  # a state is returned only if one was given
    return y


def continued(run: Runner, x: np.ndarray, state: Any, **context: Any) -> tuple[np.ndarray, Any]:
    """Return outputs and state of rows that continue from a state."""
    return run(x, state, **everything(x, context))


def everything(x: np.ndarray, context: dict[str, Any]) -> dict[str, Any]:
    """Add a mask and segment ids where missing, so that rows with and without them share a program."""
    return {"mask": np.ones(x.shape[:2], bool), "segment_ids": np.zeros(x.shape[:2], int)} | context


def stepped(run: Runner, x: np.ndarray, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
    """Return outputs and state of one call per token: the reference for a row alone."""
    state, outputs = run.fresh(len(x)) if state is None else state, [x[:, :0]]
    for t in range(x.shape[1]):
        y, state = run(x[:, t : t + 1], state, **{name: a[:, t : t + 1] for name, a in context.items()})
        outputs.append(y)
    return np.concatenate(outputs, axis=1), state


def in_chunks(run: Runner, x: np.ndarray, sizes: list[int], **context: Any) -> tuple[np.ndarray, Any]:
    """Return outputs and state of one call per chunk; each call has all tokens, the later ones masked."""
    state, chunks, begin = run.fresh(len(x)), [x[:, :0]], 0
    index = np.arange(x.shape[1])
    for size in sizes:
        rolled = {name: np.roll(a, -begin, axis=1) for name, a in {**everything(x, context), "x": x}.items()}
        rolled["mask"] = rolled["mask"] & (index < size)
        y, state = run(rolled.pop("x"), state, **rolled)
        chunks.append(y[:, :size])
        begin += size
    return np.concatenate(chunks, axis=1), state


def no_numbers(length: int) -> np.ndarray:
    """Return values (length, 1) that padding, other documents and later tokens may have.

    The cubes of +-1e30 overflow float32.
    """
    return np.resize(np.array([np.nan, np.inf, 1e30, -np.inf, -1e30], np.float32), length)[:, None]


def split_law(run: Runner, x: np.ndarray, sizes: list[int], **context: Any) -> None:
    """Check that cutting a sequence changes nothing: inside a document, between two, or in padding."""
    whole, real = packed(run, x, **context), everything(x, context)["mask"][..., None]
    parts, state = in_chunks(run, x, sizes, **context)
    assert_close(np.where(real, parts, 0), np.where(real, whole, 0), run.tolerance)
    first, *others = streams(state)
    for other in others:  # a loop that generates carries one stream for all layers
        jax.tree.map(np.testing.assert_array_equal, other, first)


def segment_law(run: Runner, x: np.ndarray, lengths: list[int]) -> None:
    """Check that documents packed into a row are independent, even if a segment id occurs again later."""
    ids = np.concatenate([np.full(length, number % 2) for number, length in enumerate(lengths)])
    together, begin = packed(run, x, segment_ids=np.broadcast_to(ids, x.shape[:2])), 0
    for length in lengths:
        document = slice(begin, begin + length)
        assert_close(together[:, document], stepped(run, x[:, document])[0], run.tolerance)
        begin += length


def containment(run: Runner, x: np.ndarray, cut: int, begin: int = 4, bad: int = 6, end: int = 9) -> None:
    """Check that NaN and infinity reach later tokens of their document, over calls too, and no others.

    The document has the tokens from `begin` to `end`; those from `bad` on are no numbers.
    """
    index = np.arange(x.shape[1])
    ids = np.broadcast_to((index >= begin).astype(int) + (index >= end), x.shape[:2])
    broken = (ids == 1) & (index >= bad)
    inputs = np.where(broken[..., None], no_numbers(x.shape[1]), x)
    clean = packed(run, x, segment_ids=ids)
    expect_broken(packed(run, inputs, segment_ids=ids), clean, broken, run.tolerance)
    parts, _ = in_chunks(run, inputs, [cut, x.shape[1] - cut], segment_ids=ids)
    expect_broken(parts, clean, broken, run.tolerance)


def expect_broken(
    y: np.ndarray, expected: np.ndarray, broken: np.ndarray, tolerance: float = TOLERANCE
) -> None:
    """Check that y is NaN at broken tokens, and as expected elsewhere."""
    assert np.all(np.isnan(y[broken]))
    y, expected = (np.where(broken[..., None], 0, array) for array in (y, expected))
    assert_close(y, expected, tolerance)


def padding_law(
    run: Runner, x: np.ndarray, lengths: list[int], more: np.ndarray, before: Sequence[int] = (0,) * ROWS
) -> None:
    """Check that padding changes no real output, and that calls continue after the last real token.

    Args:
        lengths: number of real tokens of each row.
        more: inputs of the next call.
        before: number of padding tokens before them in each row.
    """
    index = np.arange(x.shape[1]) - np.array(before)[:, None]
    mask = (index >= 0) & (index < np.array(lengths)[:, None])
    garbage = np.where(mask[..., None], x, no_numbers(x.shape[1]))
    padded, state = continued(run, garbage, run.fresh(len(x)), mask=mask)
    stateless = packed(run, garbage, mask=mask)
    after, _ = continued(run, more, state)
    for row, length in enumerate(lengths):
        expected, last = stepped(run, x[:, before[row] : before[row] + length])
        if length:
            assert_close(padded[row, mask[row]], expected[row], run.tolerance)
            assert_close(stateless[row, mask[row]], expected[row], run.tolerance)
        assert_close(after[row], continued(run, more, last)[0][row], run.tolerance)


def causality(run: Runner, x: np.ndarray, *cuts: int, tolerance: float = 0.0) -> None:
    """Check that outputs depend on their own token and, by default to the last bit, on no later ones.

    Args:
        cuts: tokens from which on the inputs change, one at a time.
    """
    before = packed(run, x)
    for t in cuts:
        other = x.copy()
        other[:, t:] += 1.0
        after = packed(run, other)
        assert_close(after[:, :t], before[:, :t], tolerance)
        assert np.any(before[:, t] != after[:, t])
        other[:, t:] = no_numbers(x.shape[1])[t:]
        after = packed(run, other)
        assert_close(after[:, :t], before[:, :t], tolerance)
        assert np.all(np.isnan(after[:, t:]))
