"""The laws of softmax attention: full and windowed, grouped heads, segments, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array
from tests.marks import slow_but
from tests.ops import draw, oracles
from tests.ops.softmax_attention_cases import (
    CASES,
    IMPLEMENTATIONS,
    Case,
    cast,
    cut,
    inputs,
    oracle,
    place,
    values,
    values_and_gradients,
)
from tests.tolerances import (
    FINITE_DIFFERENCE,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT64,
    assert_close,
)


@pytest.mark.parametrize("case", slow_but([*CASES[:3], *CASES[4:9]], CASES), ids=str)
def test_values_and_gradients(case):
    """Every implementation, in float64 and float32, against explicit lists of keys and finite differences."""

    @settings(max_examples=5)
    @given(inputs(case))
    def law(drawn):
        expected = oracle(case, drawn)
        real = draw.mask(drawn.counts, case.sizes[1])[..., None, None]
        exact = None
        for implementation in reversed(IMPLEMENTATIONS):  # the reference first
            with jax.enable_x64(True):
                y, gradients = values_and_gradients(
                    cast(drawn.arrays, jnp.float64), place(drawn.placement), array(drawn.weights),
                    case=case, implementation=implementation,
                )  # fmt: skip
            assert np.isfinite(y).all(), "outputs at padding are meaningless but finite"
            assert_close(np.where(real, y, 0), expected, FLOAT64, implementation)
            if exact is None:
                exact = gradients
                _check_against_differences(case, drawn, gradients)
            assert_close(gradients, exact, FLOAT64, f"{implementation} gradient", magnitude=0.1)
            if implementation == "reference":
                continue
            y, gradients = values_and_gradients(
                cast(drawn.arrays, jnp.float32), place(drawn.placement), cast(drawn.weights, jnp.float32),
                case=case, implementation=implementation,
            )  # fmt: skip
            assert y.dtype == jnp.float32
            assert_close(np.where(real, y, 0), expected, FLOAT32, f"{implementation} in float32")
            assert_close(
                gradients, exact, FLOAT32_GRADIENT, f"{implementation} gradient in float32", magnitude=0.1
            )

    law()


def _check_against_differences(case, drawn, gradients):
    """The derivative of the oracle along one random direction per argument."""
    rng = np.random.default_rng(0)
    step = 1e-5
    for name, x in drawn.arrays.items():
        direction = rng.normal(size=x.shape)
        ahead, behind = (
            (oracle(case, drawn, drawn.arrays | {name: x + sign * step * direction}) * drawn.weights).sum()
            for sign in (1, -1)
        )
        products = np.asarray(gradients[name]) * direction
        scale = max(np.abs(products).sum(), 1)
        assert abs(products.sum() - (ahead - behind) / (2 * step)) < FINITE_DIFFERENCE * scale, name


SPLIT_CASES = [
    Case((2, 6, 2, 1, 2, 2), None, "segments", block=4),
    Case((2, 6, 1, 1, 2, 2), 2, "segments", block=1),
    Case((2, 6, 1, 1, 2, 1), 9, block=1),
]


@pytest.mark.parametrize("case", SPLIT_CASES, ids=str)
def test_split_law(case):
    """Pieces of any length, longer and shorter than the cache, equal one call without a cache."""
    batch, length, _, kv_heads, width, value_size = case.sizes

    @settings(max_examples=8)
    @given(inputs(case), draw.pieces(length))
    def law(drawn, lengths):
        expected = oracle(case, drawn)
        arrays, placement = cast(drawn.arrays, np.float32), drawn.placement
        for implementation in IMPLEMENTATIONS:
            slots = length if case.left is None else case.left + 1
            cache = ops.init_kv_cache(batch, slots, kv_heads, width, value_size)
            outputs = []
            for begin, size in zip(np.cumsum([0, *lengths]), lengths, strict=False):
                piece = cut((arrays, placement), slice(begin, begin + size))
                stream = (cache.stream.length, cache.stream.start, cache.stream.segment)
                y, cache = values(
                    piece[0] | {"keys": cache.k, "values": cache.v}, piece[1] | {"stream": stream},
                    case=case, implementation=implementation,
                )  # fmt: skip
                outputs.append(y)
            assert_close(np.concatenate(outputs, axis=1), expected, FLOAT32, f"{implementation} {lengths}")
            assert cache.stream.length.tolist() == [length] * batch

    law()


@pytest.mark.parametrize("left", [None, 2])
def test_segment_law(left):
    """Packed documents equal each document alone; an id may come back for another document."""
    case = Case((1, 8, 1, 1, 2, 2), left, "segments", block=4 if left is None else 1)

    @settings(max_examples=10)
    @given(inputs(case))
    def law(drawn):
        ids = drawn.placement["segment_ids"][0]
        begins = sorted(set(oracles.segment_starts(ids)))
        arrays, placement = cast(drawn.arrays, np.float32), place(drawn.placement)
        packed = [
            np.asarray(values(arrays, placement, case=case, implementation=name)) for name in IMPLEMENTATIONS
        ]
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            document = cut(drawn.arrays, slice(begin, end))
            expected = oracles.softmax_attention(*(document[name] for name in "qkv"), left=left)
            for y in packed:
                assert_close(y[:, begin:end], expected, FLOAT32, f"document {begin}:{end}")

    law()


@pytest.mark.parametrize("left", [None, 2])
def test_padding_law(left):
    """Two calls padded on the right equal one call on each row's real tokens; a row may have none."""
    case = Case((3, 5, 2, 1, 2, 2), left, "padded", block=4 if left is None else 1)
    batch, length, _, kv_heads, width, value_size = case.sizes

    @settings(max_examples=10)
    @given(inputs(case), inputs(case))
    def law(first, second):
        for implementation in IMPLEMENTATIONS:
            slots = 2 * length if left is None else left + 1
            cache = ops.init_kv_cache(batch, slots, kv_heads, width, value_size)
            outputs = []
            for part in (first, second):
                stream = (cache.stream.length, cache.stream.start, cache.stream.segment)
                y, cache = values(
                    cast(part.arrays, jnp.float32) | {"keys": cache.k, "values": cache.v},
                    place(part.placement) | {"stream": stream}, case=case, implementation=implementation,
                )  # fmt: skip
                outputs.append(y)
            for row, (a, b) in enumerate(zip(first.counts, second.counts, strict=True)):
                assert cache.stream.length[row] == a + b
                text = (
                    np.concatenate([first.arrays[name][[row], :a], second.arrays[name][[row], :b]], axis=1)
                    for name in "qkv"
                )
                expected = oracles.softmax_attention(*text, left=left)[0]
                y = np.concatenate([outputs[0][row, :a], outputs[1][row, :b]])
                assert_close(y, expected, FLOAT32, f"{implementation} row {row}")

    law()


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5]], ids=str)
def test_reach(case):
    """Token j reaches the outputs j ... j + left and no others: not one earlier, not one later."""
    length = case.sizes[1]

    @settings(max_examples=10)
    @given(inputs(case), st.integers(0, length - 1))
    def law(drawn, j):
        later = (np.arange(length) == j)[None, :, None, None]
        arrays = drawn.arrays
        changed = arrays | {name: arrays[name] + later for name in "kv"}
        last = length - 1 if case.left is None else min(j + case.left, length - 1)
        for implementation in IMPLEMENTATIONS:
            before, after = (
                np.asarray(values(cast(x, np.float32), {}, case=case, implementation=implementation))
                for x in (arrays, changed)
            )
            reached = np.flatnonzero((before != after).any((0, 2, 3)))
            assert reached.tolist() == list(range(j, last + 1)), implementation

    law()
