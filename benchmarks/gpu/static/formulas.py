"""Compute what compiled text lacks by formula: our kernels' FLOPs, and the cost of cuDNN's attention."""

import re

from benchmarks.gpu import io_model
from benchmarks.gpu.io_model import Cost, Sizes, WindowSizes
from benchmarks.gpu.static.hlo import Shape


def kernel(scope: str, arguments: list[Shape]) -> Cost | None:
    """Return the cost of a call of one of our kernels; `scope` ends in its name."""
    found = re.search(r"(\w+?)(?:_mosaic)?/(?:pallas_call|mpmd_map)$", scope)
    name = found[1] if found else ""
    floats = [x for x in arguments if x.dtype in ("bf16", "f16", "f32") and len(x.sizes) >= 3]
    if name in ("taylor_scan", "softmax_loss", "conv_step") or name.startswith(("gated_conv_", "rms_norm_")):
        return Cost(0, 0)  # no products; its bytes are its operands' and results'
    if name == "taylor_step":
        q, _, v, state = floats[:4]
        (batch, heads, key_size), value_size = q.sizes, v.sizes[-1]
        return io_model.taylor_step(batch, heads, key_size, value_size, _itemsize(q), _itemsize(state))
    if name == "window_step":
        q, k = floats[:2]
        window = next(x.sizes[1] for x in floats if len(x.sizes) == 4)
        batch, heads, size = q.sizes
        return io_model.window_step(batch, heads, window, size, k.sizes[1], _itemsize(q))
    if name in ("row_products", "gated_row_product"):
        row, *matrices = (x for x in arguments if x.dtype in ("bf16", "f16", "f32"))
        columns = sum(matrix.count // row.count for matrix in matrices if len(matrix.sizes) > 1)
        results = columns // 2 if name == "gated_row_product" else columns
        return io_model.row_products(row.count, columns, results, _itemsize(row))
    # The kernels of window attention have their window in the name.
    if window := re.fullmatch(r"window_(\w+)_left(\d+)", name):
        q, k, v = floats[:3]
        (batch, length, kv_heads, shared, key_size), value_size = q.sizes, v.sizes[-1]
        sizes = kv_heads * shared, kv_heads, int(window[2]), key_size, value_size, _itemsize(k)
        return io_model.window(window[1], WindowSizes(batch, length, *sizes))
    if (taylor := name.removeprefix("taylor_")) in io_model.KERNELS:
        v = next(x for x in floats if len(x.sizes) == 4 and x.sizes[-1] != floats[0].sizes[-1])
        batch, length, heads, key_size = floats[0].sizes
        return io_model.kernel(taylor, Sizes(batch, length, heads, key_size, v.sizes[-1], _itemsize(v)))
    return None


def _itemsize(shape: Shape) -> int:
    return shape.bytes // shape.count


def fused_attention(batch: int, length: int, heads: int, kv_heads: int, width: int, *, trains: bool) -> Cost:
    """Return the cost of fused causal softmax attention in bfloat16, with gradients if `trains`.

    Scores never reach memory. Forward q, k, v are read, y and a float32 log-sum are written; a query meets
    (N + 1) / 2 keys on average, 4 FLOPs a channel each. Backward q, k, v, y, dy and the log-sum are read, dq,
    dk, dv written; five products of that size instead of two.
    """
    queries, keys = (2 * batch * length * count * width for count in (heads, kv_heads))
    log_sum = 4 * batch * length * heads
    forward = Cost(2 * queries + 2 * keys + log_sum, 2.0 * batch * heads * length * (length + 1) * width)
    if not trains:
        return forward
    return forward + Cost(4 * queries + 4 * keys + log_sum, 2.5 * forward.flops)
