"""The laws of softmax attention: full and windowed, grouped heads, segments, padding, caches."""

import functools
import sys
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import draw, oracles
from tests.tolerances import (
    BFLOAT16,
    FINITE_DIFFERENCE,
    FLOAT16,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT64,
    assert_close,
)

MODULE = sys.modules["based_jax.ops.softmax_attention"]  # the package has a function of that name
IMPLEMENTATIONS = ops.implementations("softmax_attention")
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
        state = ops.KVCache(arrays["keys"], arrays["values"], ops.Stream(*placement["stream"]))
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
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def place(tree):
    return jax.tree.map(jnp.asarray, tree)


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


@pytest.mark.parametrize("case", CASES, ids=str)
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
                    cast(drawn.arrays, jnp.float64), place(drawn.placement), jnp.asarray(drawn.weights),
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
        arrays, placement = cast(drawn.arrays, jnp.float32), place(drawn.placement)
        for implementation in IMPLEMENTATIONS:
            slots = length if case.left is None else case.left + 1
            cache = ops.init_kv_cache(batch, slots, kv_heads, width, value_size)
            outputs = []
            for begin, size in zip(np.cumsum([0, *lengths]), lengths, strict=False):
                piece = jax.tree.map(lambda x: x[:, begin : begin + size], (arrays, placement))  # noqa: B023
                stream = (cache.stream.length, cache.stream.start, cache.stream.segment)
                y, cache = values(
                    piece[0] | {"keys": cache.k, "values": cache.v}, piece[1] | {"stream": stream},
                    case=case, implementation=implementation,
                )  # fmt: skip
                outputs.append(y)
            assert_close(jnp.concatenate(outputs, axis=1), expected, FLOAT32, f"{implementation} {lengths}")
            assert cache.stream.length.tolist() == [length] * batch

    law()


@pytest.mark.parametrize("left", [None, 2])
def test_segment_law(left):
    """Packed documents equal each document alone; an id may come back for another document."""
    case = Case((1, 8, 1, 1, 2, 2), left, "segments", block=4 if left is None else 1)
    alone = case._replace(options="")

    @settings(max_examples=10)
    @given(inputs(case))
    def law(drawn):
        ids = drawn.placement["segment_ids"][0]
        begins = sorted(set(oracles.segment_starts(ids)))
        arrays = cast(drawn.arrays, jnp.float32)
        packed = [
            values(arrays, place(drawn.placement), case=case, implementation=name) for name in IMPLEMENTATIONS
        ]
        for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
            document = {name: x[:, begin:end] for name, x in arrays.items()}
            expected = values(document, {}, case=alone, implementation="reference")
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
        arrays = cast(drawn.arrays, jnp.float32)
        changed = arrays | {name: arrays[name].at[:, j].add(1) for name in "kv"}
        last = length - 1 if case.left is None else min(j + case.left, length - 1)
        for implementation in IMPLEMENTATIONS:
            before, after = (
                values(x, {}, case=case, implementation=implementation) for x in (arrays, changed)
            )
            reached = np.flatnonzero((before != after).any((0, 2, 3)))
            assert reached.tolist() == list(range(j, last + 1)), implementation

    law()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("left", [0, 3, 7])
