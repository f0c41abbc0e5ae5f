"""Count bytes, FLOPs and launches of a compiled program, instruction by instruction, as the GPU runs them.

A fusion is one launch that reads its operands and writes its results. If an operand is only sliced, the
slices count; if a result is updated in place, the update counts. FLOPs are those of matrix products, and of
our kernels and of cuDNN's attention by formula; other arithmetic is hidden by memory access. A loop counts
once per iteration. Caches are not modelled: what is read twice counts twice.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gpu import io_model
from benchmarks.gpu.io_model import Cost, Rates, Sizes, WindowSizes
from benchmarks.gpu.static.hlo import Computation, Instruction, Program, Shape

FREE = frozenset(
    {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id"}
)
"""Opcodes that run nothing."""

FUSIONS = frozenset({"fusion", "fusion-start"})

UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write into their first operand, and the index of the operand with the written values."""

SLICES = frozenset({"dynamic-slice", "slice", "gather"})

WITHOUT_PRODUCTS = ("taylor_scan", "softmax_loss", "conv_step", "gated_conv", "rms_norm", "selective_scan")
"""How the names of kernels without matrix products begin."""

WIDE = frozenset({"f32", "f64"})
"""Types whose products the tensor cores take at the lower rate."""


@dataclass(frozen=True)
class Work:
    """The cost of one instruction, over all its runs."""

    scope: str
    """see `hlo.Instruction.scope`"""
    name: str
    bytes: float
    flops: float
    launches: float
    is_wide: bool
    """whether the products are of float32 numbers"""
    is_known: bool = True
    """False for a kernel without a formula: its FLOPs are not counted"""

    def seconds(self, gpu: Rates) -> float:
        """Return the least time on a GPU: its memory and its tensor cores work in parallel."""
        return max(self.bytes / gpu.bandwidth, self.flops / (gpu.wide if self.is_wide else gpu.products))


def work(program: Program) -> list[Work]:
    """Return the cost of each launch. A loop with an unknown number of iterations counts once."""
    return list(_walk(program, program.computations[program.entry], 1, ""))


def turn(program: Program) -> list[Work]:
    """Return the cost of each launch in one iteration of the longest loop, such as the decoding loop.

    Raises:
        LookupError: the program has no loop.
    """
    first = program.computations[program.entry].instructions
    bodies = [program.computations[x.called[0]] for x in first if x.opcode == "while"]
    if not bodies:
        raise LookupError("the program has no loop")
    body = max(bodies, key=lambda body: len(body.instructions))
    return list(_walk(program, body, 1, ""))


def _walk(program: Program, where: Computation, times: int, scope: str) -> Iterator[Work]:
    """`scope` is that of the loop around these instructions, as some have none of their own."""
    for x in where.instructions:
        if x.opcode in FREE or x.opcode.endswith("-done"):
            continue
        inside = x.scope or scope
        if x.opcode in ("while", "call", "conditional", "async-start"):
            turns = times * (x.trip_count or 1)
            bodies = (program.computations[name] for name in x.called)
            found = [list(_walk(program, body, turns, inside)) for body in bodies]
            # Only one branch runs: the largest stands for all.
            yield from max(found, key=lambda works: sum(each.bytes for each in works), default=[])
            continue
        flops, is_wide = _flops(program, where, x)
        size: float = _bytes(program, where, x)
        known = None
        if x.opcode == "custom-call":
            known = kernel(inside, [shape for each in where.operands(x) for shape in each.shapes])
        if known is not None:
            # The shapes do not show how much of a result that is written into an argument is new.
            size = known.bytes or size if "output_to_operand_aliasing" in x.attributes else size
            flops = known.flops
        is_known = x.opcode != "custom-call" or known is not None
        yield Work(inside, x.name, times * size, times * flops, times, is_wide, is_known)


def _bytes(program: Program, where: Computation, x: Instruction) -> int:
    """Return the bytes that a launch moves."""
    if x.opcode in SLICES:
        return 2 * x.bytes
    if x.opcode in UPDATES:
        return 2 * where.by_name[x.operands[UPDATES[x.opcode]]].bytes
    operands = list(where.operands(x))
    if x.opcode not in FUSIONS:
        return x.bytes + sum(each.bytes for each in operands)
    inside = program.computations[x.called[0]]
    pairs = zip(inside.parameters, operands, strict=True)
    return _written(inside, inside.root) + sum(_read(inside, p, full.bytes) for p, full in pairs)


def _read(inside: Computation, x: Instruction, full: int) -> int:
    """Return the bytes that a fusion reads of one of its operands."""
    total = 0
    for user in inside.users(x):
        if user.opcode in SLICES and user.operands[0] == x.name:
            total += user.bytes
        elif user.opcode in UPDATES and user.operands[0] == x.name:
            continue  # in place: the rest is not moved
        elif user.opcode in ("bitcast", "reshape", "copy"):
            total += _read(inside, user, full)
        else:
            return full
    return min(total, full)


def _written(inside: Computation, root: Instruction) -> int:
    """Return the bytes that a fusion writes."""
    if root.opcode == "tuple":
        return sum(_written(inside, each) for each in inside.operands(root))
    if root.opcode in UPDATES and _is_argument(inside, inside.by_name[root.operands[0]]):
        return inside.by_name[root.operands[UPDATES[root.opcode]]].bytes
    if root.opcode == "bitcast":
        return min(root.bytes, sum(_written(inside, each) for each in inside.operands(root)))
    return root.bytes


def _is_argument(inside: Computation, x: Instruction) -> bool:
    """Return whether an array enters a fusion unchanged; arrays made inside are written whole."""
    while x.opcode in ("bitcast", "reshape", "copy"):
        x = inside.by_name[x.operands[0]]
    return x.opcode == "parameter"


def _flops(program: Program, where: Computation, x: Instruction) -> tuple[float, bool]:
    """Return FLOPs of the products in an instruction and its callees, and whether they are of float32."""
    if x.opcode == "dot":
        left = where.by_name[x.operands[0]].shapes[0]
        contracted = math.prod(left.sizes[axis] for axis in x.sizes("lhs_contracting_dims"))
        return 2.0 * x.shapes[0].count * contracted, left.dtype in WIDE
    if x.opcode not in FUSIONS:
        return 0.0, False
    inside = program.computations[x.called[0]]
    found = [_flops(program, inside, each) for each in inside.instructions]
    return sum(flops for flops, _ in found), any(is_wide for flops, is_wide in found if flops)


def kernel(scope: str, arguments: list[Shape]) -> Cost | None:
    """Return the cost of a call of one of our kernels; `scope` ends in its name."""
    found = re.search(r"(\w+?)(?:_mosaic)?/(?:pallas_call|mpmd_map)$", scope)
    name = found[1] if found else ""
    floats = [x for x in arguments if x.dtype in ("bf16", "f16", "f32") and len(x.sizes) >= 3]
    if name.startswith(WITHOUT_PRODUCTS):
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
    if name == "conv_row_product":
        (_, channels, length), *convs = floats[0].sizes, *(x.sizes for x in arguments if len(x.sizes) == 2)
        taps = max(count for count, _ in convs)
        return io_model.conv_row_product(length, channels, taps, _itemsize(floats[0]))
    if (found := re.fullmatch(r"((?:channel_)?(?:delta_rule|linear_recurrence))_(\w+)", name)) is not None:
        q, _, v = floats[:3]
        return io_model.recurrence(found[1], found[2], v.count // v.sizes[-1], q.sizes[-1], v.sizes[-1])
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
