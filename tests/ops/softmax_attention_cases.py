"""Cases of softmax attention, what is drawn for them, and what they must give."""

import functools
import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.dispatch import KERNELS
from tests.arrays import array, stream_at
from tests.ops import draw, oracles

MODULE = sys.modules["based_jax.ops.softmax_attention"]  # the package has a function of that name
IMPLEMENTATIONS = [name for name in ops.implementations("softmax_attention") if name not in KERNELS]
PREFIX = 6  # the most tokens that a drawn cache has seen


class Case(NamedTuple):
    """One compiled program: sizes and the optional arguments that are present."""

    sizes: tuple[int, int, int, int, int, int]  # B, N, H, G, K, V
    left: int | None = None
    options: str = ""  # of "segments padded cache bidirectional"
    block: int = 512
    """queries per block of full attention; windows get blocks of max(left, block)"""
    scale: float | None = None

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([sizes, f"left{self.left}", *self.options.split()])

    @property
    def slots(self) -> int:
        return PREFIX + self.sizes[1] if self.left is None else self.left + 1


# Windows of one key, shorter and longer than the call and than a block; blocks that do not divide the call.
CASES = [
    Case((1, 1, 1, 1, 1, 1), 0),
    Case((2, 9, 2, 1, 3, 2), block=4),
    Case((2, 7, 2, 2, 2, 3), None, "segments padded bidirectional", scale=0.3),
    Case((3, 10, 4, 2, 2, 1), 3, "segments padded", block=1),
    Case((2, 17, 1, 1, 8, 2), 2, block=16),
    Case((1, 11, 2, 2, 3, 3), 0, block=1),
    Case((2, 6, 2, 1, 2, 2), None, "cache segments padded", block=4),
    Case((3, 9, 2, 1, 2, 2), 4, "cache segments padded", block=1, scale=2.0),
    Case((2, 5, 1, 1, 4, 2), 8, "cache", block=1),
    Case((3, 1, 2, 1, 2, 3), 2, "cache segments"),
]


class Inputs(NamedTuple):
    arrays: dict[str, np.ndarray]
    """differentiable: q, k, v, and keys, values of the cache"""
    placement: dict[str, Any]
    """segment_ids, mask, stream"""
    weights: np.ndarray
    """of the real tokens' outputs in the scalar whose gradient is taken"""
    counts: np.ndarray
    before: np.ndarray
    """segment ids of the tokens in the cache"""

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement}, counts={self.counts}, before={self.before.tolist()})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, kv_heads, width, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))
    arrays = {
        "q": 2 * rng.normal(size=(batch, length, heads, width)),
        "k": rng.normal(size=(batch, length, kv_heads, width)),
        "v": rng.normal(size=(batch, length, kv_heads, value_size)),
    }
    placement: dict[str, Any] = {}
    before = np.zeros((batch, PREFIX), np.int32)
    if "cache" in case.options:  # of rows that have come differently far, some nowhere
        seen = draw_(draw.counts(batch, PREFIX))
        if "segments" in case.options:
            before = draw_(draw.segment_ids(batch, PREFIX))
        # What the ring should hold; slots without a token hold noise that nobody may see.
        arrays["keys"] = rng.normal(size=(batch, case.slots, kv_heads, width))
        arrays["values"] = rng.normal(size=(batch, case.slots, kv_heads, value_size))
        starts = [
            oracles.segment_starts(ids[:n])[-1] if n else 0 for ids, n in zip(before, seen, strict=True)
        ]
        last = [ids[n - 1] if n else 0 for ids, n in zip(before, seen, strict=True)]
        placement["stream"] = (seen, np.asarray(starts, np.int32), np.asarray(last, np.int32))
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    counts = np.full(batch, length, np.int32)
    if "padded" in case.options:
        counts = draw_(draw.counts(batch, length))
        placement["mask"] = draw.mask(counts, length)
    weights = rng.normal(size=(*arrays["q"].shape[:3], value_size))
    weights *= draw.mask(counts, length)[..., None, None]
    return Inputs(arrays, placement, weights, counts, before)


def call(arrays, placement, case: Case, implementation: str):
    """The op on these arrays; the new cache too if there is one."""
    state = None
    if "stream" in placement:
        state = ops.KVCache(arrays["keys"], arrays["values"], stream_at(*placement["stream"]))
    # Small blocks, so that small inputs have several; while tracing, jit keeps the cases apart.
    with mock.patch.multiple(MODULE, QUERY_BLOCK=case.block, MIN_WINDOW_BLOCK=case.block):
        return ops.softmax_attention(
            arrays["q"], arrays["k"], arrays["v"], causal="bidirectional" not in case.options, left=case.left,
            scale=case.scale, initial_state=state, return_state=state is not None,
            segment_ids=placement.get("segment_ids"), mask=placement.get("mask"),
            implementation=implementation,
        )  # fmt: skip


values = jax.jit(call, static_argnames=("case", "implementation"))


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def values_and_gradients(arrays, placement, weights, *, case: Case, implementation: str):
    def loss(arrays):
        y = call(arrays, placement, case, implementation)
        y = y[0] if "stream" in placement else y
        return (weights * y).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return y, gradients


def cast(tree, dtype):
    return jax.tree.map(lambda x: array(x, dtype), tree)


def place(tree):
    return jax.tree.map(array, tree)


def cut(tree, tokens: slice):
    """These tokens of every array; in NumPy, where a slice is not one more program."""
    return jax.tree.map(lambda x: np.asarray(x)[:, tokens], tree)


def oracle(case: Case, drawn: Inputs, arrays=None) -> np.ndarray:
    """Each row's whole text by itself, cut to the call's tokens."""
    arrays = drawn.arrays if arrays is None else arrays
    batch, length, heads, _, width, value_size = case.sizes
    y = np.zeros((batch, length, heads, value_size))
    for row, count in enumerate(drawn.counts):
        seen = drawn.placement["stream"][0][row] if "stream" in drawn.placement else 0
        text = {name: [arrays[name][row, :count]] for name in "qkv"}
        if seen:  # tokens that have left the ring are out of every window: any number will do
            slots = np.arange(seen) % case.slots
            text["q"].insert(0, np.zeros((seen, heads, width)))
            text["k"].insert(0, arrays["keys"][row, slots])
            text["v"].insert(0, arrays["values"][row, slots])
        ids = None
        if "segment_ids" in drawn.placement:
            ids = np.concatenate([drawn.before[row, :seen], drawn.placement["segment_ids"][row, :count]])[
                None
            ]
        q, k, v = (np.concatenate(text[name])[None] for name in "qkv")
        whole = oracles.softmax_attention(
            q, k, v, left=case.left, causal="bidirectional" not in case.options, scale=case.scale,
            segment_ids=ids,
        )  # fmt: skip
        y[row, :count] = whole[0, seen:]
    return y
