"""Play the index game: a model that recalls n bits needs a state of n bits (Based, theorem F.3 = 3.1).

Alice has n bits and runs a recurrent model on the pairs (j, x_j). Bob gets its state, asks for the value of
one key and gets x_i. If the answers are right for every string and index, no two strings may end in one
state: they differ at some i, and Bob would get the same answer for both. So there are 2^n states, and a state
has n bits. The paper states Omega(n), for models that may err; here all strings and all indices are played.

It needs n different keys; with c < n tokens for keys only c bits can be queried.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

String = tuple[int, ...]
"""Alice's bits."""


@dataclass(frozen=True)
class Model:
    """A recurrent model with finitely many states (Based, definition F.6)."""

    initial: Hashable  # the state before the first pair
    step: Callable[[Any, int, int], Hashable]  # the state after a pair: (state, key, value) -> state
    answer: Callable[[Any, int], int]  # the value that the model recalls: (state, key) -> 0 or 1


@dataclass(frozen=True)
class Collision:
    """Two of Alice's strings that end in one state, and an index on which Bob answers one of them wrongly."""

    first: String
    second: String
    index: int


@dataclass(frozen=True)
class Game:
    """The result of playing all strings of n bits."""

    states: int  # number of different states
    wrong: int  # wrong answers, of 2^n n
    collision: Collision | None  # None if no two strings ended in one state


def play(model: Model, bits: int) -> Game:
    """Play every string of Alice's and every index of Bob's."""
    first_with: dict[Hashable, String] = {}
    wrong, collision = 0, None
    for string in product((0, 1), repeat=bits):
        state = reduce(lambda state, pair: model.step(state, *pair), enumerate(string), model.initial)
        wrong += sum(model.answer(state, key) != value for key, value in enumerate(string))
        other = first_with.setdefault(state, string)
        if other != string and collision is None:
            collision = collide(other, string)
    return Game(len(first_with), wrong, collision)


def collide(first: String, second: String) -> Collision:
    """Return the collision of two different strings."""
    index = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    return Collision(first, second, index)


def bit_per_key(keys: int) -> Model:
    """Return the smallest solver: one bit for every key, 2^keys states in all."""
    return Model(
        initial=(0,) * keys,
        step=lambda state, key, value: (*state[:key], value, *state[key + 1 :]),
        answer=lambda state, key: state[key],
    )


def last_pairs(slots: int) -> Model:
    """Return a window: it keeps the last pairs, and answers 0 for other keys."""
    return Model(
        initial=(),
        step=lambda state, key, value: (*state, (key, value))[-slots:],
        answer=lambda state, key: dict(state).get(key, 0),
    )


def hashed(slots: int) -> Model:
    """Return a table with fewer slots than keys: keys that are equal modulo its size share one."""
    table = bit_per_key(slots)
    return Model(
        initial=table.initial,
        step=lambda state, key, value: table.step(state, key % slots, value),
        answer=lambda state, key: table.answer(state, key % slots),
    )
