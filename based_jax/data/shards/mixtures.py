"""Mix rows of several sources by weight.

The source of a row is computed from the row's index. The last source gets the rows n at which
floor(n w + 1/2) increases, where w is its weight divided by the sum of weights; the remaining rows are
renumbered and divided among the other sources in the same way. So each source has its share of the first n
rows, up to one row per source after it, and a run can resume at any row.
"""

import math
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import TokenStream
from based_jax.data.shards.batches import Rows
from based_jax.validate import expect

_PART = re.compile(r"(.+)=([0-9]*\.?[0-9]+)")
_MOST = 1 << 30  # limit of the sum of the integer weights, so that 64-bit arithmetic is exact


def parse_mixture(spec: str) -> dict[str, Fraction] | None:
    """Parse a spec such as "tokens:pile=0.7,code.jsonl=0.3" into weights; None if it names one source.

    A mixture is two or more ``SOURCE=WEIGHT``, separated by commas, unless there is a file of that name.

    Raises:
        ValueError: a weight of 0, weights with too many digits, or a repeated source.
    """
    found = [_PART.fullmatch(part.strip()) for part in spec.split(",")]
    if len(found) < 2 or not all(found) or os.path.exists(spec):
        return None
    parts = [(match[1], match[2]) for match in found if match]
    weights = {name: Fraction(weight) for name, weight in parts}
    expect(len(weights) == len(parts), "data", spec, "each source once")
    expect(all(weight > 0 for weight in weights.values()), "data", spec, "weights above 0")
    expected = f"weights with fewer digits: as integers of the same ratio, a sum below {_MOST}"
    expect(sum(_ratio(list(weights.values()))) < _MOST, "data", spec, expected)
    return weights


@dataclass(frozen=True, eq=False)
class Mixture:
    """Sources for training, each with its share of the tokens; `len` counts all their tokens."""

    names: tuple[str, ...]  # short names, for metrics
    parts: tuple[TokenStream, ...]
    weights: tuple[Fraction, ...]  # above 0, of any sum

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of all sources' text."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the weights, normalized to sum to 1."""
        return tuple(float(weight / sum(self.weights)) for weight in self.weights)

    @property
    def checksum(self) -> int:
        """Return a checksum of the sources, their weights and their order."""
        return zlib.crc32(repr([(part.checksum, *_ratio(self.weights)) for part in self.parts]).encode())


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows of several sources, by weight."""

    sources: tuple[Rows, ...]
    weights: tuple[Fraction, ...]

    def read(self, rows: Int64[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Rows.read`."""
        source, own = assign(rows, self.weights)
        batch: dict[str, np.ndarray] = {}
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            for name, array in self.sources[number].read(own[mine]).items():
                batch.setdefault(name, np.empty((rows.size, array.shape[1]), array.dtype))[mine] = array
        return batch


def assign(
    rows: Int64[np.ndarray, " n"], weights: Sequence[Fraction]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Return the source of each row, and the row's index within that source."""
    totals = list(accumulate(_ratio(weights)))
    source, own = np.zeros_like(rows), np.array(rows)
    for number in range(len(weights) - 1, 0, -1):
        left = np.flatnonzero(source == 0)  # rows not yet assigned to a later source
        if not left.size:
            break
        part, whole = totals[number - 1], totals[number]
        before, after = (_share(own[left] + ahead, part, whole) for ahead in (0, 1))
        taken = after == before
        source[left[taken]] = number
        own[left] = np.where(taken, own[left] - before, before)
    return source, own


def _share(rows: Int64[np.ndarray, " n"], part: int, whole: int) -> Int64[np.ndarray, " n"]:
    """Compute floor(rows part / whole + 1/2) without overflow."""
    cycles, offsets = np.divmod(rows, whole)
    return cycles * part + (2 * offsets * part + whole) // (2 * whole)


def _ratio(weights: Sequence[Fraction]) -> list[int]:
    """Return the smallest integers in the ratio of the weights."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    return [weight // math.gcd(*whole) for weight in whole]
