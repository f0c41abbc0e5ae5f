"""The interface from which training and evaluation read tokens, in memory or in files."""

import functools
from typing import Protocol

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens


class TokenStream(Protocol):
    """Tokens of documents in one or more shards, each a stream of its own; `len` counts all tokens."""

    @property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of the documents' text."""
        ...

    @functools.cached_property
    def checksum(self) -> int:
        """Return a checksum of the tokens, to detect that a run resumes on other data."""
        ...

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        """Return the number of tokens of each shard."""
        ...

    def __len__(self) -> int: ...

    def shard(self, number: int) -> PackedTokens:
        """Return shard `number`; its arrays may be memory-mapped."""
        ...

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """Count the windows of `length` targets; `drop_last` excludes short ones at the ends of shards."""
        ...

    def window(self, i: int, length: int) -> dict[str, np.ndarray]:
        """Return window `i`, counted over all shards in order; see `PackedTokens.window`."""
        ...
