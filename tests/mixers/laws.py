"""The four laws of architecture.md as functions that any mixer's test can call.

split       mixer(concat(a, b)) == concat(mixer(a, s0), mixer(b, s1))
segments    packed documents == each document alone
padding     right-padded rows with a mask == each row alone, states included
causality   y[:, :t] does not change when x[:, t:] changes
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers import Mixer
from tests.tolerances import assert_close

TOLERANCE = 2e-6
"""float32 sums in another order, relative to the largest magnitude; measured 1e-7 to 6e-7"""

MAX_LENGTH = 48
"""every call is padded to one of a few lengths so that programs are compiled once"""


def inputs(rows: int, length: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, length, width)).astype(np.float32)


class Runner:
    """A mixer with parameters that are far from their initial values, called through jit."""

    def __init__(self, mixer: Mixer):
        self.mixer = mixer
        x = jnp.zeros((1, 4, mixer.d_model))
        shapes = jax.eval_shape(mixer.init, jax.random.key(0), x)
        leaves, tree = jax.tree.flatten(shapes)
        generator = np.random.default_rng(7)
        self.variables = tree.unflatten(
            [jnp.asarray(generator.normal(size=leaf.shape) * 0.3, jnp.float32) for leaf in leaves]
        )
        self._apply = jax.jit(mixer.apply)

    def __call__(self, x: Any, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
        y, state = self._apply(self.variables, x, state, **context)
        return np.asarray(y), state

    def fresh(self, rows: int) -> Any:
        return self.mixer.init_state(rows, MAX_LENGTH)


def split_law(run: Runner, x: np.ndarray, cuts: list[int], **context: Any) -> None:
    """Cutting a sequence anywhere changes nothing, and the state only when it is asked for is returned."""
    whole, nothing = run(x, **context)
    assert nothing is None
    state, pieces = run.fresh(len(x)), []
    for begin, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        part = {name: array[:, begin:end] for name, array in context.items()}
        y, state = run(x[:, begin:end], state, **part)
        pieces.append(y)
    assert_close(np.concatenate(pieces, axis=1), whole, TOLERANCE)


def segment_law(run: Runner, x: np.ndarray, lengths: list[int]) -> None:
    """Documents packed into a row do not see each other, even when an id comes back later."""
    ids = np.concatenate([np.full(length, number % 2) for number, length in enumerate(lengths)])
    packed, _ = run(x, segment_ids=np.broadcast_to(ids, x.shape[:2]))
    begin = 0
    for length in lengths:
        alone, _ = run(x[:, begin : begin + length])
        assert_close(packed[:, begin : begin + length], alone, TOLERANCE)
        begin += length


def padding_law(run: Runner, x: np.ndarray, lengths: list[int], more: np.ndarray) -> None:
    """Padding changes no real output, and continuing behind it is continuing behind the last real token."""
    mask = np.arange(x.shape[1]) < np.array(lengths)[:, None]
    garbage = np.where(mask[..., None], x, 1e3).astype(np.float32)
    padded, state = run(garbage, run.fresh(len(x)), mask=mask)
    stateless, _ = run(garbage, mask=mask)
    after, _ = run(more, state)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone_state = run.fresh(1)
        if length:
            alone, alone_state = run(x[one, :length], alone_state)
            assert_close(padded[one, :length], alone, TOLERANCE)
            assert_close(stateless[one, :length], alone, TOLERANCE)
        assert_close(after[one], run(more[one], alone_state)[0], TOLERANCE)


def causality(run: Runner, x: np.ndarray, t: int) -> None:
    """The past does not know the future, to the last bit; and the present does see itself."""
    other = x.copy()
    other[:, t:] += 1.0
    before, after = run(x)[0], run(other)[0]
    np.testing.assert_array_equal(before[:, :t], after[:, :t])
    assert np.any(before[:, t] != after[:, t])
