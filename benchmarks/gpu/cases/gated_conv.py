"""Realistic calls of the kernels; see `catalog`."""

import dataclasses
import functools

import jax

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.gated_conv import Variant, facts_of, kernel, tuned
from pallas_kernels.gated_conv.kernel import Call

KERNELS = {"outputs": kernel.outputs, "gradients": kernel.gradients}

BATCH = 16

# E, T, whether there is a bias, dtype, N.
_SIZES = (
    (2048, 3, True, "bfloat16", 2048),  # gated_conv of based-360m
    (2048, 0, False, "bfloat16", 2048),  # its MLP
    (2816, 0, False, "bfloat16", 2048),  # the MLP of attn-360m
    (1000, 4, False, "float32", 500),  # last blocks that are not full
)


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    found = []
    for channels, taps, *rest in _SIZES:
        variants = [
            Variant(width, tokens, chunk // tokens, warps)
            for width, warps in ((128, 1), (128, 2), (256, 1), (256, 2), (512, 2), (512, 4), (2048, 8))
            for tokens in (1, 2, 4, 8)
            for chunk in ((32, 64, 128) if taps else (8, 32, 64))
        ]
        found += [tunable(_case, name, channels, taps, *rest, variants=variants) for name in KERNELS]
    return found


def _case(
    name: str,
    channels: int,
    taps: int,
    has_bias: bool,
    dtype: str,
    length: int,
    variant: Variant | None = None,
) -> Case:
    array = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
    open_call = Call("silu", 0, taps, has_bias, None)
    call = tuned(dataclasses.replace(open_call, variant=variant), name)
    arguments = [array((BATCH, length, 2, channels))]
    arguments += [array((BATCH, length, channels))] * (name == "gradients")
    arguments += [array((taps, channels))] * (taps > 0)
    arguments += [array((2, channels))] * has_bias
    function = functools.partial(KERNELS[name], call=call)
    shape = f"E{channels} T{taps} {dtype}{' bias' * has_bias}"
    given = shape, call.variant, function, tuple(arguments), call == tuned(open_call, name)
    return Case("gated_conv", name, *given, facts=facts_of(call, name))
