"""Linear recurrences with a matrix state, with gradients: Mamba-2, RetNet, GLA, DeltaNet, RWKV-5 and RWKV-7.

The chunks are those of Mamba-2 (Dao and Gu, arXiv 2405.21060, section 6), of DeltaNet and Gated DeltaNet
(Yang et al., arXiv 2406.06484 and 2412.06464), and of GLA (Yang et al., arXiv 2312.06635, section 4).
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import INTEGERS, expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.linear_recurrence import per_channel, per_head
from pallas_kernels.linear_recurrence.program import (
    GATES,
    KEPT,
    KEY_PARTS,
    KEYS,
    NUMBER_PARTS,
    NUMBERS,
    STATE,
    VALUES,
    Call,
    Variant,
    padded,
)
from pallas_kernels.partition import per_row_and_head
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "linear_recurrence", "supports"]

MAX_KEYS = 256
"""widest key: a program has a tile of the state, with all keys, in its registers"""

MAX_KEYS_LOW_RANK = 128
"""widest key with `low_rank`"""

MAX_TOKENS = 65_535 * 32
"""CUDA limits the second axis of a grid, which has the spans"""


def supports(q: Any, k: Any, v: Any, low_rank: bool = False) -> str | None:
    """Return why the kernels cannot take q and k (B, N, G, K) and v (B, N, H, V) here, or None."""
    widest = {"q": MAX_KEYS_LOW_RANK if low_rank else MAX_KEYS}
    reason = cannot_launch("pallas") or unsupported({"q": q, "k": k, "v": v}, 4, widest)
    if reason is None and q.shape[1] > MAX_TOKENS:
        return f"q has {q.shape[1]:,} tokens; the kernel takes up to {MAX_TOKENS:,}"
    return reason


def facts_of(keys: int, call: Call, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` names a function of the kernels."""
    facts = {"erases": int(call.erases), "channels": int(call.per_channel)}
    return {"keys": padded(keys), "kernel": kernel, "precision": call.precision or "default"} | facts


