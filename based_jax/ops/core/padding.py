"""Padding before the tokens of a row, or on both sides: rows are shifted until all padding is on the right.

Models, mixers and ops are defined for padding on the right. Whichever of them a caller enters first shifts
its rows to the left, computes, and shifts the outputs back. States need no shift: they know real tokens only.
"""

import contextlib
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import lift, map_arrays
from based_jax.typing import Array, Bool
from based_jax.validate import expect_array

T = TypeVar("T")

_ALIGNED: Any = jax.make_user_context(False)
"""part of the key of `jit`'s cache of traced programs"""


@contextlib.contextmanager
def aligned() -> Generator[None]:
    """Declare that padding is on the right, while tracing what the caller has shifted."""
    with _ALIGNED(True):
        yield


def may_precede(mask: Bool[Array, "B N"] | np.ndarray | None) -> bool:
    """Return whether padding may come before real tokens: False where it is known, or declared, not to."""
    if mask is None or _ALIGNED.value or sharding.is_sharded():
        return False
    if isinstance(mask, Tracer):
        return True
    known = np.asarray(mask)
    return known.ndim == 2 and known.dtype == bool and bool((known.any(axis=1) & ~known[:, :1].all(1)).any())


class Shift:
    """Moves rows so that their first real token is their first token, and back."""

    def __init__(self, mask: Bool[Array, "B N"] | np.ndarray, tokens: Any) -> None:
        """Take a mask of `tokens`, (B, N, ...)."""
        expect_array("mask", mask, tokens.shape[:2], "bool")
        self.before = jnp.argmax(jnp.asarray(mask), axis=1).astype(jnp.int32)[:, None]
        """tokens of padding before the first real token, (B, 1); 0 in a row without one"""
        self.length = mask.shape[1]

    def left(self, rows: T) -> T:
        """Shift all arrays (B or 1, N, ...) of a pytree to the left; what leaves comes in on the right."""
        return map_arrays(lambda x: self._moved(x, self.before), rows)

    def back(self, rows: T) -> T:
        """Undo `left`."""
        return map_arrays(lambda x: self._moved(x, -self.before), rows)

    def _moved(self, x: Array, by: Array) -> Array:
        if np.shape(x)[:2] not in ((1, self.length), (by.shape[0], self.length)):
            return x  # the checks of the call refuse it
        index = (jnp.arange(self.length, dtype=jnp.int32) + by) % self.length
        x = jnp.broadcast_to(jnp.asarray(x), (by.shape[0], *x.shape[1:]))
        return jnp.take_along_axis(x, lift(index, x), axis=1)


def shifted(
    op: Callable[..., Any], names: Sequence[str], signature: inspect.Signature, args: Any, kwargs: Any
) -> Any:
    """Call an op whose padding `may_precede` its tokens; arrays of the arguments `names` have tokens."""
    given = dict(signature.bind(*args, **kwargs).arguments)
    first: Any = next(iter(jax.tree.leaves(given[names[0]])), None)
    if np.ndim(first) < 2:
        with aligned():
            return op(**given)  # whose checks refuse it
    shift = Shift(given["mask"], first)
    moved = {name: shift.left(given[name]) for name in names if given.get(name) is not None}
    with aligned():
        results = op(**(given | moved))
    if given.get("return_state"):
        *outputs, state = results
        return *shift.back(outputs), state
    return shift.back(results)
