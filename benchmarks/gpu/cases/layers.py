"""The kernels of whole sequences, but for Taylor attention: a table of realistic calls of each.

Every row of a tuning table is there at least once.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
from jax import ShapeDtypeStruct as Shape
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, grid, tunable
from pallas_kernels.gated_conv import facts_of as gate_facts
from pallas_kernels.gated_conv import kernel as gates
from pallas_kernels.linear_recurrence import facts_of as recurrence_facts
from pallas_kernels.linear_recurrence import per_channel, per_head
from pallas_kernels.linear_recurrence.program import Call as RecurrenceCall
from pallas_kernels.linear_recurrence.program import padded
from pallas_kernels.rms_norm import facts_of as norm_facts
from pallas_kernels.rms_norm import kernel as norms
from pallas_kernels.selective_scan import facts_of as scan_facts
from pallas_kernels.selective_scan import kernel as scans
from pallas_kernels.softmax_loss import gradients
from pallas_kernels.window_attention import kernels as windows
from pallas_kernels.window_attention.function import Call as WindowCall
from pallas_kernels.window_attention.function import facts_of as window_facts

BATCH, LENGTH = 16, 2048

HEADS = RecurrenceCall(1.0, None, False, None, saves=True)
HEADS_ERASE = replace(HEADS, erases=True)
CHANNELS, CHANNELS_ERASE = replace(HEADS, per_channel=True), replace(HEADS_ERASE, per_channel=True)
READS_BEFORE = replace(CHANNELS, inclusive=False)
"""Forms of linear recurrences: gates per head or channel, and what tokens erase and read."""

CHUNK = 64
"""Tokens of a chunk of the selective scan."""

# Past keys, H, G, K = V, dtype, whether there are segments and padding.
WINDOW = (
    (63, 16, 16, 64, "bfloat16", False),  # the paper's window, a layer of Based-360M
    (63, 16, 16, 64, "bfloat16", True),
    (63, 16, 16, 112, "bfloat16", False),  # of Based-1.3B
    (127, 16, 4, 128, "bfloat16", False),
    (15, 16, 16, 64, "float16", False),
    (63, 16, 16, 64, "float32", False),
    (127, 16, 16, 128, "float32", False),
)

# E, T, whether there is a bias, dtype, N.
GATES = (
    (2048, 3, True, "bfloat16", 2048),  # gated_conv of based-360m
    (2048, 0, False, "bfloat16", 2048),  # its MLP
    (2816, 0, False, "bfloat16", 2048),  # the MLP of attn-360m
    (1000, 4, False, "float32", 500),  # last blocks that are not full
)

# (B, N, D), dtype of the branch, whether it has a bias.
NORMS = (
    ((16, 2048, 1024), "bfloat16", False),  # an MLP of based-360m
    ((16, 2048, 1024), "bfloat16", True),  # its gated_conv
    ((16, 2048, 1792), "bfloat16", False),  # based-1b
    ((3, 100, 4096), "float32", True),  # a last chunk that is not full
)

# E, S, dtype, N, whether some tokens forget the state.
SCANS = (
    (2048, 16, "bfloat16", 2048, False),  # mamba-360m
    (2048, 16, "bfloat16", 2048, True),
    (96, 8, "float32", 100, True),  # a last chunk that is not full
)

# G, R, K, V, dtype of q and k, dtype of v, N, whether tokens erase, whether there are segments.
RECURRENCES = (
    (8, 1, 128, 128, "float32", "bfloat16", 2048, HEADS_ERASE, False),  # Gated DeltaNet of width 1,024
    (8, 1, 128, 128, "float32", "bfloat16", 2048, HEADS_ERASE, True),
    (1, 32, 128, 64, "bfloat16", "bfloat16", 2048, HEADS, False),  # Mamba-2 of width 1,024
    (6, 1, 256, 512, "float32", "bfloat16", 2048, HEADS_ERASE, False),  # the widest
    (16, 1, 64, 64, "float32", "bfloat16", 2048, HEADS_ERASE, False),
    (2, 1, 24, 40, "float32", "float32", 100, HEADS_ERASE, True),  # padded, a last chunk that is not full
    (16, 1, 64, 64, "float32", "bfloat16", 2048, CHANNELS_ERASE, False),  # RWKV-7 of width 1,024
    (16, 1, 64, 64, "float32", "bfloat16", 2048, CHANNELS_ERASE, True),
    (4, 1, 128, 256, "bfloat16", "bfloat16", 2048, CHANNELS, False),  # GLA of width 1,024
    (16, 1, 64, 64, "bfloat16", "bfloat16", 2048, READS_BEFORE, False),  # RWKV-5 of width 1,024
    (2, 1, 256, 40, "float32", "float32", 100, CHANNELS, True),  # the widest, padded
)

# Rows, columns, vocabulary, dtype of the gradient.
LOSSES = (
    (8192, 50304, 50304, "bfloat16"),  # a chunk of based-360m
    (2048, 32064, 32000, "bfloat16"),  # padded columns
    (300, 1088, 1031, "float32"),  # one block that is not full
)


def window_cases() -> Iterator[Case]:
    """Yield each kernel of the calls of `WINDOW`."""
    for left, heads, kv_heads, size, dtype, packed in WINDOW:
        shared, width = heads // kv_heads, pl.next_power_of_2(size)
        query = Shape((BATCH, LENGTH, kv_heads, shared, size), dtype)
        key = Shape((BATCH, LENGTH, kv_heads, size), dtype)
        number = Shape((BATCH, kv_heads, shared, LENGTH), "float32")
        blocks = (16, 32, 64) if dtype == "float32" else (32, 64, 128)
        variants = grid(
            # Elements of the scores and of an accumulator per thread: too few leave the tensor cores idle.
            lambda queries, keys, warps, stages, width=width: (
                16 <= max(queries * keys, max(queries, keys) * width) // (32 * warps) <= 64
            ),
            queries=blocks,
            keys=blocks,
            warps=(2, 4, 8),
            stages=(1, 2),
        )
        call = WindowCall(left, size**-0.5, packed, ())
        words = f"L{left} H{heads} G{kv_heads} K{size} {dtype}" + " packed" * packed
        for kernel, run, arrays in (
            ("outputs", windows.outputs, [query, key, key]),
            ("dq", windows.query_gradients, [query, key, key, query, query, number]),
            ("dkv", windows.key_and_value_gradients, [query, key, key, query, number, number]),
        ):
            count = len(arrays)
            packing = [Shape((BATCH, LENGTH), "int32"), Shape((BATCH,), "int32")] * packed
            function = functools.partial(_window, run, call, kernel, count)
            facts = window_facts(kernel, size, size, dtype)
            fill = {count: 0, count + 1: LENGTH} if packed else {}  # one segment, no padding
            given = "window_attention", kernel, words, function, [*arrays, *packing], facts, variants
            yield tunable(*given, fill=fill)


def _window(run: Any, call: WindowCall, kernel: str, count: int, *arrays: jax.Array, variant: Any) -> Any:
    """Run a kernel on `count` arrays and the packing after them."""
    plan = replace(call, variants=((kernel, variant),)).plan(kernel, *arrays[:2])
    return run(plan, arrays[:count], arrays[count:])


def gate_cases() -> Iterator[Case]:
    """Yield both kernels of the calls of `GATES`."""
    for channels, taps, has_bias, dtype, length in GATES:
        inner, results = Shape((BATCH, length, 2, channels), dtype), Shape((BATCH, length, channels), dtype)
        parameters = [Shape((taps, channels), dtype)] * (taps > 0) + [Shape((2, channels), dtype)] * has_bias
        variants = [
            {"channels": width, "tokens": tokens, "rounds": chunk // tokens, "warps": warps}
            for width, warps in ((128, 1), (128, 2), (256, 1), (256, 2), (512, 2), (512, 4), (2048, 8))
            for tokens in (1, 2, 4, 8)
            for chunk in ((32, 64, 128) if taps else (8, 32, 64))
        ]
        call = gates.Call("silu", 0, taps, has_bias, None)
        words = f"E{channels} T{taps} {dtype}{' bias' * has_bias}"
        for kernel, run, arrays in (
            ("outputs", gates.outputs, [inner]),
            ("gradients", gates.gradients, [inner, results]),
        ):
            function = functools.partial(_gate, run, call)
            facts = gate_facts(call, kernel)
            yield tunable("gated_conv", kernel, words, function, [*arrays, *parameters], facts, variants)


def _gate(run: Any, call: gates.Call, *arrays: jax.Array, variant: Any) -> Any:
    return run(*arrays, call=replace(call, variant=variant))


def norm_cases() -> Iterator[Case]:
    """Yield both kernels of the calls of `NORMS`."""
    for shape, dtype, has_bias in NORMS:
        stream, branch = Shape(shape, "float32"), Shape(shape, dtype)
        scale, means = Shape(shape[2:], "float32"), Shape(shape[:2], "float32")
        width = pl.next_power_of_2(shape[-1])
        variants = [
            {"tokens": tokens, "rounds": chunk // tokens, "warps": warps}
            for tokens in (1, 2, 4, 8)
            for chunk in (8, 16, 32, 64)
            for warps in (2, 4, 8, 16)
            if 4 <= tokens * width // (32 * warps) <= 32
        ]
        words = f"D{shape[2]} {dtype}{' bias' * has_bias}"
        outputs = functools.partial(norms.outputs, eps=1e-5)
        gradient = functools.partial(norms.gradient, eps=1e-5, has_stream=True, has_bias=has_bias)
        for kernel, function, arguments in (
            ("outputs", outputs, [scale, stream, branch, *[scale] * has_bias, means]),
            ("gradient", gradient, [branch, means, scale, stream, branch, means]),
        ):
            facts = norm_facts(branch, kernel)
            yield tunable("rms_norm", kernel, words, function, arguments, facts, variants)


def scan_cases() -> Iterator[Case]:
    """Yield both kernels of the calls of `SCANS`."""
    for channels, states, dtype, length, forgets in SCANS:
        parts, chunks = channels // scans.BLOCK, pl.cdiv(length, CHUNK)
        x = Shape((BATCH, length, parts, scans.BLOCK), dtype)
        dt, maps = Shape(x.shape, "float32"), Shape((BATCH, length, states), dtype)
        A, D = Shape((states, *x.shape[2:]), "float32"), Shape(x.shape[2:], "float32")
        h, saved = Shape((BATCH, *A.shape), "float32"), Shape((BATCH, chunks, *A.shape), "float32")
        keep = [Shape(x.shape[:2], "float32")] * forgets
        words = f"E{channels} S{states} {dtype}{' packed' * forgets}"
        for kernel, run, rest in (
            ("outputs", scans.outputs, [h]),
            ("gradients", scans.gradients, [x, h, saved]),
        ):
            function, facts = functools.partial(_scan, run), scan_facts(states, kernel)
            arguments = [x, dt, A, maps, maps, D, *rest, *keep]
            variants = [{"tokens": tokens} for tokens in (1, 2, 4, 8, 16)]
            yield tunable("selective_scan", kernel, words, function, arguments, facts, variants)


def _scan(run: Any, *arrays: jax.Array, variant: Any) -> Any:
    return run(*arrays, call=scans.Call(CHUNK, True, variant))


def recurrence_cases(precision: str | None = None) -> Iterator[Case]:
    """Yield the kernels of the calls of `RECURRENCES`."""
    for groups, shared, keys, values, narrow, dtype, length, form, packed in RECURRENCES:
        heads = BATCH, groups, shared
        q, v = Shape((BATCH, length, groups, keys), narrow), Shape((BATCH, length, *heads[1:], values), dtype)
        numbers, state = Shape((*heads, length), "float32"), Shape((*heads, keys, values), "float32")
        call, erases = replace(form, precision=precision), form.erases
        gates, erasing = [numbers], [numbers] * erases
        if call.per_channel:
            gates, erasing = [Shape((BATCH, length, *heads[1:], keys), "float32")], [q, q] * erases
        saved = Shape((*heads, pl.cdiv(length, call.span), padded(keys), padded(values)), "float32")
        starts = [Shape((BATCH, length), "int32")] * packed
        kind = " channels" * call.per_channel + " before" * (not call.inclusive) + " erases" * erases
        words = " ".join([f"K{keys} V{values} {dtype}{kind}{' packed' * packed}", *filter(None, [precision])])
        recurrences = per_channel if call.per_channel else per_head
        for kernel, run, rest in (
            ("outputs", recurrences.outputs, [state]),
            ("state_gradients", recurrences.state_gradients, [v, state]),
            ("gradients", recurrences.gradients, [v, saved, saved]),
        ):
            chunks = [16] if kernel == "gradients" else [size for size in (16, 32) if size <= call.span]
            sizes = {"chunk": chunks, "keys": (16, 32), "values": (32, 64), "warps": (4, 8), "stages": (1, 2)}
            function, facts = (
                functools.partial(_recurrence, run, call),
                recurrence_facts(keys, call, kernel),
            )
            arguments = [q, q, v, *gates, *erasing, *rest, *starts]
            variants = grid(lambda **_: True, **sizes)
            yield tunable("linear_recurrence", kernel, words, function, arguments, facts, variants)


def _recurrence(run: Any, call: RecurrenceCall, *arrays: jax.Array, variant: Any) -> Any:
    return run(*arrays, call=replace(call, variant=variant))


def loss_cases() -> Iterator[Case]:
    """Yield the calls of `LOSSES`."""
    variants = grid(
        lambda columns, warps: 4 <= columns // (32 * warps) <= 32,
        columns=(1024, 2048, 4096, 8192),
        warps=(4, 8, 16, 32),
    )
    for rows, width, vocab, dtype in LOSSES:
        arguments = [Shape((rows, width), "float32"), Shape((rows,), "int32"), Shape((rows,), "float32")]
        function = functools.partial(gradients, vocab=vocab, dtype=dtype)
        yield tunable("softmax_loss", "gradients", f"V{vocab} {dtype}", function, arguments, {}, variants)
