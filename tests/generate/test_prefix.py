"""The prefix cache does what a list of prefixes in order of their use would do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.generate.engine.prefix_cache import PrefixCache

EVERY = 2
HIDDEN = np.zeros((1, 1), np.int8)


def state(size: int, mark: int = 0, rows: int = 1) -> tuple[np.ndarray, ...]:
    """A state that takes `size` - 1 bytes, which HIDDEN makes `size`."""
    return (np.full((rows, size - 1), mark, np.int8),)


class Naive:
    """Prefixes, the one used last at the end."""

    def __init__(self, max_bytes: int):
        self.max_bytes, self.kept = max_bytes, []

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.kept)

    def find(self, tokens):
        fitting = [entry for entry in self.kept if tokens[: len(entry[0])] == entry[0]]
        if not fitting:
            return None
        best = max(fitting, key=lambda entry: len(entry[0]))
        self.kept.remove(best)
        self.kept.append(best)
        return len(best[0]), best[1]

    def put(self, tokens, mark, size):
        if len(tokens) % EVERY or not tokens or size > self.max_bytes:
            return False
        self.kept = [entry for entry in self.kept if entry[0] != tokens]
        while self.bytes + size > self.max_bytes:
            self.kept.pop(0)
        self.kept.append((tokens, mark, size))
        return True


# Few tokens, so that prefixes are shared.
TEXTS = st.lists(st.integers(0, 1), max_size=8)
CALLS = st.lists(st.one_of(TEXTS, st.tuples(TEXTS, st.integers(2, 9))), max_size=30)


@given(st.integers(1, 20), CALLS)
def test_it_is_the_naive_cache(max_bytes, calls):
    cache, naive = PrefixCache(max_bytes, every=EVERY), Naive(max_bytes)
    for mark, call in enumerate(calls):
        if isinstance(call, tuple):
            tokens, size = call
            assert cache.put(tokens, state(size, mark), HIDDEN) == naive.put(tokens, mark, size)
        else:
            hit, expected = cache.find(np.array(call, np.int64)), naive.find(call)
            assert (hit and (hit.count, hit.state[0][0, 0])) == expected
        assert cache.bytes == naive.bytes <= max_bytes
        assert len(cache) == len(naive.kept)


def test_errors():
    for name, arguments in {"max_bytes": (0, 1), "every": (1, 0)}.items():
        with pytest.raises(ValueError, match=rf"^{name} = 0: expected an integer, at least 1"):
            PrefixCache(*arguments)
    with pytest.raises(ValueError, match=r"^state = '2 rows': expected one row"):
        PrefixCache(10).put([1], state(3, rows=2), HIDDEN)
