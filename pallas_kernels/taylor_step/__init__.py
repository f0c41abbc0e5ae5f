"""Decoding step of Taylor linear attention (Based, arXiv 2402.18668, Algorithm 2), fused and in place."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import expect_array, expect_power_of_two, unsupported
from pallas_kernels.partition import per_row_and_head, with_gradient_of
from pallas_kernels.taylor_attention.layout import MAX_KEY_SIZE, symmetric_size
from pallas_kernels.taylor_step import kernel
from pallas_kernels.taylor_step.kernel import Variant
from pallas_kernels.triton_launch import expect_backend
from pallas_kernels.tuning import choose
from pallas_kernels.tuning import fastest as fastest_measured

__all__ = ["Variant", "fastest", "supports", "taylor_step"]

MAX_VALUE_SIZE = 256


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why `taylor_step` cannot take q, k (B, H, K) and v (B, H, V) here, or None if it can."""
    largest = {"q": MAX_KEY_SIZE, "v": MAX_VALUE_SIZE}
    return unsupported({"q": q, "k": k, "v": v}, 3, largest)


def facts_of(q: Any, k: Any, v: Any, kv: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    return {"key_size": q.shape[-1], "value_size": v.shape[-1], "state": jnp.dtype(kv.dtype).name}


def fastest(q: Any, k: Any, v: Any, kv: Any) -> str:
    """Return "xla" where `formula`'s operations were measured to be as fast as the kernel, else "pallas"."""
    return fastest_measured("taylor_step", rows_and_heads=q.shape[0] * q.shape[1], **facts_of(q, k, v, kv))


def taylor_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    *,
    eps: float = 1e-12,
    variant: Variant | None = None,
    backend: str = "pallas",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Add a token to the state, then read it: S += phi(k) v^T, z += phi(k), y = phi(q) S / (phi(q) z + eps).

    phi is the symmetric second-order Taylor map, [1, x, x^2 / sqrt(2), x_m x_n for n < m] of x / K^(1/4),
    F = 1 + K + K (K + 1) / 2 features. Arithmetic is float32. Under `jit`, a donated state is overwritten.
    Works under `vmap`, with rows and heads sharded, and in reverse mode (with the gradient of `formula`).

    Args:
        q, k: (B, H, K) projections, K <= 32; float32, bfloat16 or float16.
        v: (B, H, V), V <= 256.
        kv: (B, H, F, V) state S; float32, bfloat16 or float16. The new state has the same dtype: 16 bits
            round the sums at every token.
        z: (B, H, F) normaliser.
        eps: added to the denominator.
        variant: block sizes; None takes them from the tuning table.
        backend: "pallas", or "triton" for the same kernel launched through jax-triton.

    Returns:
        y: (B, H, V) in v's dtype, and the new kv and z.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
        ImportError: the backend's package or part of jax is missing.
    """
    expect_backend(backend)
    reason = supports(q, k, v)
    if reason:
        raise ValueError(f"taylor_step: {reason}")
    batch, heads, width = q.shape
    count, value_size = symmetric_size(width), v.shape[-1]
    expect_array("k", k, q.shape)
    expect_array("v", v, (batch, heads, value_size))
    expect_array("kv", kv, (batch, heads, count, value_size))
    expect_array("z", z, (batch, heads, count))
    variant = variant or choose("taylor_step", Variant, **facts_of(q, k, v, kv))
    expect_power_of_two("rows", variant.rows)
    run = per_row_and_head(
        functools.partial(kernel.step, eps=float(eps), variant=variant, backend=backend),
        operands=("b h k", "b h k", "b h v", "b h f v", "b h f"),
        results=("b h v", "b h f v", "b h f"),
        constants=kernel.constants(width, variant),
    )
    return with_gradient_of(functools.partial(formula, eps=float(eps)), run)(q, k, v, kv, z)


def formula(q, k, v, kv, z, *, eps: float = 1e-12):
    """Compute the kernel's result in plain operations."""
    width, count = q.shape[-1], z.shape[-1]
    first, second, weight = kernel.features(width, count)

    def phi(x):
        x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1).astype(jnp.float32)
        return x[..., first] * x[..., second] * weight

    phi_q, phi_k = phi(q), phi(k)
    s = kv.astype(jnp.float32) + phi_k[..., None] * v.astype(jnp.float32)[..., None, :]
    n = z.astype(jnp.float32) + phi_k
    numerator = jnp.einsum("bhf,bhfv->bhv", phi_q, s)
    denominator = jnp.einsum("bhf,bhf->bh", phi_q, n) + eps
    y = numerator / denominator[..., None]
    return y.astype(v.dtype), s.astype(kv.dtype), n.astype(z.dtype)
