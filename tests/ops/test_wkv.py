"""RWKV-4's average: the formula, exponents of any size, and the laws of every op with a state."""

import functools
import sys
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.arrays import array
from tests.marks import release_but
from tests.ops.contract import Contract
from tests.ops.placement import Placement
from tests.tolerances import FLOAT32, assert_close

WKV = sys.modules["based_jax.ops.wkv"]  # the package has a function of that name
EMPTY = WKV.EMPTY


class Case(NamedTuple):
    sizes: tuple[int, int, int]  # B, N, E
    chunk: int | None


CASES = [Case((2, 11, 3), 4), Case((1, 6, 2), None)]


class TestWKV(Contract):
    """Keys of all sizes, decays from none to all."""

    cases = release_but(CASES[:1], CASES)
    bare = CASES[1:]
    tokens, state = ("k", "v"), ("numerator", "denominator", "exponent")
    zero_padding = False

    def arrays(self, rng, case):
        batch, _, channels = case.sizes
        return {
            "k": rng.normal(size=case.sizes) * rng.choice([1, 30]),
            "v": rng.normal(size=case.sizes),
            "log_decay": -np.exp(rng.uniform(-8, 3, size=channels)),
            "bonus": rng.normal(size=channels),
            "numerator": rng.normal(size=(batch, channels)),
            "denominator": rng.exponential(size=(batch, channels)) + 1,
            "exponent": rng.normal(size=(batch, channels)),
        }

    def empty(self, arrays, case):
        return super().empty(arrays, case) | {"exponent": np.full_like(arrays["exponent"], EMPTY)}

    def call(self, arrays, at, case, implementation):
        """The state is that of the same sums with a denominator of 1: the op may choose the exponent."""
        sums = (arrays[name] for name in self.state)
        y, state = ops.wkv(
            *(arrays[name] for name in ("k", "v", "log_decay", "bonus")),
            initial_state=at.after(lambda stream: ops.WKVState(*sums, stream)),
            return_state=True,
            **at.context,
            chunk_size=case.chunk,
            implementation=implementation,
        )
        mass = jnp.where(state.denominator == 0, 1, state.denominator)
        sums = (state.numerator / mass, state.denominator / mass, state.exponent + jnp.log(mass))
        return y, dict(zip(self.state, sums, strict=True)), state.stream

    def oracle(self, arrays, at, case):
        """Every weight by itself, relative to the largest; the state is one more token."""
        k, v, log_decay, bonus, *sums = arrays.values()
        y, state = np.zeros(k.shape), self.empty(arrays, case)
        for row, count in enumerate(at.counts):
            held = [[x[row] for x in sums]] if at.length[row] else []
            for t in range(count):
                held = [] if at.begins[row, t] else held
                y[row, t] = average([*held, [v[row, t], np.ones(case.sizes[2]), k[row, t] + bonus]])[0]
                held = [[top, bottom, exponent + log_decay] for top, bottom, exponent in held]
                held.append([v[row, t], np.ones(case.sizes[2]), k[row, t]])
            for name, x in zip(self.state, average(held), strict=True) if held else ():
                state[name][row] = x
        return y, state


def average(held):
    """One weight instead of all: its value, 1, and its exponent."""
    tops, bottoms, exponents = (np.array(x) for x in zip(*held, strict=True))
    largest = exponents.max(axis=0)
    weights = np.exp(exponents - largest)
    mass = (weights * bottoms).sum(0)
    return (weights * tops).sum(0) / mass, np.ones_like(mass), largest + np.log(mass)


@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_keys_and_decays_of_any_size(implementation):
    """Keys of +-1e4, decays of exactly 0 and 1: weights of 0 and 1, exact to float32, finite gradients."""
    laws = TestWKV()
    k = np.float32([1e4, -1e4, 1e4 + 1, 0, 1e4 + 2, -1e4, 5, 1e4, 0])[None, :, None].repeat(4, axis=2)
    v = np.arange(36, dtype=np.float32).reshape(1, 9, 4) / 36
    log_decay = array([0.0, -1e-12, -1.0, -jnp.inf])
    bonus = array([0.25, -1.0, 0.5, 1e4])

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def run(k, v, log_decay, bonus):
        y = ops.wkv(k, v, log_decay, bonus, chunk_size=4, implementation=implementation)
        return (y**2).sum(), y

    (_, y), gradients = run(k, v, log_decay, bonus)
    chex.assert_tree_all_finite(gradients)
    numbers = (np.asarray(x, np.float64) for x in (k, v, np.maximum(log_decay, -1e9), bonus))
    arrays = dict(zip(("k", "v", "log_decay", "bonus"), numbers, strict=True))
    arrays |= dict.fromkeys(laws.state, np.zeros((1, 4)))
    at = laws.alone(Placement(np.zeros((1, 9), np.int32)))
    assert_close(y, laws.oracle(arrays, at, Case((1, 9, 4), 4))[0], FLOAT32)


def test_sums_of_neighbouring_parts_add_up():
    """What devices hand on: the earlier part decays over the steps of the later one."""
    rng = np.random.default_rng(0)
    earlier, later = (
        (*rng.normal(size=(3, 2, 4)).astype(np.float32), -rng.random((2, 4)).astype(np.float32))
        for _ in range(2)
    )
    *sums, top, steps = map(np.float64, jax.jit(WKV._add)(tuple(earlier), tuple(later)))
    for total, old, new in zip(sums, earlier, later, strict=False):
        expected = old * np.exp(np.float64(earlier[2]) + later[3]) + new * np.exp(np.float64(later[2]))
        assert_close(total * np.exp(top), expected, FLOAT32)
    assert_close(steps, earlier[3] + later[3], FLOAT32)
