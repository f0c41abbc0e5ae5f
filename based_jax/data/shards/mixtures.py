"""Mixtures: rows of several sources, each with its share of all tokens.

Which source a row is of is computed from the row's number. Of the first n rows the last source takes those
at which floor(n w + 1/2) steps up, where w is its weight over that of all sources; the rows that are left
are numbered anew and divided among the others in the same way. So of the first n rows each source has its
share, up to a row for every source after it, and a run continues at any row.
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

from based_jax.data.shards.batches import Rows
from based_jax.data.streams import TokenStream
from based_jax.validate import expect

_PART = re.compile(r"(.+)=([0-9]*\.?[0-9]+)")
_MOST = 1 << 30  # of the weights' sum as integers, so that all is exact in 64 bits


def parse_mixture(spec: str) -> dict[str, Fraction] | None:
    """Sources and weights of a spec such as "tokens:pile=0.7,code.jsonl=0.3"; None if it names one source.

    A mixture is two or more parts ``SOURCE=WEIGHT`` between commas, unless there is a file of that name.

    Raises:
        ValueError: a weight of 0, weights with too many digits, or a source twice.
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
    """Sources for training, and the share of the tokens that each one has; `len` counts all their tokens."""

    names: tuple[str, ...]  # short ones, for metrics
    parts: tuple[TokenStream, ...]
    weights: tuple[Fraction, ...]  # above 0, of any sum

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all sources' text."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights, scaled to a sum of 1."""
        return tuple(float(weight / sum(self.weights)) for weight in self.weights)

    @property
    def checksum(self) -> int:
        """A number that differs for other sources, weights, or another order of them."""
        return zlib.crc32(repr([(part.checksum, *_ratio(self.weights)) for part in self.parts]).encode())


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows of several sources, by weight."""

    sources: tuple[Rows, ...]
    weights: tuple[Fraction, ...]

    def read(self, rows: Int64[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """As `Rows.read`."""
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
    """The source of each row, and the row's number among those of that source."""
    totals = list(accumulate(_ratio(weights)))
    source, own = np.zeros_like(rows), np.array(rows)
    for number in range(len(weights) - 1, 0, -1):
        left = np.flatnonzero(source == 0)  # rows that are not yet of a later source
        if not left.size:
            break
        part, whole = totals[number - 1], totals[number]
        before, after = (_share(own[left] + ahead, part, whole) for ahead in (0, 1))
        taken = after == before
        source[left[taken]] = number
        own[left] = np.where(taken, own[left] - before, before)
    return source, own


def _share(rows: Int64[np.ndarray, " n"], part: int, whole: int) -> Int64[np.ndarray, " n"]:
    """floor(rows part / whole + 1/2), without a product that does not fit."""
    cycles, offsets = np.divmod(rows, whole)
    return cycles * part + (2 * offsets * part + whole) // (2 * whole)


def _ratio(weights: Sequence[Fraction]) -> list[int]:
    """The smallest integers in the ratio of the weights."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    return [weight // math.gcd(*whole) for weight in whole]
