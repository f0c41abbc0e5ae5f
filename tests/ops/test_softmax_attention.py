"""The laws of softmax attention: full and windowed, grouped heads, segments, padding, caches."""

import sys
from typing import NamedTuple
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops import attention_to_keys
from based_jax.ops.core.implementations import KERNELS
from pallas_kernels import interpreted
from tests.marks import slow_but
from tests.ops import oracles
from tests.ops.contract import Contract
from tests.ops.declared import PREFIX

MODULE = sys.modules["based_jax.ops.softmax_attention"]  # the package has a function of that name
TILES = sys.modules["based_jax.ops.tiled_attention"]


class Case(NamedTuple):
    sizes: tuple[int, int, int, int, int, int]  # B, N, H, G, K, V
    left: int | None = None
    block: int = 512
    """queries per block of full attention, and the unit of a window's blocks"""
    scale: float | None = None
    causal: bool = True

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes)) + f"-left{self.left}"

    @property
    def slots(self) -> int:
        return PREFIX + self.sizes[1] if self.left is None else self.left + 1


# Windows of one key, shorter and longer than the call and than a block; blocks that do not divide the call.
CASES = [
    Case((2, 9, 2, 1, 3, 2), block=4),
    Case((2, 17, 1, 1, 8, 2), 2, block=16),
    Case((3, 10, 4, 2, 2, 1), 3, block=1),
    Case((1, 11, 2, 2, 3, 3), 0, block=1),
    Case((1, 1, 1, 1, 1, 1), 0),
]
# One tile, several of them, and tokens of several rows; tiles that divide the call and that do not.
TILED = [
    Case((2, 13, 4, 2, 3, 2), block=2),
    Case((1, 8, 1, 1, 2, 3), block=2, scale=0.7),
    Case((2, 5, 2, 2, 2, 2), block=3),
]
CACHES = [
    Case((2, 6, 2, 1, 2, 2), block=4),
    Case((3, 9, 2, 1, 2, 2), 4, block=1, scale=2.0),
    Case((2, 5, 1, 1, 4, 2), 8, block=1),
    Case((3, 1, 2, 1, 2, 3), 2),
]
WINDOWS = [Case((2, 19, 4, 2, 3, 2), 5), Case((2, 9, 2, 1, 2, 2), 4)]
BIDIRECTIONAL = [Case((2, 7, 2, 2, 2, 3), scale=0.3, causal=False)]


