"""The formulas of bytes and FLOPs against counts by hand, against the kernels' arrays, and in the docs."""

from pathlib import Path

import jax
import pytest

from benchmarks.gpu import io_model
from benchmarks.gpu.cases import taylor_attention as attention_cases
from benchmarks.gpu.cases import taylor_step as taylor_step_cases
from benchmarks.gpu.cases import window_attention as window_attention_cases
from benchmarks.gpu.cases import window_step as window_step_cases
from benchmarks.gpu.io_model import Cost, Sizes
from benchmarks.gpu.static.formulas import TAYLOR
from pallas_kernels.taylor_attention.layout import Layout

ONE = Sizes(batch=1, length=1, heads=1)
"""One token of one head, K = 16, V = 64, bfloat16."""


def test_bytes_by_hand():
    # q, k 2 x 32, v, y 2 x 128, the reciprocal normaliser 4.
    assert io_model.outputs(ONE).bytes == 320 + 4
    assert io_model.forward(ONE) == io_model.outputs(ONE)
    assert io_model.dq(ONE).bytes == 3 * 32 + 2 * 128 + 8
    assert io_model.dk(ONE).bytes == io_model.dq(ONE).bytes
    assert io_model.dv(ONE).bytes == 2 * 32 + 2 * 128 + 8
    assert io_model.normaliser_gradient(ONE).bytes == 2 * 128 + 8
    # 160 rows of 64 values, 17 rows of 32 moments, 4 bytes each.
    assert ONE.state_bytes == 4 * (160 * 64 + 17 * 32) == 43136


def test_bytes_of_blocks_by_hand():
    sizes = Sizes(batch=1, length=1024, heads=1, block=256)
    state = 43136
    assert io_model.key_sums(sizes).bytes == 1024 * 160 + 3 * state  # no one needs the last block's
    assert io_model.scan(sizes).bytes == (3 + 4) * state
    assert io_model.outputs(sizes).bytes == 1024 * 324 + 4 * state
    assert io_model.query_sums(sizes).bytes == 1024 * 168 + 3 * state
    assert io_model.scan(Sizes(batch=1, length=1024, heads=1)) == Cost(0, 0)


def test_flops_by_hand():
    features, state, moments, pairs = 2 * 2 * 16 * 160, 2 * 160 * 64, 2 * 16 * 32, 2 * 64 * (16 + 64)
    assert io_model.key_sums(ONE).flops == features + state + moments
    assert io_model.outputs(ONE).flops == 2 * features + 2 * (state + moments) + pairs == 73728
    assert io_model.dv(ONE).flops == io_model.outputs(ONE).flops
    assert io_model.dq(ONE).flops == 3 * features + 2 * (state + moments) + pairs + 2 * 64 * 16
    # Values of 112 channels take two tiles of 64: everything twice, the features too.
    assert io_model.outputs(Sizes(1, 1, 1, value_size=112)).flops == 2 * 73728


def test_decoding_by_hand():
    assert io_model.taylor_step(1, 1).bytes == 2 * 153 * 65 * 4 + 2 * (16 + 16 + 64 + 64) == 79560 + 320
    assert io_model.taylor_step(128, 16).bytes == 128 * 16 * 79880
    assert io_model.taylor_step(1, 1, state_itemsize=2).bytes == 39780 + 320
    # 63 slots, the new token in and written, q and y: 66 pairs of 64 channels.
    assert io_model.window_step(1, 1).bytes == 66 * 2 * 64 * 2 == 16896
    assert io_model.window_step(1, 16, kv_heads=4).bytes == 4 * 2 * 128 * (65 + 4)


def test_the_papers_ratio():
    """Based, 4.1: 7.6 times fewer elements through the device's memory for K = 16, V = 64."""
    assert io_model.framework_baseline(ONE).bytes / io_model.fused_ideal(ONE).bytes == pytest.approx(7.625)