def test_ring_over_many_wraps_with_rows_at_different_lengths(implementation, left):
    """A padded prefill, then 30 window steps in a scan: every step equals the window over each row's text."""
    batch, prefill, steps, heads, width = 3, 6, 30, 2, 2
    rng = np.random.default_rng(left)
    q, k, v = rng.normal(size=(3, batch, prefill + steps, heads, width)).astype(np.float32)
    counts = np.asarray([0, 2, 6])

    @jax.jit
    def decode(q, k, v, mask):
        cache = ops.init_kv_cache(batch, left + 1, heads, width, width)
        _, cache = ops.softmax_attention(
            *(x[:, :prefill] for x in (q, k, v)), left=left, initial_state=cache, return_state=True,
            mask=mask, implementation=implementation,
        )  # fmt: skip

        def step(cache, token):
            y, cache = ops.window_step(*token, cache, implementation=implementation)
            return cache, y

        return jax.lax.scan(step, cache, [x[:, prefill:].swapaxes(0, 1) for x in (q, k, v)])

    cache, y = decode(q, k, v, draw.mask(counts, prefill))
    assert cache.k.shape[1] == left + 1
    assert cache.stream.length.tolist() == (counts + steps).tolist()
    for row, count in enumerate(counts):
        text = (np.concatenate([x[[row], :count], x[[row], prefill:]], axis=1) for x in (q, k, v))
        expected = oracles.softmax_attention(*(x.astype(np.float64) for x in text), left=left)
        assert_close(y[:, row], expected[0, count:], FLOAT32, f"row {row}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("left", [None, 2])
def test_grouped_heads_equal_repeated_heads(implementation, left):
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(2, 6, 6, 3)), jnp.float32)
    k, v = jnp.asarray(rng.normal(size=(2, 2, 6, 2, 3)), jnp.float32)
    call = jax.jit(functools.partial(ops.softmax_attention, left=left, implementation=implementation))
    repeated = call(q, jnp.repeat(k, 3, axis=2), jnp.repeat(v, 3, axis=2))
    assert_close(call(q, k, v), repeated, FLOAT32)


