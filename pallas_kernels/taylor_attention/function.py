"""Fused Taylor linear attention as one differentiable function (Based, section 4.1 and Algorithm 1).

y_i = sum_{j <= i} (1 + s + s^2 / 2) v_j / (sum_{j <= i} (1 + s + s^2 / 2) + eps),  s = q_i . k_j / sqrt(K)
"""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import tuning
from pallas_kernels.checks import expect, packing_of, unsupported
from pallas_kernels.launch import is_interpreted
from pallas_kernels.partition import per_row_and_head
from pallas_kernels.taylor_attention import mosaic_features, mosaic_support, specs
from pallas_kernels.taylor_attention.blocks import Plan, Variant
from pallas_kernels.taylor_attention.gradients import key_or_value_gradient, query_gradients
from pallas_kernels.taylor_attention.layout import MAX_KEY_SIZE, Layout, symmetric_size
from pallas_kernels.taylor_attention.outputs import outputs
from pallas_kernels.taylor_attention.sums import kept_after, kept_before, key_sums, query_sums, scan_states
from pallas_kernels.triton_launch import expect_backend

MAX_VALUE_SIZE = 256
OPERANDS = {"bfloat16": "bfloat16", "float16": "float32", "float32": "float32"}
"""Dtype of matmul operands by dtype of the inputs: float16 products would overflow."""