def test_costs_are_linear_in_rows_and_heads():
    one, many = Sizes(1, 512, 1, block=128), Sizes(6, 512, 5, block=128)
    for cost in (*TAYLOR.values(), io_model.scan, io_model.forward, io_model.backward, io_model.softmax):
        assert cost(many) == Cost(30 * cost(one).bytes, 30 * cost(one).flops)


def test_the_bound_is_the_slower_of_memory_and_arithmetic():
    assert Cost(bytes=10, flops=100).seconds(bandwidth=2, rate=50) == 5
    assert Cost(bytes=10, flops=100).seconds(bandwidth=10, rate=50) == 2


@pytest.mark.parametrize("key_size", [1, 8, 9, 16, 17, 24, 25, 32])
def test_the_layout_is_the_kernels(key_size):
    sizes, layout = Sizes(1, 1, 1, key_size=key_size, value_size=1), Layout(key_size, 1)
    assert sizes.state_rows == layout.size
    assert sizes.state_bytes == 4 * (layout.size + (layout.padded_key_size + 1) * layout.last)


UNREAD = {"dv": 2}
"""Kernel -> argument of its case that it does not read: v."""


@pytest.mark.parametrize("name", TAYLOR)
def test_bytes_are_those_of_the_kernels_arrays(name):
    kernel, sizes = name.removeprefix("taylor_"), Sizes(batch=4, length=8192, heads=16, block=2048)
    own = attention_cases.Sizes(sizes.batch, sizes.length, sizes.heads, sizes.block or 0)
    cases = attention_cases.cases([(16, 64, "bfloat16")], own)
    case = next(case for case in cases if case.kernel == kernel)
    read = [x for i, x in enumerate(case.arguments) if i != UNREAD.get(kernel)]
    results = jax.eval_shape(case.function, *case.arguments)
    assert TAYLOR[name](sizes).bytes == nbytes(read) + nbytes(results)


def test_bytes_of_decoding_are_those_of_its_arrays():
    for case in taylor_step_cases.cases():
        q, _, v, kv, _ = case.arguments
        sizes = (*q.shape, v.shape[-1], q.dtype.itemsize, kv.dtype.itemsize)
        tokens = nbytes(case.arguments[:3]) + nbytes([v])
        assert io_model.taylor_step(*sizes).bytes == tokens + 2 * nbytes(case.arguments[3:]), case.name
    for case in window_step_cases.cases():
        q, k, v, k_ring, v_ring, _ = case.arguments
        slots = k_ring.shape[1]
        # All slots but the new token's are read; that one is written.
        assert io_model.window_step(
            *q.shape[:2], slots, q.shape[-1], k.shape[1], q.dtype.itemsize
        ).bytes == nbytes([q, k, v, q, k_ring, v_ring])


def test_bytes_of_window_attention_are_those_of_its_arrays():
    costs = {"outputs": io_model.window_outputs, "dq": io_model.window_dq, "dkv": io_model.window_dkv}
    for case in window_attention_cases.cases():
        q, k, v = case.arguments[:3]
        batch, length, kv_heads, shared, size = q.shape
        sizes = (batch, length, kv_heads * shared, kv_heads, 63, size, v.shape[-1], k.dtype.itemsize)
        read = [x for x in case.arguments if x.dtype != "int32"]
        results = jax.eval_shape(case.function, *case.arguments)
        expected = nbytes(read) + nbytes(results)
        assert costs[case.kernel](io_model.WindowSizes(*sizes)).bytes == expected, case.name
    # 64 queries of 16 channels, each with 64 + 64 keys in blocks, two products
    assert (
        io_model.window_outputs(io_model.WindowSizes(1, 64, 1, 1, 63, 16, 16)).flops == 64 * 128 * 16 * 2 * 2
    )


def nbytes(arrays) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


def test_the_table_of_the_docs_is_the_models():
    page = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
    assert io_model.table() in page.read_text(), "run python -m benchmarks.gpu.io_model and put it there"
