"""Softmax attention in a short causal window as one differentiable function, with grouped heads.

y_i = sum_j softmax_j(scale q_i . k_j) v_j   over max(i - left, start_i) <= j <= i
"""

import functools
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import tuning
from pallas_kernels.checks import expect, expect_array, expect_power_of_two, packing_of, unsupported
from pallas_kernels.partition import per_row_and_head
from pallas_kernels.window_attention.blocks import Plan, Variant, padded
from pallas_kernels.window_attention.kernels import key_and_value_gradients, outputs, query_gradients

MAX_SIZE = 128
"""largest width of a key or value"""

MAX_LEFT = 127
"""maximum of past keys; longer windows need a kernel that computes fewer masked pairs"""

INPUT_AXES = ("b n h r k", "b n h k", "b n h v")
PACKING_AXES = ("b n", "b")
OUTPUT, NUMBERS = "b n h r v", "b h r n"


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why the kernels cannot take q (B, N, H, K), k (B, N, G, K), v (B, N, G, V) here, or None."""
    reason = unsupported({"q": q, "k": k, "v": v}, 4, {"q": MAX_SIZE, "v": MAX_SIZE})
    if reason is None and len({q.dtype, k.dtype, v.dtype}) > 1:
        return f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; the kernels take one for all"
    return reason or _cannot_fit(q, v)


def _cannot_fit(q: Any, v: Any) -> str | None:
    """Return why this GPU's shared memory is too small, or None."""
    try:
        for kernel in ("outputs", "dq", "dkv"):
            variant_for(kernel, q.shape[-1], v.shape[-1], q.dtype.name)
    except LookupError as error:
        return f"needs more shared memory than this GPU offers a program: {error}"
    return None


def variant_for(kernel: str, key_size: int, value_size: int, dtype: str) -> Variant:
    """Return block sizes from the tuning table."""
    return tuning.choose("window_attention", Variant, **facts_of(kernel, key_size, value_size, dtype))


def facts_of(kernel: str, key_size: int, value_size: int, dtype: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    width = max(padded(key_size), padded(value_size))
    return {"kernel": kernel, "width": width, "bytes": jnp.dtype(dtype).itemsize}


@dataclass(frozen=True)
class Call:
    """Static properties of one call."""

    left: int
    scale: float
    packed: bool
    variants: tuple[tuple[str, Variant], ...]

    def plan(self, kernel: str, q: Any, v: Any) -> Plan:
        """Return the plan of a kernel on one device's share of the rows and heads."""
        batch, length, kv_heads, shared, key_size = q.shape
        value_size = v.shape[-1]
        found = dict(self.variants).get(kernel) or variant_for(kernel, key_size, value_size, q.dtype.name)
        expect_power_of_two("queries", found.queries, least=16)
        expect_power_of_two("keys", found.keys, least=16)
        sizes = {"batch": batch, "length": length, "kv_heads": kv_heads, "shared": shared}
        sizes |= {"key_size": key_size, "value_size": value_size, "left": self.left}
        return Plan(**asdict(found), **sizes, scale=self.scale, operand=q.dtype, packed=self.packed)


def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    left: int,
    scale: float | None = None,
    starts: jax.Array | None = None,
    counts: jax.Array | None = None,
    variants: dict[str, Variant] | None = None,
) -> jax.Array:
    """Compute causal softmax attention to keys i - left ... i of query i, differentiable in q, k and v.

    Scores, softmax and sums are float32; products take operands in the inputs' dtype, float32 ones at full
    precision. Works under `vmap` and with rows and key heads sharded. A NaN affects the outputs and gradients
    of a whole block at most: tokens that no query of a block sees are masked or not read.

    Args:
        q: (B, N, H, K) queries, H a multiple of G, K <= 128; float32, bfloat16 or float16.
        k, v: (B, N, G, K) and (B, N, G, V), V <= 128, same dtype.
        left: past keys that a query sees besides its own, 0 to 127.
        scale: factor of the scores; default K^(-1/2).
        starts: (B, N) integers, index of the first token of each token's segment, which bounds its keys.
        counts: (B,) integers, number of real tokens of each row; the tokens after them may hold anything,
            also NaN, are not visible, and have outputs and gradients of 0.
        variants: kernel ("outputs", "dq", "dkv") -> block sizes, instead of the tuning table's.

    Returns:
        y: (B, N, H, V) in v's dtype.

    Raises:
        ValueError: arrays that do not fit together or that the kernels do not take.
        ImportError: this jax has no Triton backend for Pallas.
    """
    if reason := supports(q, k, v):
        raise ValueError(f"window_attention: {reason}")
    (batch, length, heads, width), kv_heads, value_size = q.shape, k.shape[2], v.shape[-1]
    expect(heads % kv_heads == 0, "number of query heads", heads, f"a multiple of {kv_heads} key heads")
    expect_array("k", k, (batch, length, kv_heads, width))
    expect_array("v", v, (batch, length, kv_heads, value_size))
    expect(0 <= left <= MAX_LEFT, "left", left, f"0 to {MAX_LEFT} past keys")
    packing = packing_of(starts, counts, (batch, length), first=0)
    factor = width**-0.5 if scale is None else float(scale)
    call = Call(min(left, length - 1), factor, len(packing) > 0, tuple(sorted((variants or {}).items())))
    grouped = q.reshape(batch, length, kv_heads, heads // kv_heads, width)
    y: Any = _attend(call, grouped, k, v, packing)
    return y.reshape(batch, length, heads, value_size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, q: Any, k: Any, v: Any, packing: Any) -> jax.Array:
    return _forward(call, q, k, v, packing)[0]


def _attend_forward(call: Call, q: Any, k: Any, v: Any, packing: Any) -> tuple[Any, Any]:
    y, log_sums = _forward(call, q, k, v, packing)
    return y, (q, k, v, packing, y, log_sums)


def _forward(call: Call, *arrays: Any) -> tuple[jax.Array, ...]:
    q, k, v, packing = arrays

    def run(q: Any, k: Any, v: Any, *packing: Any) -> tuple[jax.Array, ...]:
        return outputs(call.plan("outputs", q, v), (q, k, v), packing)

    axes = [*INPUT_AXES, *PACKING_AXES[: len(packing)]]
    return per_row_and_head(run, axes, (OUTPUT, NUMBERS))(q, k, v, *packing)


def _attend_backward(call: Call, saved: Any, dy: Any) -> tuple[Any, ...]:
    q, k, v, packing, y, log_sums = saved

    def run(q: Any, k: Any, v: Any, y: Any, dy: Any, log_sums: Any, *packing: Any) -> tuple[jax.Array, ...]:
        arrays = (q, k, v, y, dy, log_sums)
        dq, d = query_gradients(call.plan("dq", q, v), arrays, packing)
        arrays = (q, k, v, dy, log_sums, d)
        return dq, *key_and_value_gradients(call.plan("dkv", q, v), arrays, packing)

    axes = [*INPUT_AXES, OUTPUT, OUTPUT, NUMBERS, *PACKING_AXES[: len(packing)]]
    gradients = per_row_and_head(run, axes, INPUT_AXES)(q, k, v, y, dy, log_sums, *packing)
    return *gradients, tuple(None for _ in packing)


_attend.defvjp(_attend_forward, _attend_backward)
