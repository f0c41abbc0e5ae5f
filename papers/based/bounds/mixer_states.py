"""Play the index game with the library's mixers: how many of n bits their states hold (Based, theorem F.3).

All 2^n strings run through a mixer with random parameters, a token for each pair (j, x_j), in float64. States
that differ let Bob look up every bit, equal states do not. Then each number of the state is rounded to fewer
and fewer bits: while all states differ, numbers times bits is at least n. The bound counts bits for this
reason: GLA of width 1 has a state of one number, which takes 9 bits for n = 4, 13 for 8 and 20 for 10.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import mixers
from based_jax.mixers import Mixer
from papers.based.bounds.degree import points
from papers.based.bounds.index_game import Collision, collide

FINEST = 20
"""Most bits of a number that are compared: enough for all states, and coarse compared with rounding."""

NOISE = 1e-9
"""Numbers of the state whose values differ by less, relative to their size, do not count."""


@dataclass(frozen=True)
class States:
    """A mixer's states after all strings of n bits."""

    mixer: str
    length: int  # n
    numbers: int  # numbers of the state that differ between strings
    distinct: int  # different states, of 2^n, with `FINEST` bits a number
    bits: int | None  # the fewest bits a number, the same for all, with which all 2^n differ
    collision: Collision | None  # two strings with one state, and where they differ

    @property
    def recalls(self) -> bool:
        """Whether Bob can look up every bit."""
        return self.distinct == 2**self.length

    @property
    def size(self) -> int | None:
        """Bits of the state: numbers times `bits`, at least n; None if strings collide."""
        return None if self.bits is None else self.numbers * self.bits


def run(name: str, length: int, d_model: int = 8, seed: int = 0, **options: Any) -> States:
    """Play the index game with a mixer on random tokens; all 2^length strings are one batch."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        mixer = mixers.make(name, d_model=d_model, dtype=jnp.float64, **options)
        numbers = _states(mixer, length, rng)
    # Only numbers that differ between rows count, scaled to 0 to 1.
    low, high = numbers.min(axis=0), numbers.max(axis=0)
    varies = high - low > NOISE * np.abs(numbers).max(axis=0)
    numbers = (numbers[:, varies] - low[varies]) / (high - low)[varies]
    different, row_of = distinct(numbers, FINEST)
    fewest = (bits for bits in range(1, FINEST + 1) if distinct(numbers, bits)[0] == 2**length)
    strings = ([tuple(map(int, np.binary_repr(i, length))) for i in pair] for pair in enumerate(row_of))
    collision = next((collide(first, string) for string, first in strings if string != first), None)
    return States(name, length, numbers.shape[1], different, next(fewest, None), collision)


def _states(mixer: Mixer, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return (2^n, all numbers of a state)."""
    strings = points(length).astype(int)
    tokens = 2 * np.arange(length) + strings
    x = rng.normal(size=(2 * length, mixer.d_model))[tokens]
    ids = {"tokens": tokens} if mixer.wants_tokens else {}
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), x, **ids)
    parameters = jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape), shapes)
    _, state = jax.jit(mixer.apply)(parameters, x, mixer.init_state(len(x), length, jnp.float64), **ids)
    rows = [np.asarray(leaf).reshape(len(x), -1) for leaf in jax.tree.leaves(state)]
    # The imaginary parts are 0 for most states; such numbers are left out later.
    return np.hstack([part for row in rows for part in (np.real(row), np.imag(row))]).astype(np.float64)


def distinct(numbers: np.ndarray, bits: int) -> tuple[int, np.ndarray]:
    """Count the rows that differ in numbers of so many bits; return each row's first equal row, too."""
    levels = np.rint(numbers * (2**bits - 1)).astype(np.int64)
    if levels.shape[1] == 0:
        return 1, np.zeros(len(levels), dtype=int)
    _, first, inverse = np.unique(levels, axis=0, return_index=True, return_inverse=True)
    return len(first), first[inverse.reshape(-1)]
