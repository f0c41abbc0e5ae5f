"""Gate of a short convolution (Based, arXiv 2402.18668, section 4.2) or of an MLP, and its gradients."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import expect, expect_array, unsupported
from pallas_kernels.gated_conv import kernel
from pallas_kernels.gated_conv.kernel import Call, Variant
from pallas_kernels.partition import per_channel
from pallas_kernels.row_products.kernel import GATES
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "gated_conv", "supports"]

MAX_TAPS = 4
"""the backward pass holds 2 T - 1 inputs of a token in registers"""

INNER, OUTPUT, TAPS, BIAS = "b n two e", "b n e", "t e", "two e"


def supports(inner: Any, taps: Any = None, activation: str = "silu") -> str | None:
    """Return why `gated_conv` cannot take inner (B, N, 2, E) and taps (T, E) here, or None if it can."""
    reason = cannot_launch("pallas") or unsupported({"inner": inner}, 4, {})
    if reason is None and activation not in GATES:
        return f"the activation is {activation!r}; the kernel takes {' or '.join(map(repr, GATES))}"
    if reason is None and taps is not None and not 1 <= taps.shape[0] <= MAX_TAPS:
        return f"a convolution has {taps.shape[0]} taps; the kernel takes 1 to {MAX_TAPS}"
    return reason


def facts_of(call: Call, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` is "outputs" or "gradients"."""
    return {"taps": call.taps, "kernel": kernel}


def gated_conv(
    inner: jax.Array,
    taps: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    activation: str = "silu",
    activated: int = 0,
    variant: Variant | None = None,
) -> jax.Array:
    """Compute activation(conv(one half)) times the other half, differentiable in all arrays.

    Arithmetic is float32, rounded once. Works with rows and channels sharded; under `vmap` and for second
    derivatives `formula` computes it.

    Args:
        inner: (B, N, 2, E) halves; float32, bfloat16 or float16.
        taps: (T, E) of the causal convolution, oldest first, T up to 4; None: no convolution.
        bias: (2, E), added to the halves first; before the first token the convolution sees zeros.
        activation: "silu" or "sigmoid".
        activated: 0 or 1, the half that is convolved and activated.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        y: (B, N, E) in inner's dtype.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    if reason := supports(inner, taps, activation):
        raise ValueError(f"gated_conv: {reason}")
    channels = inner.shape[-1]
    expect_array("inner", inner, (*inner.shape[:2], 2, channels))
    expect(activated in (0, 1), "activated", activated, "0 or 1")
    parameters = []
    if taps is not None:
        expect_array("taps", taps, (taps.shape[0], channels))
        parameters.append(taps)
    if bias is not None:
        expect_array("bias", bias, (2, channels))
        parameters.append(bias)
    count = 0 if taps is None else taps.shape[0]
    if variant is not None:  # a chunk's gradient reads one chunk beyond it
        chunk = variant.tokens * variant.rounds
        expect(chunk >= count - 1, "tokens * rounds of variant", chunk, f"at least {count - 1}")
    call = Call(activation, activated, count, bias is not None, variant)
    return _gated(call, inner, tuple(parameters))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gated(call: Call, inner: Any, parameters: Any) -> Any:
    run = functools.partial(kernel.outputs, call=tuned(call, "outputs"))
    plain = functools.partial(formula, call=call)
    return per_channel(run, plain, [INNER, *_axes(call)], [OUTPUT], ["b", "e"])(inner, *parameters)[0]


def _forward(call: Call, inner: Any, parameters: Any) -> tuple[Any, Any]:
    return _gated(call, inner, parameters), (inner, parameters)


def _backward(call: Call, saved: Any, dy: Any) -> tuple[Any, Any]:
    inner, parameters = saved
    run = functools.partial(kernel.gradients, call=tuned(call, "gradients"))
    plain = functools.partial(gradient_formula, call=call)
    operands, results = [INNER, OUTPUT, *_axes(call)], [INNER, *["b sums e"] * (call.sums > 0)]
    found = per_channel(run, plain, operands, results, ["b", "e"])(inner, dy, *parameters)
    if not parameters:
        return found[0], ()
    parts = jnp.split(found[1].sum(axis=0), [call.taps] if call.taps and call.has_bias else [])
    return found[0], tuple(part.astype(x.dtype) for part, x in zip(parts, parameters, strict=True))


_gated.defvjp(_forward, _backward)


def tuned(call: Call, kernel: str) -> Call:
    """Return the call with block sizes from the tuning table, unless it has some."""
    if call.variant is not None:
        return call
    return dataclasses.replace(call, variant=choose("gated_conv", Variant, **facts_of(call, kernel)))


def _axes(call: Call) -> list[str]:
    return [TAPS] * (call.taps > 0) + [BIAS] * call.has_bias


def formula(inner: Any, *parameters: Any, call: Call) -> tuple[jax.Array, ...]:
    """Compute y in plain operations."""
    wide = jnp.promote_types(inner.dtype, jnp.float32)
    halves = inner.astype(wide) + (parameters[-1].astype(wide) if call.has_bias else 0)
    x, factor = halves[..., call.activated, :], halves[..., 1 - call.activated, :]
    if call.taps:
        length, taps = x.shape[1], parameters[0].astype(wide)
        padded = jnp.pad(x, [(0, 0), (call.taps - 1, 0), (0, 0)])
        x = jnp.sum(jnp.stack([tap * padded[:, n : n + length] for n, tap in enumerate(taps)]), axis=0)
    return ((GATES[call.activation](x) * factor).astype(inner.dtype),)


def gradient_formula(inner: Any, dy: Any, *parameters: Any, call: Call) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.gradients` in plain operations."""

    def of_row(inner: Any, dy: Any) -> Any:
        run = lambda inner, *parameters: formula(inner, *parameters, call=call)[0]  # noqa: E731
        wide = (x.astype(jnp.float32) for x in parameters)
        of_inner, *rest = jax.vjp(run, inner[None], *wide)[1](dy[None])
        return of_inner[0], *([jnp.concatenate(rest)] * (call.sums > 0))

    return jax.vmap(of_row)(inner, dy)
