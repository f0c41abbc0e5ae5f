"""Cross-entropy of next tokens from hidden vectors, with the logits of a few tokens of each row at a time.

    sum_t w_t (log sum_v exp(h_t . e_v) - h_t . e_target(t))

Logits of a whole batch, (B, N, V) in float32, are the largest arrays of a language model's step. Here only
`LOGITS` of them exist at a time, and the gradients are formed along with the loss while they do: three
products with the embedding in place of the four of recomputing them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.ops.core import context_parallel, dispatch
from based_jax.ops.core.dtypes import accumulation_dtype
from based_jax.ops.core.eager import compiled
from based_jax.ops.core.lowered import by_platform
from based_jax.ops.core.not_numbers import nan_unless
from based_jax.ops.core.transforms import with_gradient
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect_array

LOGITS = {"cpu": 1 << 21, "gpu": 1 << 27}
"""At most so many logits at a time on one device, by platform; but as many as the embedding has numbers, and
one token of each row.

On a CPU they should stay in its caches. But each chunk reads and writes the sum of the embedding's gradients,
so chunks with fewer tokens than channels cost more than they save, and on a GPU few are better.
"""

SHARED_LOGITS = 1 << 25
"""The least such limit on each device of a mesh, where every chunk has its own sum over the devices."""

ALIGNED = 64
"""The rows that products are fast with: a GPU's compiler would pad others in every chunk."""


IGNORED = -100
"""The target that leaves its token out, torch's `ignore_index`."""


@by_platform
@compiled
def cross_entropy(
    hidden: Float[Array, "B N D"],
    embedding: Float[Array, "V D"],
    targets: Int[Array, "B N"],
    weights: Float[Array, "B N"],
) -> Float[Array, ""]:
    """The weighted sum of the targets' losses in nats, in float32 (float64 for float64 hidden vectors).

    Args:
        hidden: output of the final norm; products are taken in its dtype, sums in float32.
        embedding: of the output, one row per token of the vocabulary, padding included.
        targets: ids of the tokens; -100 leaves one out.
        weights: of the targets; 0 leaves one out, and what its hidden vector and its target are does not
            matter.

    Returns:
        The sum; NaN if a target that counts is no row of the embedding. It has no forward-mode derivative.
    """
    expect_array("hidden", hidden, ("B", "N", "D"), "floating")
    rows, width = hidden.shape[:2], hidden.shape[-1]
    expect_array("embedding", embedding, ("V", width), "floating")
    expect_array("targets", targets, rows, "integer")
    expect_array("weights", weights, rows, "floating")
    counts = (weights != 0) & (targets != IGNORED)
    exists = ~counts | (targets >= 0) & (targets < len(embedding))
    weights = jnp.where(counts, nan_unless(exists, weights), 0)
    hidden = jnp.where(counts[..., None], hidden, 0)  # of padding it may be NaN
    return _cross_entropy(hidden, embedding, targets, weights.astype(accumulation_dtype(hidden)))


def _forward(hidden: Array, embedding: Array, targets: Array, weights: Array) -> tuple[Array, Any]:
    """Compute the gradients too, while the logits are there: all that lacks is the factor from above."""
    vocab, wide = len(embedding), weights.dtype
    table = _prepared(embedding, hidden)

    def chunk(sums: Any, tokens: Any) -> tuple[Any, Any]:
        total, of_table = sums
        hidden, targets, weights = tokens
        p, is_target, losses = _losses(hidden, table, targets, vocab)
        of_logits = ((p - is_target) * weights[..., None]).astype(hidden.dtype)
        of_hidden = jnp.einsum("bnv,vd->bnd", of_logits, table)
        of_table += jnp.einsum("bnv,bnd->vd", of_logits, hidden, preferred_element_type=wide)
        return (total + jnp.sum(losses * weights), of_table), (of_hidden, losses)

    start = (jnp.zeros((), wide), jnp.zeros(table.shape, wide))
    (total, of_table), rest = _scan(chunk, start, table, (hidden, targets, weights))
    return total, (of_table[:vocab].astype(embedding.dtype), *rest)


