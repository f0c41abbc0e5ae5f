"""What training and evaluation read tokens from, in memory or in files."""

import functools
from typing import Protocol

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens


class TokenStream(Protocol):
    """Tokens of documents in one or more shards, each of them a stream of its own; `len` counts them all."""

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the documents' text."""
        ...

    @functools.cached_property
    def checksum(self) -> int:
        """A number that differs for other tokens, to notice that a run resumes on other data."""
        ...

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        """Tokens of each shard."""
        ...

    def __len__(self) -> int: ...

    def shard(self, number: int) -> PackedTokens:
        """One of the shards; its arrays may be memory-mapped."""
        ...

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """How many windows of `length` targets there are; `drop_last` leaves out the shards' short ones."""
        ...

    def window(self, i: int, length: int) -> dict[str, np.ndarray]:
        """Window `i`, those of the first shard first; see `PackedTokens.window`."""
        ...
