"""The kernels of one token: a table of realistic calls of each, with every row of its tuning table."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, grid, tunable
from pallas_kernels.conv_step import conv_step
from pallas_kernels.conv_step import facts_of as conv_facts
from pallas_kernels.row_products import conv_row_product, gated_row_product, row_products
from pallas_kernels.row_products import facts_of as row_facts
from pallas_kernels.taylor_attention.layout import symmetric_size
from pallas_kernels.taylor_step import facts_of as taylor_facts
from pallas_kernels.taylor_step import taylor_step
from pallas_kernels.window_step import Rotary, window_step
from pallas_kernels.window_step import facts_of as window_facts

ROWS, HEADS = 128, 16

POSITION = 750
"""Number of earlier tokens of every row in a measurement: the windows are full."""

# B, K, V, dtype of q, k, v, dtype of the state.
TAYLOR = [
    (1, 16, 64, "bfloat16", "float32"),  # a head of the released 360m model
    (ROWS, 16, 64, "bfloat16", "float32"),
    (ROWS, 16, 64, "bfloat16", "bfloat16"),
    (ROWS, 16, 64, "float32", "float32"),
    (ROWS, 16, 112, "bfloat16", "float32"),  # and of the 1.3b model
    (ROWS, 16, 128, "bfloat16", "float32"),
    (ROWS, 16, 256, "bfloat16", "float32"),
    (ROWS, 8, 64, "bfloat16", "float32"),
    (ROWS, 24, 64, "bfloat16", "float32"),
    (ROWS, 32, 64, "bfloat16", "float32"),
    (ROWS, 32, 256, "float32", "float32"),  # the largest that is supported
]

# W, H, G, K = V, dtype, rotary.
WINDOW = [
    (64, 16, 16, 64, "bfloat16", Rotary(64)),  # the paper's window
    (64, 16, 16, 64, "float32", Rotary(64)),
    (65, 16, 16, 64, "bfloat16", Rotary(32)),  # a torch window_size of 128: 64 past keys and its own
    (128, 16, 16, 64, "bfloat16", None),
    (64, 16, 4, 64, "bfloat16", Rotary(64)),
    (129, 16, 1, 128, "bfloat16", Rotary(128, interleaved=True)),
    (64, 16, 16, 112, "bfloat16", Rotary(56)),
    (16, 16, 16, 70, "bfloat16", Rotary(35)),
    (64, 8, 8, 256, "bfloat16", None),  # the widest that is supported
]

# B, E, T, bias, gated, dtype.
CONV = [
    (1, 2048, 3, False, True, "bfloat16"),  # gated_conv of based-360m
    (128, 2048, 3, False, True, "bfloat16"),
    (128, 2048, 4, True, False, "bfloat16"),  # mamba-360m
    (16, 1000, 2, True, True, "float32"),  # a last block that is not full
]

# K, then the results of each matrix, or of two halves, dtype.
PRODUCTS = [
    (1024, (1024, 1024, 1024), "bfloat16"),  # sliding_window of based-360m
    (1024, (256, 256, 1024), "bfloat16"),  # its linear_attention
    (2048, (1024,), "bfloat16"),  # the second product of its MLP
    (1024, ((2, 2048),), "bfloat16"),  # its MLP
    (1792, ((2, 3584),), "bfloat16"),  # based-1b's
    (1024, ((2, 2730),), "float16"),  # a last block that is not full
    (192, (192, 64), "bfloat16"),
]

# K, E, T, bias of the convolution, dtype.
CONV_PRODUCTS = [
    (1024, 2048, 3, False, "bfloat16"),  # gated_conv of based-360m
    (1792, 3584, 3, False, "bfloat16"),  # based-1b's
    (192, 190, 4, True, "float16"),  # a last block that is not full
]


def taylor_cases() -> Iterator[Case]:
    """Yield the calls of `TAYLOR`."""
    for batch, key_size, value_size, dtype, state in TAYLOR:
        width, count = pl.next_power_of_2(value_size), symmetric_size(key_size)
        tokens = [Shape((batch, HEADS, size), dtype) for size in (key_size, key_size, value_size)]
        sums = [Shape((batch, HEADS, *size), state) for size in ((count, value_size), (count,))]
        variants = grid(
            # Fewer elements per thread do not fill its loads; more do not fit its registers.
            lambda rows, warps, width=width: 8 <= rows * width // (32 * warps) <= 64,
            rows=(8, 16, 32, 64, 128, 256),
            warps=(1, 2, 4, 8, 16),
        )
        words = f"{'B1 ' * (batch == 1)}K{key_size} V{value_size} {dtype} state {state}"
        arguments = [*tokens, *sums]
        given = "taylor_step", "step", words, taylor_step, arguments, taylor_facts(*arguments[:4]), variants
        yield tunable(*given, carried={3: 1, 4: 2})


def window_cases() -> Iterator[Case]:
    """Yield the calls of `WINDOW`."""
    for slots, heads, kv_heads, size, dtype, rotary in WINDOW:
        most, width = pl.next_power_of_2(slots), pl.next_power_of_2(size)
        tokens = [Shape((ROWS, n, size), dtype) for n in (heads, kv_heads, kv_heads)]
        rings = [Shape((ROWS, slots, kv_heads, size), dtype)] * 2
        variants = grid(
            # Elements of the keys' tile per thread; the values take as many registers again.
            lambda slots, warps, queries, width=width: 4 <= slots * width // (32 * warps) <= 64,
            slots=[tile for tile in (16, 32, 64, 128) if tile <= most],
            warps=(1, 2, 4, 8),
            queries=[queries for queries in (1, 2, 4) if queries <= heads // kv_heads],
        )
        rotation = f"rotary {rotary.dim}" if rotary else "no rotary"
        words = f"W{slots} H{heads} G{kv_heads} K{size} {dtype} {rotation}"
        arguments = [*tokens, *rings, Shape((ROWS,), "int32")]
        step = functools.partial(window_step, rotary=rotary)
        given = "window_step", "step", words, step, arguments, window_facts(*arguments[:4]), variants
        yield tunable(*given, fill={5: POSITION}, carried={3: 1, 4: 2})


def conv_cases() -> Iterator[Case]:
    """Yield the calls of `CONV`."""
    variants = grid(
        lambda channels, warps: 1 <= channels // (32 * warps) <= 8,
        channels=(128, 256, 512, 1024),
        warps=(1, 2, 4, 8),
    )
    for batch, channels, taps, bias, gated, dtype in CONV:
        arguments = [Shape((batch, 2, channels), dtype), Shape((batch, taps - 1, channels), dtype)]
        arguments += [Shape((batch,), "int32"), Shape((taps, channels), dtype)]
        arguments += [Shape((channels,), dtype)] * bias
        words = f"B{batch} E{channels} T{taps} {dtype}{' bias' * bias}{' gated' * gated}"
        step = functools.partial(conv_step, gated=gated)
        given = "conv_step", "step", words, step, arguments, conv_facts(arguments[0]), variants
        yield tunable(*given, fill={2: POSITION}, carried={1: 1})


def product_cases() -> Iterator[Case]:
    """Yield the calls of `PRODUCTS` and `CONV_PRODUCTS`."""
    for length, results, dtype in PRODUCTS:
        gated = isinstance(results[0], tuple)
        sizes = [(*(count if gated else (count,)), length) for count in results]
        arguments = [Shape(shape, dtype) for shape in ((length,), *sizes)]
        words = f"K{length} N{'+'.join(str(size[-2]) for size in sizes)} {dtype}"
        kernel, function = ("gated", gated_row_product) if gated else ("several", row_products)
        yield _of_row(kernel, words, function, arguments, row_facts(*arguments))
    for length, channels, taps, bias, dtype in CONV_PRODUCTS:
        sizes = [(length,), (2, channels, length), (2, channels), (1, taps - 1, channels), (taps, channels)]
        arguments = [Shape(size, dtype) for size in (*sizes, *[(channels,)] * bias)]
        arguments.insert(4, Shape((1,), "int32"))
        words = f"K{length} E{channels} T{taps} {dtype}{' bias' * bias}"
        options: Any = {"fill": {4: POSITION}, "carried": {3: 1}}
        yield _of_row("conv", words, _conv_product, arguments, row_facts(*arguments[:2]), **options)


def _conv_product(x: Any, matrix: Any, added: Any, *conv: Any, variant: Any) -> tuple[jax.Array, ...]:
    return conv_row_product(x, matrix, *conv, added=added, variant=variant)


def _of_row(
    kernel: str, words: str, function: Callable[..., Any], arguments: Sequence[Shape], facts: Any, **more: Any
) -> Case:
    length = arguments[0].shape[0]
    variants = grid(
        lambda width, results, warps: 4 <= width * results // (32 * warps) <= 64,  # numbers per thread
        width=[width for width in (64, 256, 512, 1024, 2048) if length % width == 0],
        results=(2, 4, 8, 16),
        warps=(2, 4, 8),
    )
    return tunable("row_products", kernel, words, function, arguments, facts, variants, **more)
