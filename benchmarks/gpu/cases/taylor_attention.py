"""The kernels of Taylor attention on the shapes that the tuning table distinguishes."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.function import Call, Variant, is_slow
from pallas_kernels.taylor_attention.gradients import key_or_value_gradient, query_gradients
from pallas_kernels.taylor_attention.layout import Layout
from pallas_kernels.taylor_attention.outputs import outputs
from pallas_kernels.taylor_attention.sums import ELEMENTS, WARPS, key_sums, query_sums, scan_states

KERNELS = ("key_sums", "query_sums", "outputs", "dq", "dk", "dv")

SHAPES = (
    *((16, value_size, "bfloat16") for value_size in (64, 112, 128, 32)),
    *((key_size, 64, "bfloat16") for key_size in (8, 24, 32)),
    *((key_size, 64, "float32") for key_size in (8, 16, 24, 32)),
    (16, 64, "float16"),
)
"""(K, V, dtype): Based-360M and -1.3B first."""


@dataclass(frozen=True)
class Sizes:
    """The rest of a shape."""

    batch: int = 4
    length: int = 8192
    heads: int = 16
    block: int = 2048
    """tokens per program"""


SIZES = Sizes()


@dataclass(frozen=True)
class Programs:
    """Sizes of the scan's programs, which have nothing to tune."""

    elements: int = ELEMENTS
    warps: int = WARPS
    stages: int = 1


def cases(shapes: Sequence[tuple[int, int, str]] = SHAPES, sizes: Sizes = SIZES) -> list[Case]:
    """Return every kernel on every shape; in bfloat16 with V 64 also with segments, states; the scan."""
    found = [case(kernel, *shape, sizes=sizes) for shape in shapes for kernel in KERNELS]
    packed = [shape for shape in shapes if shape[1:] == (64, "bfloat16")]
    found += [case(kernel, *shape, packed=True, sizes=sizes) for shape in packed for kernel in KERNELS]
    return [*found, _scan(sizes, False), _scan(sizes, True)]


def at_highest_precision() -> list[Case]:
    """Return every kernel on float32 operands that are split in three."""
    options: dict[str, Any] = {"packed": True, "precision": "highest"}
    return [case(kernel, size, 64, "float32", **options) for size in (16, 24) for kernel in KERNELS]


def _variants(key_size: int, value_size: int, present: Variant) -> list[dict[str, Any]]:
    """Return block sizes to measure beside those in use; no two of them are the same program."""
    widest, layout = pl.next_power_of_2(value_size), Layout(key_size, 1)
    tiles = [(present.value_tile, tile) for tile in (32, 64) if layout.pure % tile == 0]
    tiles += [(value_tile, present.tile) for value_tile in (32, 64, 128)]
    tried = {}
    for chunk, warps in ((present.chunk, present.warps), (64, 4), (128, 4), (128, 8), (32, 4), (64, 8)):
        for stages in (present.stages, 1, 3):  # 2 copies too late to hide anything
            sizes_of_loop = {"chunk": chunk, "warps": warps, "stages": stages}
            for value_tile, tile in tiles:
                variant = replace(present, value_tile=value_tile, tile=tile, **sizes_of_loop)
                # A tile wider than the values is cut to their width: the same program again.
                tried.setdefault(replace(variant, value_tile=min(value_tile, widest)), variant)
    return [asdict(variant) for variant in sorted(set(tried.values()), key=str)]


def case(
    kernel: str,
    key_size: int,
    value_size: int,
    dtype: str,
    packed: bool = False,
    sizes: Sizes = SIZES,
    precision: str | None = None,
) -> Case:
    """Return one kernel; `packed` includes states at both ends."""
    call = Call(1e-12, packed, True, packed, precision, sizes.block, ())
    shape = jax.ShapeDtypeStruct
    keys = shape((sizes.batch, sizes.length, sizes.heads, key_size), dtype)
    values = shape((sizes.batch, sizes.length, sizes.heads, value_size), dtype)
    numbers = shape((sizes.batch, sizes.heads, sizes.length), "float32")
    arrays = {
        "key_sums": [keys, values],
        "query_sums": [keys, values, numbers, numbers],
        "outputs": [keys, keys, values],
    }.get(kernel, [keys, keys, values, values, numbers, numbers])
    count, fill = len(arrays), {}
    if "sums" not in kernel:
        plan = call.plan(kernel, keys, values)
        arrays += [specs.shape(plan, axes) for axes in specs.BLOCK_STATES]
    if packed:  # one segment that continues from the state, no padding
        fill = {len(arrays): -1, len(arrays) + 1: sizes.length}
        arrays += [shape((sizes.batch, sizes.length), "int32"), shape((sizes.batch,), "int32")]

    def function(*arrays: jax.Array, variant: Variant) -> Any:
        plan = replace(call, variants=((kernel, variant),)).plan(kernel, keys, values)
        tables = [jnp.asarray(table) for table in specs.constant_tables(plan)]
        inputs, rest = arrays[:count], list(arrays[count:])
        states = None if "sums" in kernel else (rest.pop(0), rest.pop(0))
        match kernel:
            case "key_sums":
                return key_sums(plan, tables, inputs, rest)
            case "query_sums":
                return query_sums(plan, tables, inputs, rest, first=1)
            case "outputs":
                return outputs(plan, tables, inputs, rest, states, 1e-12, return_state=packed)
            case "dq":
                return query_gradients(plan, tables, inputs, rest, states)
            case _:
                return key_or_value_gradient(plan, tables, inputs, rest, states, kernel)

    words = " ".join([f"K{key_size} V{value_size} {dtype}", *["packed"] * packed, *filter(None, [precision])])
    given = function, arrays, call.facts(kernel, keys, values)
    variants = _variants(key_size, value_size, call.variant(kernel, keys, values))
    more = {"on_request": is_slow(keys, keys, values), "fill": fill}
    return tunable("taylor_attention", kernel, words, *given, variants, **more)


def _scan(sizes: Sizes, reverse: bool) -> Case:
    blocks = sizes.length // sizes.block
    sums = jax.ShapeDtypeStruct((sizes.batch, sizes.heads, blocks - 1, 160, 64), "float32")
    initial = jax.ShapeDtypeStruct((sizes.batch, sizes.heads, 160, 64), "float32")
    keep = jax.ShapeDtypeStruct((sizes.batch, blocks - 1), "float32")
    words = "K16 V64 float32" + " reversed" * reverse
    function = functools.partial(scan_states, reverse=reverse)
    return Case("taylor_attention", "scan", words, Programs(), function, (sums, initial, keep))