class TestSoftmaxAttention(Contract):
    cases = slow_but(CASES[:2], CASES)
    tokens = ("q", "k", "v")
    implementations = [
        name for name in ops.implementations("softmax_attention") if name not in (*KERNELS, "tiled")
    ][::-1]
    zero_padding = False
    test_split = test_one_token = None

    def arrays(self, rng, case):
        batch, length, heads, kv_heads, width, value_size = case.sizes
        arrays = {
            "q": 2 * rng.normal(size=(batch, length, heads, width)),
            "k": rng.normal(size=(batch, length, kv_heads, width)),
            "v": rng.normal(size=(batch, length, kv_heads, value_size)),
        }
        caches = {
            "keys": rng.normal(size=(batch, case.slots, kv_heads, width)),
            "values": rng.normal(size=(batch, case.slots, kv_heads, value_size)),
        }
        return arrays | {name: caches[name] for name in self.state}

    def empty(self, arrays, case):
        """Slots without a token may hold anything: nobody sees it."""
        return {}

    def call(self, arrays, at, case, implementation):
        cache = None
        if self.state:
            cache = at.after(lambda stream: ops.KVCache(arrays["keys"], arrays["values"], stream))
        # Small blocks, so that small inputs have several; while tracing, jit keeps the cases apart.
        blocks = mock.patch.multiple(attention_to_keys, QUERY_BLOCK=case.block, MIN_WINDOW_BLOCK=case.block)
        tiles = mock.patch.multiple(TILES, ROWS=3 * case.block, KEYS=case.block)
        with blocks, tiles, mock.patch.object(MODULE, "MIN_ALIGNED_LENGTH", 4):
            y = ops.softmax_attention(
                *(arrays[name] for name in "qkv"),
                causal=case.causal,
                left=case.left,
                scale=case.scale,
                initial_state=cache,
                return_state=cache is not None,
                **at.context,
                implementation=implementation,
            )
        return (y[0], {"keys": y[1].k, "values": y[1].v}, y[1].stream) if cache is not None else (y, {}, None)

    def oracle(self, arrays, at, case):
        """Each row's whole text by itself, cut to the call's tokens; caches are rings of slots."""
        batch, length, heads, _, width, value_size = case.sizes
        y, state = np.zeros((batch, length, heads, value_size)), {x: arrays[x].copy() for x in self.state}
        for row, count in enumerate(at.counts):
            past = at.length[row] if self.state else 0
            # Tokens that have left the ring are out of every window: any number will do.
            slots = np.arange(past) % case.slots
            before = {"q": np.zeros((past, heads, width))}
            before |= {x: arrays[name][row, slots] for x, name in zip("kv", self.state, strict=False)}
            text = {x: arrays[x][row, :count] for x in "qkv"}
            if past:
                text = {x: np.concatenate([before[x], text[x]]) for x in "qkv"}
            ids = np.where(np.arange(past) < at.start[row], -1, at.segment[row])
            whole = oracles.softmax_attention(
                *(text[x][None] for x in "qkv"),
                left=case.left,
                causal=case.causal,
                scale=case.scale,
                segment_ids=np.concatenate([ids, at.segment_ids[row, :count]])[None],
            )
            y[row, :count] = whole[0, past:]
            for x, name in zip("kv", self.state, strict=False):
                for t in range(count):
                    state[name][row, (past + t) % case.slots] = arrays[x][row, t]
        return y, state

    def test_reach(self, case):
        """Token j reaches the outputs j ... j + left and no others: not one earlier, not one later."""
        length = case.sizes[1]

        def law(drawn, j):
            arrays, at, weights = drawn[:3]
            changed = arrays | {name: arrays[name].copy() for name in "kv"}
            for name in "kv":
                changed[name][:, j] += 1
            last = length - 1 if case.left is None else min(j + case.left, length - 1)
            for name in self.programs(case):
                before, after = (
                    self.run(x, self.alone(at), weights, case, *name).y for x in (arrays, changed)
                )
                reached = np.flatnonzero((before != after).any((0, 2, 3)))
                assert reached.tolist() == list(range(j, last + 1)), name

        self.law(case, law, st.integers(0, length - 1), full=True)


class TestCache(TestSoftmaxAttention):
    """Rows that have come differently far, some nowhere."""

    cases = slow_but(CACHES[:2], CACHES)
    state = ("keys", "values")
    forgets = False
    test_split, test_one_token = Contract.test_split, Contract.test_one_token
    test_reach = test_bfloat16 = test_without_a_placement = test_in_float64 = None


class TestBidirectional(TestSoftmaxAttention):
    cases = BIDIRECTIONAL
    test_reach = test_causality = test_bfloat16 = test_in_float64 = None


class TestWindowKernels(TestSoftmaxAttention):
    """The fused kernels in the interpreter; they have no float64."""

    cases = slow_but([], WINDOWS[:1])
    implementations = ("pallas",)
    examples = 2
    test_the_reference = test_in_float64 = test_without_a_placement = test_bfloat16 = None

    def run(self, *arguments, **options):
        with interpreted():  # the gradient, too, is traced inside
            return TestSoftmaxAttention.run(self, *arguments, **options)


class TestWindowKernelsAfterACache(TestCache):
    """Empty caches go to the kernels, others to "xla"."""

    cases = slow_but([], WINDOWS[1:])
    implementations = ("pallas",)
    examples = 2
    test_the_reference = test_causality = test_segments = test_one_token = None
    run = TestWindowKernels.run


class TestTiled(TestSoftmaxAttention):
    """Rows without documents take another way than packed ones: `test_without_a_placement`."""

    cases = slow_but(TILED[:1], TILED)
    implementations = ("reference", "tiled")


class TestTiledCache(TestCache):
    cases = slow_but([], CACHES[:1])
    implementations = ("reference", "tiled")