def test_helpers_of_the_two_window_conventions():
    """The paper's w keys are left = w - 1; the authors' window_size W is halved: W // 2 + 1 keys."""
    assert [ops.left_from_paper_window(w) for w in (1, 16, 64)] == [0, 15, 63]
    assert [ops.left_from_torch_window(w) for w in (0, 1, 128, 256)] == [0, 0, 64, 128]
    with pytest.raises(ValueError, match="width = 0"):
        ops.left_from_paper_window(0)
    with pytest.raises(ValueError, match="window_size = -1"):
        ops.left_from_torch_window(-1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_full_cache_overflows_loudly(implementation):
    """Known lengths raise; under jit every output of the row is NaN, as its oldest keys are gone."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 1, 2)), jnp.float32)
    prefill = functools.partial(
        ops.softmax_attention, q, q, q, return_state=True, implementation=implementation
    )
    _, cache = prefill(
        initial_state=ops.init_kv_cache(2, 4, 1, 2, 2), mask=jnp.asarray([[True] * 3, [True, False, False]])
    )
    with pytest.raises(ValueError, match="length = 6: expected at most max_length = 4 tokens"):
        prefill(initial_state=cache)
    with pytest.raises(ValueError, match="length = 3: expected at most max_length = 2 tokens"):
        jax.jit(lambda: prefill(initial_state=ops.init_kv_cache(2, 2, 1, 2, 2)))()

    y, cache = jax.jit(lambda cache: prefill(initial_state=cache))(cache)
    assert jnp.isnan(y[0]).all()
    text = jnp.concatenate([q[1:, :1], q[1:]], axis=1)
    assert_close(y[1:], oracles.softmax_attention(*[np.asarray(text, np.float64)] * 3)[:, 1:], FLOAT32)
    one = q[:, :1]
    y = jax.jit(lambda cache: ops.softmax_attention(one, one, one, initial_state=cache))(cache)
    assert jnp.isnan(y).all(), "both rows are over now, and stay so"


def test_padding_takes_no_slots():
    """A bucket of 6 with at most 4 real tokens fits into 4 slots, with known lengths and under jit."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 1, 2)), jnp.float32)
    counts = np.asarray([4, 1])
    mask = jnp.asarray(draw.mask(counts, 6))
    cache = ops.init_kv_cache(2, 4, 1, 2, 2)
    expected = oracles.softmax_attention(*[np.asarray(q, np.float64)] * 3, counts=counts)

    def prefill(cache, mask):
        return ops.softmax_attention(q, q, q, initial_state=cache, mask=mask)

    # Known, traced, and a known cache inside a traced function.
    for y in (prefill(cache, mask), jax.jit(prefill)(cache, mask), jax.jit(lambda: prefill(cache, mask))()):
        assert jnp.isfinite(y).all()
        assert_close(jnp.where(mask[..., None, None], y, 0), expected, FLOAT32)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kwargs", [{}, {"left": 1}, {"causal": False}], ids=str)
def test_a_row_without_tokens_sees_nothing(implementation, kwargs):
    """Its outputs are 0, not the mean of its padding, and nothing flows back."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 1, 2)), jnp.float32)
    mask = jnp.asarray([[True, True, False], [False] * 3])

    @jax.jit
    def call(v):
        y, back = jax.vjp(
            lambda v: ops.softmax_attention(x, x, v, mask=mask, implementation=implementation, **kwargs), v
        )
        return y, back(jnp.ones_like(y))[0]

    y, gradient = call(x)
    assert not y[1].any()
    assert not gradient[1].any()
    assert y[0, :2].all()
    assert gradient[0, :2].all()


@functools.partial(jax.jit, static_argnames=("left", "implementation"))
def value_and_gradient(q, k, v, *, left: int | None, implementation: str):
    def loss(q, k, v):
        y = ops.softmax_attention(q, k, v, left=left, implementation=implementation)
        return y.astype(jnp.float32).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    return y, gradients


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("left", [None, 3])
def test_extreme_values(dtype, left):
    """Scores of 1e6, equal keys and zeros: finite forward and backward, and right."""
    tolerance = {jnp.float32: FLOAT32, jnp.bfloat16: BFLOAT16, jnp.float16: FLOAT16}[dtype]

    @settings(max_examples=8)
    @given(st.sampled_from(["large", "equal", "zeros", "plain"]), draw.seeds)
    def law(kind, seed):
        rng = np.random.default_rng(seed)
        q, k, v = rng.normal(size=(3, 2, 20, 2, 4))
        if kind == "large":  # small integers times 1024: scores are exact, so that their order is
            q, k = (1024.0 * rng.integers(-3, 4, size=x.shape) for x in (q, k))
        if kind == "equal":
            k[:] = k[:1, :1]
        if kind == "zeros":
            q, k = 0 * q, 0 * k
        q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
        expected = oracles.softmax_attention(*(np.asarray(x, np.float64) for x in (q, k, v)), left=left)
        for implementation in IMPLEMENTATIONS:
            y, gradients = value_and_gradient(q, k, v, left=left, implementation=implementation)
            assert y.dtype == dtype
            assert_close(y, expected, tolerance, f"{implementation} {kind}")
            for gradient in gradients:
                assert gradient.dtype == dtype
                assert np.isfinite(np.asarray(gradient, np.float32)).all(), f"{implementation} {kind}"

    law()


def test_a_cache_of_lower_precision_keeps_the_dtype_of_the_call():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, 1, 5, 1, 2)))
    for left, slots in ((None, 5), (2, 3)):
        cache = ops.init_kv_cache(1, slots, 1, 2, 2, dtype=jnp.bfloat16)
        call = jax.jit(functools.partial(ops.softmax_attention, left=left, return_state=True))
        y1, cache = call(q[:, :4], k[:, :4], v[:, :4], initial_state=cache)
        y2, cache = call(q[:, 4:], k[:, 4:], v[:, 4:], initial_state=cache)
        assert y1.dtype == y2.dtype == jnp.float32
        assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
        expected = oracles.softmax_attention(*(np.asarray(x, np.float64) for x in (q, k, v)), left=left)
        assert_close(jnp.concatenate([y1, y2], axis=1), expected, BFLOAT16)


def temporary_bytes(function, length: int) -> int:
    array = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    return jax.jit(function).lower(array, array, array).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_the_length_forward_and_backward():
    """Four times the tokens, about four times the bytes: no (N, N) matrix exists, in a window or in full."""

    def step(left):
        return lambda *qkv: jax.value_and_grad(
            lambda *x: ops.softmax_attention(*x, left=left).sum(), (0, 1, 2)
        )(*qkv)

    for left in (31, None):
        short, long = (temporary_bytes(step(left), length) for length in (2048, 8192))
        assert 0 < long <= 4.5 * short, f"left = {left}: {short} bytes become {long}"
        assert long < 4 * 2 * 8192**2, f"left = {left}: {long} bytes, as much as all scores"


def _arguments(**changes):
    arguments: dict[str, Any] = {
        "q": jnp.ones((2, 3, 4, 8)),
        "k": jnp.ones((2, 3, 2, 8)),
        "v": jnp.ones((2, 3, 2, 5)),
    }
    return arguments | changes


def _cache(**changes):
    sizes = {"batch_size": 2, "slots": 8, "kv_heads": 2, "key_size": 8, "value_size": 5} | changes
    return ops.init_kv_cache(**sizes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": None}, TypeError, "q = None"),
        ({"q": jnp.ones((3, 4, 8))}, ValueError, "q has shape"),
        ({"q": jnp.ones((2, 3, 4, 8), int)}, TypeError, "q has dtype"),
        ({"q": jnp.ones((0, 3, 4, 8))}, ValueError, "q has shape .* no empty axis"),
        (
            {"q": jnp.ones((2, 3, 3, 8))},
            ValueError,
            "number of query heads = 3: expected a multiple of .* = 2",
        ),
        ({"k": jnp.ones((1, 3, 2, 8))}, ValueError, "k has shape"),
        ({"k": jnp.ones((2, 4, 2, 8))}, ValueError, "k has shape"),
        ({"k": jnp.ones((2, 3, 2, 7))}, ValueError, "k has shape"),
        ({"v": jnp.ones((2, 3, 4, 5))}, ValueError, "v has shape"),
        ({"v": jnp.ones((2, 3, 2, 5), bool)}, TypeError, "v has dtype"),
        ({"left": -1}, ValueError, "left = -1"),
        ({"left": 2, "causal": False}, ValueError, "left = 2: expected None when causal is False"),
        ({"implementation": "flash"}, ValueError, "implementation = 'flash'"),
        ({"return_state": True}, ValueError, "return_state = True"),
        ({"segment_ids": jnp.ones((2, 3))}, TypeError, "segment_ids has dtype"),
        ({"segment_ids": jnp.ones((2, 4), int)}, ValueError, "segment_ids has shape"),
        ({"mask": jnp.ones((2, 3), int)}, TypeError, "mask has dtype"),
        ({"mask": jnp.ones((1, 3), bool)}, ValueError, "mask has shape"),
        ({"mask": jnp.ones((2, 4), bool), "initial_state": _cache()}, ValueError, "mask has shape"),
        ({"initial_state": _cache(), "causal": False}, ValueError, "causal = False"),
        ({"initial_state": _cache(batch_size=1)}, ValueError, r"initial_state\.k has shape"),
        ({"initial_state": _cache(kv_heads=4)}, ValueError, r"initial_state\.k has shape"),
        ({"initial_state": _cache(key_size=5)}, ValueError, r"initial_state\.k has shape"),
        ({"initial_state": _cache(value_size=8)}, ValueError, r"initial_state\.v has shape"),
        ({"initial_state": _cache(dtype=jnp.int8)}, TypeError, r"initial_state\.k has dtype"),
        (
            {"initial_state": _cache(), "left": 6},
            ValueError,
            "slots of initial_state = 8: expected left . 1 = 7",
        ),
        ({"initial_state": _cache(slots=2)}, ValueError, "length = 3: expected at most max_length = 2"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    with pytest.raises(error, match=message):
        ops.softmax_attention(**_arguments(**changes))


def test_errors_of_a_step_name_the_argument(unchecked):
    q, k, v = (x[:, 0] for x in _arguments().values())
    for position, name in enumerate("qkv"):
        arguments = [q, k, v]
        arguments[position] = arguments[position][:, None]
        with pytest.raises(ValueError, match=f"{name} has shape"):
            ops.window_step(*arguments, _cache())
    with pytest.raises(ValueError, match=r"initial_state\.k has shape"):
        ops.window_step(q, k, v, _cache(batch_size=1))