@dataclass(frozen=True)
class Call:
    """Static properties of one call."""

    eps: float
    packed: bool
    has_state: bool
    return_state: bool
    precision: str | None
    block: int | None
    variants: tuple[tuple[str, Variant], ...]
    backend: str = "pallas"

    def facts(self, kernel: str, q: Any, v: Any) -> dict[str, Any]:
        """Return the facts that select a row of the tuning table."""
        sizes = {"kernel": kernel, "key_size": q.shape[-1], "value_size": v.shape[-1]}
        dtypes = {"dtype": OPERANDS[q.dtype.name], "precision": self.precision or "default"}
        return {**sizes, **dtypes, "packed": int(self.packed)}

    def variant(self, kernel: str, q: Any, v: Any) -> Variant:
        """Return the block sizes of a kernel: the caller's, or the tuning table's."""
        found = dict(self.variants).get(kernel)
        return found or tuning.choose("taylor_attention", Variant, **self.facts(kernel, q, v))

    def plan(self, kernel: str, q: Any, v: Any) -> Plan:
        """Return the plan of a kernel on one device's share of the rows and heads."""
        batch, length, heads, key_size = q.shape
        value_size, dtype, variant = v.shape[-1], q.dtype.name, self.variant(kernel, q, v)
        expect(LONGEST_CHUNK % variant.chunk == 0, "chunk", variant.chunk, f"a divisor of {LONGEST_CHUNK}")
        # The kernels' chunks may differ; their blocks must not.
        block = -(-(self.block or block_length(batch * heads, length)) // LONGEST_CHUNK) * LONGEST_CHUNK
        # At most the values' width, at least the minimum of a matmul.
        value_tile = min(variant.value_tile, max(16, pl.next_power_of_2(value_size)))
        sizes = asdict(replace(variant, value_tile=value_tile))
        sizes |= {"batch": batch, "length": length, "heads": heads, "value_size": value_size}
        sizes["block"] = -(-length // variant.chunk) * variant.chunk if block >= length else block
        layout, operand = Layout(key_size, variant.tile), jnp.dtype(OPERANDS[dtype])
        return Plan(layout=layout, operand=operand, precision=self.precision, packed=self.packed, **sizes)


LONGEST_CHUNK = 128
"""Maximum tokens per chunk; blocks are multiples of it."""

SLOTS = 264
"""Programs that an H100 or H200 runs at once: 2 on each of 132 multiprocessors."""

SHORTEST_BLOCK = 256
"""Minimum tokens per block: shorter blocks would move more state than input."""


def block_length(programs: int, length: int) -> int:
    """Return the tokens per program: all if rows and heads fill the GPU, else blocks that fill it."""
    if programs >= SLOTS // 2:
        return length
    block = SHORTEST_BLOCK
    while programs * -(-length // (2 * block)) >= SLOTS - 8:
        block *= 2
    return block


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why the kernels cannot take these arrays (B, N, H, dim) here, or None if they can."""
    largest = {"q": MAX_KEY_SIZE, "v": MAX_VALUE_SIZE}
    reason = unsupported({"q": q, "k": k, "v": v}, 4, largest)
    if reason is None and len({q.dtype, k.dtype, v.dtype}) > 1:
        return f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; the kernels take one for all"
    return reason


def is_slow(q: Any, k: Any, v: Any) -> bool:
    """Return whether the kernels should run on these arrays only on request.

    float32 operands and tables of more than 16 channels do not fit into registers and shared memory:
    compiled, `outputs` takes some 95 to 135 times the issue slots per token of bfloat16 at K = 16
    (benchmarks/results/static/kernels.md).
    """
    return q.shape[-1] > 16 and OPERANDS[q.dtype.name] == "float32"


def taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    eps: float = 1e-12,
    initial_state: tuple[jax.Array, jax.Array] | None = None,
    return_state: bool = False,
    starts: jax.Array | None = None,
    counts: jax.Array | None = None,
    precision: str | None = None,
    block: int | None = None,
    variants: dict[str, Variant] | None = None,
    backend: str = "pallas",
) -> Any:
    """Compute causal Taylor linear attention, differentiable in q, k, v and the initial state.

    Args:
        q, k: (B, N, H, K) bfloat16, float16 or float32, K <= 32; the map and its 1/sqrt(K) are inside.
        v: (B, N, H, V), V <= 256, same dtype.
        eps: added to the normaliser.
        initial_state: sums over earlier tokens, (B, H, F, V) and (B, H, F) with F = 1 + K + K (K + 1) / 2
            symmetric features in the order 1, x, x^2 / sqrt(2), lower triangle; x scaled by K^(-1/4).
        return_state: also return those sums after the last token, float32.
        starts: (B, N) int32, not decreasing: index of the first token that each token sees, negative if that
            includes the initial state. Segments are runs of equal starts.
        counts: (B,) int32, number of real tokens of each row; the tokens after them are not visible, their
            outputs are 0, and their starts are those of the last real token.
        precision: precision of matmuls on float32 operands: "highest" or None for JAX's default on the GPU,
            TF32. float16 inputs do the same; bfloat16 inputs use bfloat16 operands.
        block: tokens per program, rounded up to a multiple of 128; None fills the GPU.
        variants: kernel ("key_sums", "query_sums", "outputs", "dq", "dk", "dv") -> block sizes, instead of
            the tuning table's.
        backend: "pallas", or "mosaic" for kernels in Hopper's instructions (K = 16, bfloat16, one
            `precision` and its own block sizes).

    Returns:
        y (B, N, H, V) in v's dtype, or ``(y, (kv, z))`` with `return_state`.

    Raises:
        ValueError: arrays that do not fit together or that the kernels do not take.
        ImportError: this jax has no Triton backend for Pallas.
    """
    expect_backend(backend, "mosaic")
    reason = supports(q, k, v)
    if reason is None and backend == "mosaic" and (reason := mosaic_support.supports_mosaic(q, k, v)):
        reason = f"backend = 'mosaic': {reason}"
    if reason is not None:
        raise ValueError(reason)
    batch, length, heads, key_size = q.shape
    expect(k.shape == q.shape, "shape of k", k.shape, f"q's, {q.shape}")
    expect(v.shape[:3] == q.shape[:3], "shape of v", v.shape, f"(B, N, H) of q, {q.shape[:3]}, and V")
    least = -(-length // specs.MAX_BLOCKS)
    fits = f"at least {least} tokens, which make {specs.MAX_BLOCKS} blocks at most"
    expect(block is None or block >= least, "block", block, fits)
    expect(precision in (None, "highest"), "precision", precision, "None or 'highest'")
    layout = Layout(key_size, 1)
    packing = packing_of(starts, counts, (batch, length), first=-1)
    state = None
    if initial_state is not None:
        kv, z = initial_state
        wanted = (batch, heads, symmetric_size(key_size), v.shape[-1])
        expect(kv.shape == wanted, "shape of initial_state[0]", kv.shape, f"(B, H, F, V) = {wanted}")
        expect(z.shape == wanted[:3], "shape of initial_state[1]", z.shape, f"(B, H, F) = {wanted[:3]}")
        state = layout.state_to_kernel(kv.astype(jnp.float32), z.astype(jnp.float32))
    sizes = tuple(sorted((variants or {}).items()))
    has_state = initial_state is not None
    call = Call(float(eps), len(packing) > 0, has_state, return_state, precision, block, sizes, backend)
    results: Any = _attend(call, q, k, v, packing, state)
    y, final = results
    return (y, layout.state_from_kernel(*final)) if return_state else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, q: Any, k: Any, v: Any, packing: Any, state: Any) -> Any:
    y, _, final = _forward(call, q, k, v, packing, state)
    return y, final


def _attend_forward(call: Call, q: Any, k: Any, v: Any, packing: Any, state: Any) -> tuple[Any, Any]:
    y, rden, final = _forward(call, q, k, v, packing, state)
    return (y, final), (q, k, v, packing, state, y, rden)


def _attend_backward(call: Call, saved: Any, gradients: Any) -> tuple[Any, ...]:
    q, k, v, packing, state, y, rden = saved
    do, dfinal = gradients
    layout = Layout(q.shape[-1], 1)
    if call.return_state:
        dfinal = dfinal[0], layout.moments_gradient_in(dfinal[1])
    backward = _backward_on_hopper if call.backend == "mosaic" else _backward
    dq, dk, dv, dstate = backward(call, (q, k, v, do, y, rden), packing, state, dfinal)
    if state is not None:
        dstate = dstate[0], layout.moments_gradient_out(dstate[1])
    return dq, dk, dv, tuple(None for _ in packing), dstate


_attend.defvjp(_attend_forward, _attend_backward)


PACKING_AXES = ("b n", "b")
STATE_AXES = ("b h f v", "b h m c")
MOSAIC_STATE_AXES = ("b h v f", "b h m c")
INPUT_AXES = ("b n h k", "b n h k", "b n h v")
BACKWARD_INPUTS: tuple[str, ...] = ("q", "k", "v", "do", "y", "rden")


def _on_shards(
    call: Call, function: Any, axes: Sequence[str], results: Sequence[str], *groups: Any
) -> tuple[jax.Array, ...]:
    """Return `function` of groups of arrays (or None) and the tables, each device for its rows and heads."""
    arrays, structure = jax.tree.flatten(groups)
    is_mosaic = call.backend == "mosaic"
    tables = [] if is_mosaic else specs.constant_tables(call.plan("outputs", arrays[0], arrays[2]))

    def run(*operands: jax.Array) -> tuple[jax.Array, ...]:
        count = len(arrays)
        return function(*jax.tree.unflatten(structure, operands[:count]), operands[count:])

    # Mosaic GPU's interpreter has side effects, which a partitioned function must not have.
    alone = is_mosaic and is_interpreted()
    return (run if alone else per_row_and_head(run, axes, results, tables))(*arrays)


def _forward(call: Call, q: Any, k: Any, v: Any, packing: Any, state: Any) -> tuple[Any, Any, Any]:
    """Return y, reciprocal normalisers, and the final state or None."""
    state_axes = STATE_AXES
    if call.backend == "mosaic":  # imported now: older releases of jax do not have it
        from pallas_kernels.taylor_attention import mosaic

        # Reorder its states here: `run` must not create arrays of indices.
        state = None if state is None else mosaic_features.from_portable(*state)
        state_axes = MOSAIC_STATE_AXES

    def run(inputs: Any, packing: Any, state: Any, tables: Any) -> tuple[jax.Array, ...]:
        q, k, v = inputs
        if call.backend == "mosaic":
            options: dict[str, Any] = {"block": call.block, "return_state": call.return_state}
            return mosaic.forward(q, k, v, packing, state, eps=call.eps, **options)
        plan = call.plan("outputs", q, v)
        prefix = _prefix(call, tables, inputs, packing, state)
        return outputs(plan, tables, inputs, packing, prefix, call.eps, call.return_state)

    axes = [*INPUT_AXES, *PACKING_AXES[: len(packing)], *(state_axes if call.has_state else ())]
    results = ["b n h v", "b h n", *(state_axes if call.return_state else ())]
    y, rden, *final = _on_shards(call, run, axes, results, (q, k, v), packing, state)
    if call.backend == "mosaic" and final:
        final = mosaic_features.to_portable(*final)
    return y, rden, tuple(final) or None


def _backward(call: Call, arrays: Any, packing: Any, state: Any, dfinal: Any) -> tuple[Any, Any, Any, Any]:
    """Return the gradients of q, k, v, and the sums over all queries if there is an initial state.

    Args:
        arrays: q, k, v, do (gradient of the outputs), y and rden (reciprocal normalisers).
    """
    *inputs, do, y, rden = arrays
    # Gradient of the normaliser: y = n / d, so dd = -(do . y) / d.
    dd = -jnp.einsum("bnhv,bnhv->bhn", do, y, preferred_element_type=jnp.float32) * rden

    def run(arrays: Any, packing: Any, state: Any, dfinal: Any, tables: Any) -> tuple[jax.Array, ...]:
        q, _, v, *_ = arrays
        plan = call.plan("dq", q, v)
        prefix = _prefix(call, tables, arrays, packing, state)
        dq = query_gradients(plan, tables, arrays, packing, prefix)
        suffix, dstate = _suffix(call, tables, arrays, packing, dfinal)
        dk, dv = (
            key_or_value_gradient(call.plan(wanted, q, v), tables, arrays, packing, suffix, wanted)
            for wanted in ("dk", "dv")
        )
        return dq, dk, dv, *dstate

    axes = [*INPUT_AXES, "b n h v", "b h n", "b h n", *PACKING_AXES[: len(packing)]]
    axes += STATE_AXES * (call.has_state + call.return_state)
    results = [*INPUT_AXES, *(STATE_AXES if call.has_state else ())]
    groups = (*inputs, do, rden, dd), packing, state, dfinal
    dq, dk, dv, *dstate = _on_shards(call, run, axes, results, *groups)
    if packing and call.return_state:
        # Padding is after the row's last segment, where the kernels add the final state's gradient.
        real = (jnp.arange(dq.shape[1]) < packing[1][:, None])[..., None, None]
        dk, dv = (jnp.where(real, x, jnp.zeros_like(x)) for x in (dk, dv))
    return dq, dk, dv, tuple(dstate) or None


def _backward_on_hopper(
    call: Call, arrays: Any, packing: Any, state: Any, dfinal: Any
) -> tuple[Any, Any, Any, Any]:
    """Do the same as `_backward` with the Mosaic kernels."""
    from pallas_kernels.taylor_attention import mosaic

    # Reorder the states here: `run` must not create arrays of indices.
    state = None if state is None else mosaic_features.from_portable(*state)
    dfinal = mosaic_features.gradient_from_portable(*dfinal) if call.return_state else None

    def run(arrays: Any, packing: Any, state: Any, dfinal: Any, _: Any) -> tuple[jax.Array, ...]:
        named: dict[str, jax.Array] = dict(zip(BACKWARD_INPUTS, arrays, strict=True))
        return mosaic.backward(named, packing, state, dfinal, block=call.block)

    axes = [*INPUT_AXES, "b n h v", "b n h v", "b h n", *PACKING_AXES[: len(packing)]]
    axes += MOSAIC_STATE_AXES * (call.has_state + call.return_state)
    results = [*INPUT_AXES, *(MOSAIC_STATE_AXES if call.has_state else ())]
    dq, dk, dv, *dstate = _on_shards(call, run, axes, results, tuple(arrays), packing, state, dfinal)
    return dq, dk, dv, mosaic_features.gradient_to_portable(*dstate) if dstate else None


def _prefix(call: Call, tables: Any, arrays: Sequence[Any], packing: Any, state: Any) -> Any:
    """Return the states before each block; None for one block without an initial state."""
    q, k, v = arrays[:3]
    plan = call.plan("key_sums", q, v)
    if plan.blocks == 1:
        return None if state is None else tuple(x[:, :, None] for x in state)
    sums = key_sums(plan, tables, (k, v), packing)
    keep = kept_before(plan, packing[0]) if packing else None
    states = state or (None, None)
    return tuple(scan_states(x, y, keep) for x, y in zip(sums, states, strict=True))


def _suffix(call: Call, tables: Any, arrays: Sequence[Any], packing: Any, dfinal: Any) -> tuple[Any, Any]:
    """Return the sums over the queries after each block, the final state's gradient included, and over all.

    The former is None for one block without a final gradient; the latter is empty without an initial state.
    """
    q, _, v, do, rden, dd = arrays
    plan, first = call.plan("query_sums", q, v), 0 if call.has_state else 1
    if plan.blocks == first:
        return None if dfinal is None else tuple(x[:, :, None] for x in dfinal), ()
    sums = query_sums(plan, tables, (q, do, rden, dd), packing, first)
    keep = kept_after(plan, packing[0], first) if packing else None
    finals = dfinal or (None, None)
    sums = [scan_states(x, y, keep, True) for x, y in zip(sums, finals, strict=True)]
    return tuple(x[:, :, 1 - first :] for x in sums), () if first else tuple(x[:, :, 0] for x in sums)
