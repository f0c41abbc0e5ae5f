"""Whether a layer obeys its laws, and the smallest input with which it does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from based_jax.testing.layers.laws import LAWS, Difference, Law, Layer, Sizes
from based_jax.validate import expect, expect_integer

BORDERS = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Sizes around which chunks, tiles and rings end"""

MOST_SHRINKS = 200
"""Inputs that are tried for a smaller one"""


@dataclass(frozen=True)
class Outcome:
    """One law of a layer.

    Attributes:
        status: "holds", "broken" or "not checked".
        error: largest difference of all inputs, or of the smallest that breaks the law; infinite if a call
            raised or returned NaN.
        inputs: number that was tried until the law broke.
        sizes: parts of the smallest input that breaks the law, in tokens.
        detail: what the layer does not support, or how the smallest input breaks the law, in words.
    """

    law: str
    status: str
    error: float = 0.0
    inputs: int = 0
    sizes: Sizes = ()
    detail: str = ""

    def __str__(self) -> str:
        detail = self.detail or f"largest error {self.error:.1e} of {self.inputs} inputs"
        return f"{self.law:16}  {self.status:11}  {detail}"


@dataclass(frozen=True)
class Report:
    """The outcomes of a layer's laws; `str` gives a line for each."""

    layer: str
    outcomes: tuple[Outcome, ...]

    def of(self, status: str) -> list[str]:
        """Return the laws with this status."""
        return [outcome.law for outcome in self.outcomes if outcome.status == status]

    def raise_if_broken(self) -> None:
        """Raise an AssertionError with the report if a law is broken."""
        if self.of("broken"):
            raise AssertionError(str(self))

    def __str__(self) -> str:
        head = f"{self.layer} breaks {', '.join(self.of('broken')) or 'no law that was checked'}"
        return "\n".join([head, *map(str, self.outcomes)])


def check_layer(
    layer: Layer, laws: Sequence[str] | None = None, *, seed: int = 0, examples: int = 20
) -> Report:
    """Check that a layer obeys its laws.

    Inputs are drawn at random, from short to long. The first that breaks a law is made smaller, one part at a
    time, until no smaller one breaks it.

    Args:
        layer: its functions, and what it supports.
        laws: names from `LAWS`; None for all.
        seed: of the inputs, at least 0.
        examples: inputs for each law, at least 1.

    Returns:
        the report. A law that needs what the layer does not support is "not checked", and a call that raises
        an exception breaks the law.

    Raises:
        ValueError: an unknown law.
    """
    names = list(LAWS if laws is None else laws)
    unknown = [name for name in names if name not in LAWS]
    expect(not unknown, "laws", unknown, f"names from {', '.join(LAWS)}")
    expect_integer("seed", seed, 0)
    expect_integer("examples", examples, 1)
    return Report(layer.name, tuple(_outcome(layer, name, seed, examples) for name in names))


def _outcome(layer: Layer, name: str, seed: int, examples: int) -> Outcome:
    law = LAWS[name]
    if missing := law.missing(layer):
        return Outcome(name, "not checked", detail=missing)
    inputs, largest, tolerance = list(_inputs(layer, law, seed, examples)), 0.0, layer.tolerance
    for tried, sizes in enumerate(inputs, start=1):

        def measure(sizes: Sizes, seeds: tuple[int, int] = (seed, tried)) -> Difference:
            return _measure(layer, law, sizes, seeds)

        found = measure(sizes)
        largest = max(largest, found.error)
        if found.error > tolerance:
            sizes, found = _smallest(measure, sizes, law, tolerance)
            by = f"{found.error:.1e} of the largest value in the " if math.isfinite(found.error) else ""
            detail = f"{' + '.join(map(str, sizes))} tokens ({law.names}): {by}{found.where}"
            return Outcome(name, "broken", found.error, tried, sizes, detail)
    return Outcome(name, "holds", largest, len(inputs))


def _measure(layer: Layer, law: Law, sizes: Sizes, seeds: tuple[int, int]) -> Difference:
    try:
        differences = law.check(layer, sizes, np.random.default_rng(seeds))
        return max(differences, key=lambda difference: difference.error)
    except Exception as error:  # of any framework: the layer does not do what it says
        return Difference(math.inf, f"a call raised {type(error).__name__}: {error}")


def _inputs(layer: Layer, law: Law, seed: int, examples: int) -> Iterator[Sizes]:
    """Draw sizes of parts, from the smallest to such that fill the longest row."""
    draw, borders = np.random.default_rng(seed), [size for size in BORDERS if size <= layer.longest] or [1]
    yield law.least
    for number in range(1, examples):
        count = int(draw.integers(len(law.least), law.most + 1))
        most = max(1, layer.longest // count * (number + 1) // examples)
        sizes = np.where(
            draw.random(count) < 0.5, draw.choice(borders, count), draw.integers(0, most + 1, count)
        )
        yield tuple(np.clip(sizes, _least(law, count), most).tolist())


def _least(law: Law, count: int) -> Sizes:
    return (*law.least, *[law.least[-1]] * (count - len(law.least)))


def _smallest(
    measure: Callable[[Sizes], Difference], sizes: Sizes, law: Law, tolerance: float
) -> tuple[Sizes, Difference]:
    """Return sizes after which no smaller ones that are next to them break the law, and their difference."""
    found, left = measure(sizes), MOST_SHRINKS
    candidates = _smaller(sizes, law)
    while left and (candidate := next(candidates, None)):
        left -= 1
        other = measure(candidate)
        if other.error > tolerance and math.isfinite(other.error) == math.isfinite(found.error):
            sizes, found, candidates = candidate, other, _smaller(candidate, law)
    return sizes, found


def _smaller(sizes: Sizes, law: Law) -> Iterator[Sizes]:
    """Yield sizes without a part, and with one that is the least, half as large, or one token smaller."""
    if len(sizes) > len(law.least):
        yield from (sizes[:i] + sizes[i + 1 :] for i in range(len(sizes)))
    for i, (size, least) in enumerate(zip(sizes, _least(law, len(sizes)), strict=True)):
        for smaller in dict.fromkeys((least, (size + least) // 2, size - 1)):
            if least <= smaller < size:
                yield (*sizes[:i], smaller, *sizes[i + 1 :])