def linear_recurrence(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    kv: jax.Array,
    *,
    beta: jax.Array | None = None,
    low_rank: tuple[jax.Array, jax.Array] | None = None,
    inclusive: bool = True,
    starts: jax.Array | None = None,
    scale: float = 1.0,
    precision: str | None = None,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute S_t = exp(g_t) S_{t-1} + k_t v_t^T and y_t = scale S_t^T q_t.

    With `beta` by the delta rule, S_t = exp(g_t) (1 - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, with
    `low_rank`, a and b, S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T.

    Arithmetic is float32 and y is rounded once. Products take TF32 operands unless `precision` is "highest";
    those of erasing tokens that the state goes through keep float32's digits. Differentiable once in all
    arrays but starts. Works under `vmap` and with rows and heads sharded.

    Args:
        q, k: (B, N, G, K), K <= 256, or 128 with `low_rank`; float32, bfloat16 or float16. A head of q and k
            is shared by H / G neighbouring heads of v.
        v: (B, N, H, V).
        log_decay: (B, N, H), or (B, N, H, K) for gates per channel; g <= 0.
        kv: (B, H, K, V), the state before the first token.
        beta: (B, N, H), or None; for gates per head.
        low_rank: two arrays (B, N, G, K), or None; for gates per channel.
        inclusive: whether y_t reads S_t; False: S_{t-1}, for gates per channel.
        starts: (B, N) integers, index of the first token of each token's segment, negative if that is before
            this call; None: one segment, which `kv` belongs to.
        scale: factor of y.
        precision: "highest" or None.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        y: (B, N, H, V) in v's dtype; the state after the last token, (B, H, K, V) float32.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    if reason := supports(q, k, v, low_rank is not None):
        raise ValueError(f"linear_recurrence: {reason}")
    (batch, length, groups, width), (heads, values) = q.shape, v.shape[2:]
    expect(heads % groups == 0, "number of heads of v", heads, f"a multiple of {groups}, those of q and k")
    channels = len(log_decay.shape) == 4
    gates, state = (batch, length, heads, *[width] * channels), (batch, heads, width, values)
    arrays = {"k": (k, q.shape), "v": (v, (batch, length, heads, values)), "log_decay": (log_decay, gates)}
    arrays |= {"kv": (kv, state), "beta": (beta, (batch, length, heads))}
    if low_rank is not None:
        expect(len(low_rank) == 2, "low_rank", len(low_rank), "2 arrays")
        arrays |= {name: (array, q.shape) for name, array in zip("ab", low_rank, strict=True)}
    for name, (array, shape) in arrays.items():
        if array is not None:
            expect_array(name, array, shape)
    expect(precision in (None, "highest"), "precision", precision, "None or 'highest'")
    expect(beta is None or not channels, "beta", "an array", "None, as gates are per channel")
    expect(low_rank is None or channels, "low_rank", "two arrays", "None, as gates are per head")
    expect(inclusive or channels, "inclusive", inclusive, "True, as gates are per head")
    erases = not (beta is None and low_rank is None)
    call = Call(float(scale), precision, erases, variant, per_channel=channels, inclusive=inclusive)
    if variant is not None:
        for name in ("chunk", "keys", "values"):
            expect_power_of_two(name, getattr(variant, name), least=16)
        expect(variant.chunk <= call.span, "chunk", variant.chunk, f"at most {call.span} tokens")
    given: tuple[jax.Array, ...] = ()
    if starts is not None:
        expect_array("starts", starts, (batch, length), INTEGERS)
        given = (starts.astype(jnp.int32),)

    def grouped(x: jax.Array, axis: int) -> jax.Array:
        """Split the axis of heads into groups of q and k and the heads that share one."""
        return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])

    if channels:
        rest = [grouped(log_decay.astype(jnp.float32), 2), *(low_rank or ())]
    else:
        numbers = [log_decay] if beta is None else [log_decay, beta]
        rest = [grouped(x.astype(jnp.float32).mT, 1) for x in numbers]
    tokens, first = (q, k, grouped(v, 2), *rest), grouped(kv.astype(jnp.float32), 1)
    results: Any = _recurrence(call, tokens, first, given)
    y, last = results
    return y.reshape(v.shape), last.reshape(kv.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(call: Call, tokens: Any, kv: Any, starts: Any) -> Any:
    return _outputs(call, tokens, kv, starts)


def _outputs(call: Call, tokens: Any, kv: Any, starts: Any) -> tuple[jax.Array, ...]:
    results = [VALUES, STATE, *[KEPT] * call.saves]
    return _run(call, "outputs", (*tokens, kv, *starts), [STATE], results)


def _forward(call: Call, tokens: Any, kv: Any, starts: Any) -> tuple[Any, Any]:
    y, last, states = _outputs(replace(call, saves=True), tokens, kv, starts)
    return (y, last), (tokens, starts, states)


def _backward(call: Call, saved: Any, gradients: Any) -> tuple[Any, ...]:
    tokens, starts, states = saved
    of_y, of_last = gradients
    arrays = *tokens, of_y, of_last, *starts
    of_kv, of_states = _run(call, "state_gradients", arrays, [VALUES, STATE], [STATE, KEPT])
    arrays = *tokens, of_y, states, of_states, *starts
    parts = {KEYS: KEY_PARTS, VALUES: VALUES, NUMBERS: NUMBER_PARTS, GATES: KEY_PARTS}
    results = [parts[axes] for axes in call.tokens]
    found = _run(call, "gradients", arrays, [VALUES, KEPT, KEPT], results)

    def added(new: jax.Array, old: jax.Array, axes: str) -> jax.Array:
        """Add the parts, along axes that the array does not have."""
        extra = [axis for axis, name in enumerate(parts[axes]) if name not in axes]
        return new.sum(axis=extra).astype(old.dtype)

    cast = map(added, found, tokens, call.tokens)
    return tuple(cast), of_kv, tuple(None for _ in starts)


_recurrence.defvjp(_forward, _backward)


def _run(
    call: Call, name: str, arrays: tuple[jax.Array, ...], given: list[str], results: list[str]
) -> tuple[jax.Array, ...]:
    """Run a kernel on each device's rows and heads."""
    if call.variant is None:
        facts = facts_of(arrays[0].shape[-1], call, name)
        call = replace(call, variant=choose("linear_recurrence", Variant, **facts))
    # Heads may be sharded: those of q and k, or if there is only one, those that share it.
    names = {"g": "u", "r": "h"} if arrays[0].shape[2] == 1 else {"g": "h"}
    words = [" ".join(names.get(x, x) for x in axes) for axes in (*call.tokens, *given, "bn", *results)]
    count = len(call.tokens) + len(given)
    operands = words[: len(arrays)]
    function = functools.partial(getattr(per_channel if call.per_channel else per_head, name), call=call)
    return per_row_and_head(function, operands, words[count + 1 :])(*arrays)