def _backward(residuals: Any, g: Array) -> tuple[Array, Array, None, Array]:
    of_embedding, of_hidden, losses = residuals
    scaled = (g * of_embedding).astype(of_embedding.dtype)
    return (g * of_hidden).astype(of_hidden.dtype), scaled, None, g * losses


@with_gradient(_forward, _backward)
def _cross_entropy(hidden: Array, embedding: Array, targets: Array, weights: Array) -> Array:
    table = _prepared(embedding, hidden)

    def chunk(total: Array, tokens: Any) -> tuple[Array, None]:
        hidden, targets, weights = tokens
        _, _, losses = _losses(hidden, table, targets, len(embedding))
        return total + jnp.sum(losses * weights), None

    return _scan(chunk, jnp.zeros((), weights.dtype), table, (hidden, targets, weights))[0]


def _prepared(embedding: Array, hidden: Array) -> Array:
    """Return the embedding as every chunk multiplies with it; rows of zeros after its own are no tokens."""
    table, rows = embedding.astype(hidden.dtype), len(embedding)
    return jnp.pad(table, [(0, -rows % ALIGNED), (0, 0)]) if _is_on_one_gpu(hidden) else table


def _losses(hidden: Array, table: Array, targets: Array, vocab: int) -> tuple[Array, Array, Array]:
    """Return probabilities, where the targets are (both (B, n, rows)), and the losses (B, n)."""
    wide = accumulation_dtype(hidden)
    logits = jnp.einsum("bnd,vd->bnv", hidden, table, preferred_element_type=wide)
    # A comparison, not a gather: it stays where the vocabulary is spread over devices.
    token = jnp.arange(len(table))
    if len(table) > vocab:
        logits = jnp.where(token < vocab, logits, _lowest(wide))
    is_target = token == targets[..., None]
    log_sum = _log_sum_exp(logits) if _is_on_one_gpu(hidden) else jax.nn.logsumexp(logits, axis=-1)
    losses = log_sum - jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    return jnp.exp(logits - log_sum[..., None]), is_target, losses


def _is_on_one_gpu(hidden: Array) -> bool:
    """Return whether no mesh is known over which the vocabulary might be spread."""
    return dispatch.platform([hidden]) == "gpu" and not context_parallel.is_active()


def _lowest(dtype: Any) -> Array:
    """Return the smallest finite number: differences of infinities would be NaN."""
    return jnp.full((), float(np.finfo(dtype).min), dtype)


def _log_sum_exp(x: Array) -> Array:
    """log sum exp over the last axis, which reads x once: the maximum so far goes along with the sum.

    A GPU's compiler makes one kernel of it, and two of `jax.nn.logsumexp`.
    """
    low = _lowest(x.dtype)

    def add(one: Any, two: Any) -> Any:
        most = jnp.maximum(one[0], two[0])
        return most, one[1] * jnp.exp(one[0] - most) + two[1] * jnp.exp(two[0] - most)

    most, total = lax.reduce((x, jnp.ones_like(x)), (low, jnp.zeros_like(low)), add, (x.ndim - 1,))
    return most + jnp.log(total)


def _scan(chunk: Any, start: Any, table: Array, tokens: Any) -> tuple[Any, Any]:
    """Run `chunk` over chunks of the rows: its carry, and its (B, n, ...) results put together again.

    Chunk i has the tokens i, i + chunks, ...: devices that hold neighbouring tokens all have a share of it.
    """
    batch, length = tokens[0].shape[:2]
    devices, limit = context_parallel.devices(), LOGITS.get(dispatch.platform(tokens), SHARED_LOGITS)
    limit = max(limit, table.size) if devices == 1 else max(limit, SHARED_LOGITS) * devices
    needed = min(-(-batch * length * len(table) // limit), length)
    if needed <= 1:
        return chunk(start, tokens)
    chunks = 1 << (needed - 1).bit_length()  # divides what devices hold more often than other numbers
    size = -(-length // chunks)

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, chunks * size - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, size, chunks, *x.shape[2:]), 2, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 2).reshape(batch, size * chunks, *x.shape[3:])[:, :length]

    carry, results = lax.scan(chunk, start, jax.tree.map(split, tokens))
    return carry, jax.tree.map(join, results)
