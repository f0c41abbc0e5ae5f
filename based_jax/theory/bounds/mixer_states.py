"""The index game with the library's mixers: what their states tell of n bits (Based, theorem F.3).

All 2^n strings run through a mixer with random parameters, a token for each pair (j, x_j), in float64. States
that differ let Bob look up every bit, states that are equal do not. Then each number of the state is rounded
to fewer and fewer bits: as long as all states differ, numbers times bits is at least n. That is why the bound
is in bits: GLA of width 1 has a state of one number, which takes 9 bits for n = 4, 13 for 8 and 20 for 10.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import mixers
from based_jax.mixers import Mixer
from based_jax.theory.bounds.degree import points
from based_jax.theory.bounds.index_game import Collision, collide
from based_jax.validate import expect

FINEST = 20
"""Bits of a number that are compared at most: enough for all states, and coarse against rounding."""

NOISE = 1e-9
"""A number of the state whose values differ by less, relative to their size, tells nothing."""


@dataclass(frozen=True)
class States:
    """A mixer's states behind all strings of n bits.

    Attributes:
        mixer: its name.
        length: n.
        numbers: how many numbers of the state differ from string to string.
        distinct: how many states differ, of 2^n, with `FINEST` bits a number.
        bits: the fewest bits a number, the same for all, with which all 2^n differ; None if they do not.
        collision: two strings with one state, and where they differ; None without any.
    """

    mixer: str
    length: int
    numbers: int
    distinct: int
    bits: int | None
    collision: Collision | None

    @property
    def recalls(self) -> bool:
        """Whether Bob can look up every bit."""
        return self.distinct == 2**self.length

    @property
    def size(self) -> int | None:
        """Bits of the state: numbers times `bits`, at least n; None if strings collide."""
        return None if self.bits is None else self.numbers * self.bits


def run(name: str, length: int, d_model: int = 8, seed: int = 0, **options: Any) -> States:
    """Play the index game with a mixer.

    Args:
        name: of the mixer, in `mixers.names()`.
        length: n; 2^n strings are one batch.
        d_model: width of the tokens, which are random.
        seed: of tokens and parameters.
        options: of the mixer.

    Raises:
        ValueError: `length` is not positive; an unknown mixer or option.
    """
    expect(length > 0, "length", length, "at least 1")
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        mixer = mixers.make(name, d_model=d_model, dtype=jnp.float64, **options)
        numbers = _telling(_states(mixer, length, rng))
    different, row_of = distinct(numbers, FINEST)
    fewest = (bits for bits in range(1, FINEST + 1) if distinct(numbers, bits)[0] == 2**length)
    return States(name, length, numbers.shape[1], different, next(fewest, None), _collision(row_of, length))


def _states(mixer: Mixer, length: int, rng: np.random.Generator) -> np.ndarray:
    """(2^n, everything in a state)."""
    strings = points(length).astype(int)
    tokens = 2 * np.arange(length) + strings
    x = rng.normal(size=(2 * length, mixer.d_model))[tokens]
    ids = {"tokens": tokens} if mixer.wants_tokens else {}
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), x, **ids)
    parameters = jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape), shapes)
    _, state = jax.jit(mixer.apply)(parameters, x, mixer.init_state(len(x), length, jnp.float64), **ids)
    return np.concatenate([_rows(np.asarray(leaf)) for leaf in jax.tree.leaves(state)], axis=1)


def _rows(leaf: np.ndarray) -> np.ndarray:
    """(B, numbers): real parts, then imaginary ones, which are 0 for most states and tell nothing."""
    leaf = leaf.reshape(len(leaf), -1)
    return np.hstack([np.real(leaf), np.imag(leaf)]).astype(np.float64)


def _telling(numbers: np.ndarray) -> np.ndarray:
    """Those that differ from row to row, from 0 to 1 each."""
    low, high = numbers.min(axis=0), numbers.max(axis=0)
    telling = high - low > NOISE * np.abs(numbers).max(axis=0)
    return (numbers[:, telling] - low[telling]) / (high - low)[telling]


def distinct(numbers: np.ndarray, bits: int) -> tuple[int, np.ndarray]:
    """How many rows differ in numbers of so many bits, and for each row the first one that equals it."""
    levels = np.rint(numbers * (2**bits - 1)).astype(np.int64)
    if levels.shape[1] == 0:
        return 1, np.zeros(len(levels), dtype=int)
    _, first, inverse = np.unique(levels, axis=0, return_index=True, return_inverse=True)
    return len(first), first[inverse.reshape(-1)]


def _collision(row_of: np.ndarray, length: int) -> Collision | None:
    for row, first in enumerate(row_of):
        if row != first:
            one, other = (tuple(map(int, np.binary_repr(i, length))) for i in (first, row))
            return collide(one, other)
    return None
