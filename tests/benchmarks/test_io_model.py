"""The formulas of bytes and FLOPs against counts by hand, against the kernels' arrays, and in the docs."""

from dataclasses import replace

import jax

from benchmarks.gpu import io_model
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.io_model import KERNELS, Cost, Sizes, WindowSizes, kernel

ONE = Sizes(batch=1, length=1, heads=1)
"""One token of one head, K = 16, V = 64, bfloat16."""


def test_bytes_by_hand():
    """Those of the kernels are compared with their arrays, below."""
    assert io_model.forward(ONE) == kernel("outputs", ONE)
    assert io_model.normaliser_gradient(ONE) == Cost(2 * 128 + 8, 2 * 64)
    # 160 rows of 64 values, 17 rows of 32 moments, 4 bytes each.
    assert ONE.state_bytes == 4 * (160 * 64 + 17 * 32) == 43136
    sizes = Sizes(batch=1, length=1024, heads=1, block=256)
    assert io_model.scan(sizes).bytes == (3 + 4) * 43136
    assert io_model.scan(replace(sizes, block=None)) == Cost(0, 0)


def test_flops_by_hand():
    features, state, moments, pairs = 2 * 2 * 16 * 160, 2 * 160 * 64, 2 * 16 * 32, 2 * 64 * (16 + 64)
    assert kernel("key_sums", ONE).flops == features + state + moments
    assert kernel("outputs", ONE).flops == 2 * features + 2 * (state + moments) + pairs == 73728
    assert kernel("dv", ONE).flops == kernel("outputs", ONE).flops
    assert kernel("dq", ONE).flops == 3 * features + 2 * (state + moments) + pairs + 2 * 64 * 16
    # Values of 112 channels take two tiles of 64: everything twice, the features too.
    assert kernel("outputs", Sizes(1, 1, 1, value_size=112)).flops == 2 * 73728


def test_costs_are_linear_in_rows_and_heads():
    one, many = Sizes(1, 512, 1, block=128), Sizes(6, 512, 5, block=128)
    pairs = [(kernel(name, one), kernel(name, many)) for name in KERNELS]
    for cost in (io_model.scan, io_model.forward, io_model.backward):
        pairs.append((cost(one), cost(many)))
    for single, total in pairs:
        assert total == Cost(30 * single.bytes, 30 * single.flops)


def test_bytes_of_attention_are_those_of_the_kernels_arrays():
    sizes = Sizes(batch=4, length=8192, heads=16, block=2048)
    for name in KERNELS:
        case, *_ = catalog.cases(f"taylor_attention/{name} K16 V64 bfloat16 Variant")
        read = [x for i, x in enumerate(case.arguments) if (name, i) != ("dv", 2)]  # dv does not read v
        assert kernel(name, sizes).bytes == nbytes(read) + nbytes(results(case)), name


def test_bytes_of_window_attention_are_those_of_its_arrays():
    for case in catalog.cases("window_attention/"):
        (batch, length, kv_heads, shared, size), k, v = case.arguments[0].shape, *case.arguments[1:3]
        sizes = (kv_heads * shared, kv_heads, 63, size, v.shape[-1], k.dtype.itemsize)
        read = [x for x in case.arguments if x.dtype != "int32"]
        expected = nbytes(read) + nbytes(results(case))
        assert io_model.window(case.kernel, WindowSizes(batch, length, *sizes)).bytes == expected, case.name
    # 64 queries of 16 channels, each with 64 + 64 keys in blocks, two products
    assert io_model.window("outputs", WindowSizes(1, 64, 1, 1, 63, 16, 16)).flops == 64 * 128 * 16 * 2 * 2


def test_bytes_of_decoding_are_those_of_its_arrays():
    for case in catalog.cases("taylor_step/"):
        q, _, v, kv, _ = case.arguments
        sizes = (*q.shape, v.shape[-1], q.dtype.itemsize, kv.dtype.itemsize)
        tokens = nbytes(case.arguments[:3]) + nbytes([v])
        assert io_model.taylor_step(*sizes).bytes == tokens + 2 * nbytes(case.arguments[3:]), case.name
    for case in catalog.cases("window_step/"):
        q, k, v, k_ring, v_ring, _ = case.arguments
        sizes = (*q.shape[:2], k_ring.shape[1], q.shape[-1], k.shape[1], q.dtype.itemsize)
        # All slots but the new token's are read; that one is written.
        assert io_model.window_step(*sizes).bytes == nbytes([q, k, v, q, k_ring, v_ring])


def results(case):
    return jax.eval_shape(case.function, *case.arguments)


def nbytes(arrays) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))
