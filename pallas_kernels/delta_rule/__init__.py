"""The delta rule (DeltaNet, Gated DeltaNet: Yang et al., arXiv 2406.06484 and 2412.06464), with gradients."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import INTEGERS, expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.delta_rule import kernel
from pallas_kernels.delta_rule.program import AXES, SPAN, Call, Variant, padded
from pallas_kernels.partition import per_row_and_head
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "delta_rule", "supports"]

MAX_KEYS = 256
"""widest key: a program has a tile of the state, with all keys, in its registers"""


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why `delta_rule` cannot take q and k (B, N, H, K) and v (B, N, H, V) here, or None if it can."""
    return cannot_launch("pallas") or unsupported({"q": q, "k": k, "v": v}, 4, {"q": MAX_KEYS})


def facts_of(keys: int, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` is a function of `kernel.py`."""
    return {"keys": padded(keys), "kernel": kernel}


def delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array,
    kv: jax.Array,
    starts: jax.Array | None = None,
    *,
    scale: float = 1.0,
    precision: str | None = None,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute S_t = exp(g_t) (1 - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T and y_t = scale S_t^T q_t.

    Arithmetic is float32 and y is rounded once. Products that the state goes through keep float32's digits;
    those that only read it take TF32 operands unless `precision` is "highest".
    Differentiable once in all arrays but starts. Works under `vmap` and with rows and heads sharded.

    Args:
        q, k: (B, N, H, K), K <= 256; float32, bfloat16 or float16.
        v: (B, N, H, V).
        beta, log_decay: (B, N, H); log_decay is g <= 0.
        kv: (B, H, K, V), the state before the first token.
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
    if reason := supports(q, k, v):
        raise ValueError(f"delta_rule: {reason}")
    (batch, length, heads, width), values = q.shape, v.shape[-1]
    expect_array("k", k, q.shape)
    expect_array("v", v, (batch, length, heads, values))
    expect_array("beta", beta, (batch, length, heads))
    expect_array("log_decay", log_decay, (batch, length, heads))
    expect_array("kv", kv, (batch, heads, width, values))
    expect(precision in (None, "highest"), "precision", precision, "None or 'highest'")
    for name in ("chunk", "keys", "values") if variant is not None else ():
        expect_power_of_two(name, getattr(variant, name), least=16)
    if variant is not None:
        expect(variant.chunk <= SPAN, "chunk", variant.chunk, f"at most {SPAN} tokens")
    given: tuple[jax.Array, ...] = ()
    if starts is not None:
        expect_array("starts", starts, (batch, length), INTEGERS)
        given = (starts.astype(jnp.int32),)
    wide = (x.astype(jnp.float32) for x in (beta.mT, log_decay.mT, kv))
    results: Any = _rule(Call(float(scale), precision, variant), (q, k, v, *wide), given)
    return results


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rule(call: Call, arrays: Any, starts: Any) -> Any:
    return _outputs(call, arrays, starts)


def _outputs(call: Call, arrays: Any, starts: Any) -> tuple[jax.Array, ...]:
    run = functools.partial(kernel.outputs, call=_tuned(call, arrays, "outputs"))
    results = ["b n h v", "b h k v", *["b h j p r"] * call.saves]
    return per_row_and_head(run, AXES[: len(arrays) + len(starts)], results)(*arrays, *starts)


def _forward(call: Call, arrays: Any, starts: Any) -> tuple[Any, Any]:
    y, last, states = _outputs(replace(call, saves=True), arrays, starts)
    return (y, last), (arrays, starts, states)


def _backward(call: Call, saved: Any, gradients: Any) -> tuple[Any, Any]:
    arrays, starts, states = saved
    of_y, of_last = gradients
    own, rest, kept = AXES[:5], AXES[6:][: len(starts)], "b h j p r"
    run = functools.partial(kernel.state_gradients, call=_tuned(call, arrays, "state_gradients"))
    split = per_row_and_head(run, [*own, "b n h v", "b h k v", *rest], ["b h k v", kept])
    first, of_states = split(*arrays[:5], of_y, of_last, *starts)
    run = functools.partial(kernel.gradients, call=_tuned(call, arrays, "gradients"))
    results = ["b n t h k", "b n t h k", "b n h v", "b h t n", "b h t n"]
    split = per_row_and_head(run, [*own, "b n h v", kept, kept, *rest], results)
    q, k, v, beta, log_decay = split(*arrays[:5], of_y, states, of_states, *starts)
    found = q.sum(axis=2), k.sum(axis=2), v, beta.sum(axis=2), log_decay.sum(axis=2), first
    return tuple(new.astype(old.dtype) for new, old in zip(found, arrays, strict=True)), (None,) * len(starts)


_rule.defvjp(_forward, _backward)


def _tuned(call: Call, arrays: Any, name: str) -> Call:
    """Return the call with block sizes from the tuning table, unless it has some."""
    if call.variant is not None:
        return call
    return replace(call, variant=choose("delta_rule", Variant, **facts_of(arrays[1].shape[-1], name)))
