"""Mixtures of several sources for training, by weight."""

import os
import re
import zlib
from dataclasses import dataclass

from based_jax.data.packed import TokenStream
from based_jax.validate import expect

_PART = re.compile(r"(.+)=([0-9]*\.?[0-9]+)")


def parse_mixture(spec: str) -> dict[str, float] | None:
    """Parse a spec such as "tokens:pile=0.7,code.jsonl=0.3" into weights; None if it names one source.

    A mixture is two or more ``SOURCE=WEIGHT``, separated by commas, unless there is a file of that name.

    Raises:
        ValueError: a weight of 0, or a repeated source.
    """
    found = [_PART.fullmatch(part.strip()) for part in spec.split(",")]
    if len(found) < 2 or not all(found) or os.path.exists(spec):
        return None
    parts = [(match[1], match[2]) for match in found if match]
    weights = {name: float(weight) for name, weight in parts}
    expect(len(weights) == len(parts), "data", spec, "each source once")
    expect(all(weight > 0 for weight in weights.values()), "data", spec, "weights above 0")
    return weights


@dataclass(frozen=True, eq=False)
class Mixture:
    """Sources for training, each with its share of the tokens; `len` counts all their tokens."""

    names: tuple[str, ...]  # short names, for metrics
    parts: tuple[TokenStream, ...]
    weights: tuple[float, ...]  # above 0, of any sum

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of all sources' text."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the weights, normalized to sum to 1."""
        return tuple(weight / sum(self.weights) for weight in self.weights)

    @property
    def checksum(self) -> int:
        """Return a checksum of the sources, their weights and their order."""
        return zlib.crc32(repr(([part.checksum for part in self.parts], self.shares)).encode())
