"""The frame around the `__call__` of every mixer: what is padding or no number stays where it is."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
import numpy as np

from based_jax.ops.not_numbers import broken_tokens, numbers, with_broken
from based_jax.ops.stream import advance

_FRAMED: ContextVar[Any] = ContextVar("framed", default=None)


def framed(call: Callable[..., Any]) -> Callable[..., Any]:
    """A mixer's `__call__` whose inputs are zeros under the mask and where they are NaN or infinite.

    Outputs at the latter, and at what depends on them, are NaN: later tokens of the document, in this call
    and in the next ones, or all its tokens without causality.
    """

    @functools.wraps(call)
    def wrapper(self: Any, x: Any, state: Any = None, **context: Any) -> Any:
        if _FRAMED.get() is self:  # the call of a base class, inside
            return call(self, x, state, **context)
        x = self.check_input(x)
        before = getattr(state, "stream", None)
        segment_ids, mask = (_on_device(context.get(name)) for name in ("segment_ids", "mask"))
        places, after = advance(before, x.shape[0], x.shape[1], segment_ids, mask)
        broken, behind = broken_tokens(x, places, before, after, self.causal)
        token = _FRAMED.set(self)
        try:
            y, state = call(self, numbers(x, mask), state, **context)
        finally:
            _FRAMED.reset(token)
        return jnp.where(broken[..., None], jnp.nan, y), with_broken(state, behind)

    return wrapper


def _on_device(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x
