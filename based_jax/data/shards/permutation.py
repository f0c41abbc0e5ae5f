"""Compute pseudo-random permutations of [0, size) entry by entry, without storing them.

A Feistel network on pairs (x, y) of [0, side) x [0, side): each round maps a pair to (y, x + f(y) mod side),
which is invertible for any f (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, sections 4
and 5). An image that is not below `size` goes through the network again until it is; few do, as side^2 is
only slightly larger than `size`. f is the mixing function of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014) of y plus the round's key.
"""

import hashlib
import math

import numpy as np
from jaxtyping import Int64, UInt64

_ROUNDS = 6
_SMALLEST_SIDE = 4  # with smaller sides a round has few possible functions
_BITS = 32  # of f: sides are below 2^31, so its product with a side fits in 64 bits


def make_key(*numbers: int) -> int:
    """Hash integers to a 64-bit key, the same in every version and on every machine."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permuted(numbers: Int64[np.ndarray, " n"], size: int, key: int) -> Int64[np.ndarray, " n"]:
    """Apply the permutation of `size` (< 2^60) and `key` to `numbers`, each in [0, size)."""
    side = max(_SMALLEST_SIDE, math.isqrt(max(size - 1, 0)) + 1)
    keys = [np.uint64(make_key(key, number)) for number in range(_ROUNDS)]
    images = _network(numbers.astype(np.uint64), side, keys)
    while (outside := np.flatnonzero(images >= size)).size:
        images[outside] = _network(images[outside], side, keys)
    return images.astype(np.int64)


def _network(values: UInt64[np.ndarray, " n"], side: int, keys: list[np.uint64]) -> UInt64[np.ndarray, " n"]:
    left, right = np.divmod(values, np.uint64(side))
    for key in keys:
        total = left + ((_mixed(right + key) >> np.uint64(64 - _BITS)) * np.uint64(side) >> np.uint64(_BITS))
        left, right = right, np.where(total < side, total, total - np.uint64(side))
    return left * np.uint64(side) + right


def _mixed(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
