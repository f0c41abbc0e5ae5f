"""Where the tokens of a call stand, as data, and rows rolled so that some stand elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from based_jax import ops
from tests.arrays import stream_at

Arrays = dict[str, np.ndarray]


class Placement(NamedTuple):
    """Where the tokens of a call stand; every field is None in a call without arguments for them."""

    segment_ids: Any = None
    mask: Any = None
    length: Any = None
    start: Any = None
    segment: Any = None

    @property
    def context(self) -> dict[str, Any]:
        """The arguments of an op."""
        return {"segment_ids": self.segment_ids, "mask": self.mask}

    def after(self, state: Callable[[ops.Stream], Any]) -> Any:
        """The initial state with its stream, or None."""
        return None if self.length is None else state(stream_at(self.length, self.start, self.segment))

    @property
    def counts(self) -> np.ndarray:
        """Real tokens of each row."""
        return self.mask.sum(axis=1)

    @property
    def begins(self) -> np.ndarray:
        """Tokens, (B, N), that begin a segment: they do not see what was before them."""
        before = np.concatenate([self.segment[:, None], self.segment_ids[:, :-1]], axis=1)
        begins = self.segment_ids != before
        begins[:, 0] |= self.length == 0
        return begins & self.mask

    def moved(self) -> Arrays:
        """Length, start and segment after the call."""
        index = np.arange(self.mask.shape[1])
        last = np.where(self.begins, index, -1).max(axis=1)
        segment = np.where(
            self.counts > 0, self.segment_ids[np.arange(len(self.length)), self.counts - 1], self.segment
        )
        start = np.where(last >= 0, self.length + last, self.start)
        return {"length": self.length + self.counts, "start": start, "segment": segment}


def nowhere(batch: int) -> Arrays:
    """The stream of rows without tokens."""
    return dict.fromkeys(("length", "start", "segment"), np.zeros(batch, np.int32))


def roll(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Row b with its token `by[b]` first."""
    return np.stack([np.roll(row, -shift, axis=0) for row, shift in zip(x, by, strict=True)])


def where(mask: np.ndarray, x: np.ndarray, y: Any) -> np.ndarray:
    """As `np.where`, for arrays with more axes than the mask."""
    axes = max(np.ndim(x), np.ndim(y)) - mask.ndim
    return np.where(mask.reshape(*mask.shape, *[1] * axes), x, y)
