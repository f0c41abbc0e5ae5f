"""Choose the held-out split of token shards, with no text in both splits.

As in `based_jax.data.splits`, a document is held out if the SHA-256 of its text, read as a number in [0, 1),
is below the fraction, or if it has one of the names; and the held-out split has every text once. Differences:

- With a limit in bytes, the split has the texts with the smallest hashes that fit together. All others below
  the fraction are used for training, after the rest, as is a text that alone exceeds the limit.
- No document is cut. The split may be empty, and names cannot be combined with a limit.
- The split is in the order of the sources.
"""

import numpy as np
from jaxtyping import Bool, Int64, UInt8

COPY = "copy of a held-out document"


def choose(
    digests: UInt8[np.ndarray, "n 32"], sizes: Int64[np.ndarray, " n"], max_bytes: int | None
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Choose among the documents below the fraction, by the SHA-256 and the bytes of their texts.

    Returns:
        the documents to hold out, and the copies of them, which are in neither split.
    """
    texts = np.ascontiguousarray(digests).view("V32")[:, 0]
    _, firsts, inverse = np.unique(
        texts, return_index=True, return_inverse=True
    )  # in the order of the hashes
    fits = np.ones(len(firsts), bool)
    if max_bytes is not None:
        fits = sizes[firsts] <= max_bytes
        fits[fits] = np.cumsum(sizes[firsts][fits]) <= max_bytes
    chosen = fits[inverse]
    is_first = np.zeros(len(texts), bool)
    is_first[firsts] = True
    return chosen & is_first, chosen & ~is_first


def positions(digests: UInt8[np.ndarray, "n 32"]) -> np.ndarray:
    """Return the positions in [0, 1) of texts with these hashes, float64 (n,); see `splits.position`."""
    first = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (first >> np.uint64(11)) / float(1 << 53)
