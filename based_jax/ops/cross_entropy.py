"""Cross-entropy of next tokens from hidden vectors, with the logits of a few tokens of each row at a time.

    sum_t w_t (log sum_v exp(h_t . e_v) - h_t . e_target(t))

Logits of a whole batch, (B, N, V) in float32, are the largest arrays of a language model's step. Here only
`LOGITS` of them exist at a time, and the gradients are formed along with the loss while they do: three
products with the embedding in place of the four of recomputing them.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from based_jax.ops.core import platforms, sharding
from based_jax.ops.core.arrays import accumulation_dtype, finfo, wide, with_gradient
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import op
from based_jax.ops.core.products import is_on_one, runs_kernels
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect_array

LOGITS = {"cpu": 1 << 21, "gpu": 1 << 29}
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


@op()
def cross_entropy(
    hidden: Float[Array, "B N D"],
    embedding: Float[Array, "V D"],
    targets: Int[Array, "B N"],
    weights: Float[Array, "B N"],
) -> Float[Array, ""]:
    """Return the weighted sum of the targets' losses in nats, in float32 (float64 if `hidden` is).

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
    targets = wide(targets)
    counts = (weights != 0) & (targets != IGNORED)
    exists = ~counts | (targets >= 0) & (targets < len(embedding))
    weights = jnp.where(counts, nan_unless(exists, weights), 0)
    hidden = jnp.where(counts[..., None], hidden, 0)  # of padding it may be NaN
    weights = weights.astype(accumulation_dtype(hidden))
    if hidden.dtype != jnp.float16:
        return _cross_entropy(hidden, embedding, targets, weights)
    # Gradients of logits have the dtype of `hidden`: in float16 those of small weights would be 0.
    largest = jnp.abs(lax.stop_gradient(weights)).max()
    exponent = jnp.clip(jnp.frexp(largest)[1], -100, 100)
    factor = jnp.ldexp(jnp.ones_like(largest), exponent)  # dividing by it is exact
    return factor * _cross_entropy(hidden, embedding, targets, weights / factor)


def _forward(hidden: Array, embedding: Array, targets: Array, weights: Array) -> tuple[Array, Any]:
    """Compute the gradients too, while the logits are there: all that lacks is the factor from above."""
    vocab, wide = len(embedding), weights.dtype
    table = _prepared(embedding, hidden)
    is_on_cpu = is_on_one("cpu", hidden)
    columns = table.T if is_on_cpu else None

    def chunk(sums: Any, tokens: Any) -> tuple[Any, Any]:
        total, of_table = sums
        hidden, targets, weights = tokens
        logits = _logits(hidden, table, columns)
        of_logits, losses = _of_logits(logits, targets, weights, vocab, hidden.dtype)
        of_hidden = jnp.einsum("bnv,vd->bnd", of_logits, table)
        factors = ("nd,nv->dv", hidden[0], of_logits[0]) if is_on_cpu else ("bnv,bnd->vd", of_logits, hidden)
        of_table += jnp.einsum(*factors, preferred_element_type=wide)
        return (total + jnp.sum(losses * weights), of_table), (of_hidden, losses)

    start = (jnp.zeros((), wide), jnp.zeros(table.shape[::-1] if is_on_cpu else table.shape, wide))
    (total, of_table), rest = _scan(chunk, start, table, (hidden, targets, weights))
    of_table = of_table.T if is_on_cpu else of_table
    return total, (of_table[:vocab].astype(embedding.dtype), *rest)


def _backward(residuals: Any, g: Array) -> tuple[Array, Array, None, Array]:
    of_embedding, of_hidden, losses = residuals
    scaled = (g * of_embedding).astype(of_embedding.dtype)
    return (g * of_hidden).astype(of_hidden.dtype), scaled, None, g * losses


@with_gradient(_forward, _backward)
def _cross_entropy(hidden: Array, embedding: Array, targets: Array, weights: Array) -> Array:
    table = _prepared(embedding, hidden)
    columns = table.T if is_on_one("cpu", hidden) else None

    def chunk(total: Array, tokens: Any) -> tuple[Array, None]:
        hidden, targets, weights = tokens
        logits = _logits(hidden, table, columns)
        find = _losses_on_cpu if is_on_one("cpu", hidden) else _losses
        return total + jnp.sum(find(logits, targets, len(embedding))[-1] * weights), None

    return _scan(chunk, jnp.zeros((), weights.dtype), table, (hidden, targets, weights))[0]


def _prepared(embedding: Array, hidden: Array) -> Array:
    """Return the embedding as every chunk multiplies with it; rows of zeros after its own are no tokens."""
    table, rows = embedding.astype(hidden.dtype), len(embedding)
    return jnp.pad(table, [(0, -rows % ALIGNED), (0, 0)]) if is_on_one("gpu", hidden) else table


def _logits(hidden: Array, table: Array, columns: Array | None) -> Array:
    """Multiply with `columns`, the transposed table, if there."""
    wide = accumulation_dtype(hidden)
    if columns is not None:
        return jnp.einsum("bnd,dv->bnv", hidden, columns, preferred_element_type=wide)
    return jnp.einsum("bnd,vd->bnv", hidden, table, preferred_element_type=wide)


def _of_logits(logits: Array, targets: Array, weights: Array, vocab: int, dtype: Any) -> tuple[Array, Array]:
    """Return the gradients (B, n, rows) and the losses (B, n); a kernel reads the logits once for both."""
    flat = logits.reshape(-1, logits.shape[-1])
    if runs_kernels(logits) and pallas_kernels.supports_softmax_loss(flat) is None:
        per_token = targets.reshape(-1).astype(jnp.int32), weights.reshape(-1)
        found = pallas_kernels.softmax_loss(flat, *per_token, vocab=vocab, dtype=dtype)
        return found[0].reshape(logits.shape), found[1].reshape(targets.shape)
    if is_on_one("cpu", logits):
        p, sums_of_p, losses = _losses_on_cpu(logits, targets, vocab)
        is_target = jnp.arange(vocab) == targets[..., None]
        of_logits = p * (weights / sums_of_p)[..., None] - jnp.where(is_target, weights[..., None], 0)
        return of_logits.astype(dtype), losses
    p, is_target, losses = _losses(logits, targets, vocab)
    return ((p - is_target) * weights[..., None]).astype(dtype), losses


def _losses(logits: Array, targets: Array, vocab: int) -> tuple[Array, Array, Array]:
    """Return probabilities, where the targets are (both (B, n, rows)), and the losses (B, n)."""
    # A comparison, not a gather: it stays where the vocabulary is spread over devices.
    token = jnp.arange(logits.shape[-1])
    if len(token) > vocab:
        logits = jnp.where(token < vocab, logits, finfo(logits.dtype).min)
    is_target = token == targets[..., None]
    top = logits.max(axis=-1)
    below = logits - top[..., None]
    log_total = jax.nn.logsumexp(below, axis=-1)
    of_target = jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
    losses = (top - of_target) + log_total  # in this order: a small loss keeps its digits
    return jnp.exp(below - log_total[..., None]), is_target, losses


def _losses_on_cpu(logits: Array, targets: Array, vocab: int) -> tuple[Array, Array, Array]:
    """Return exp(logits - largest), (B, n, V), their sums, and the losses, both (B, n).

    Each logit's exponential is taken once, and the sums are products: XLA's own sum of so many numbers walks
    over windows. A training step of a Based model (5 million parameters, vocabulary 4,096, 8 x 512 tokens,
    float32, 2 cores) takes 4 % less time with the form for CPUs.
    """
    top = logits.max(axis=-1)
    p = jnp.exp(logits - top[..., None])
    total = p @ jnp.ones(vocab, p.dtype)
    rows = jnp.where((targets >= 0) & (targets < vocab), targets, vocab)[..., None]
    of_target = jnp.take_along_axis(logits, rows, axis=-1, mode="fill", fill_value=0)[..., 0]
    return p, total, (top - of_target) + jnp.log(total)  # in this order: a small loss keeps its digits


def _scan(chunk: Any, start: Any, table: Array, tokens: Any) -> tuple[Any, Any]:
    """Run `chunk` over chunks of the rows: its carry, and its (B, n, ...) results put together again.

    Chunk i has the tokens i, i + chunks, ...: devices that hold neighbouring tokens all have a share of it.
    On one CPU it has neighbouring tokens of a single row, which are nowhere copied, and products take
    transposed tables: forward and backward of based-tiny with a vocabulary of 4,096 (8 x 512 tokens, 2 cores)
    then take 6 % less processor time.
    """
    shape, is_on_cpu = tokens[0].shape[:2], is_on_one("cpu", tokens[0])

    def in_one_row(x: Array) -> Array:
        return x.reshape(1, -1, *x.shape[2:])

    if is_on_cpu:
        tokens = jax.tree.map(in_one_row, tokens)
    batch, length = tokens[0].shape[:2]
    devices, limit = sharding.devices(), LOGITS.get(platforms.platform_of(tokens), SHARED_LOGITS)
    limit = max(limit, table.size) if devices == 1 else max(limit, SHARED_LOGITS) * devices
    needed = min(-(-batch * length * len(table) // limit), length)
    # Powers of two divide what devices hold more often than other numbers.
    chunks = 1 << (needed - 1).bit_length() if needed > 1 else 1
    size = -(-length // chunks)
    axis = 1 if is_on_cpu else 2
    sizes = (chunks, size) if is_on_cpu else (size, chunks)

    def split(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, chunks * size - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, *sizes, *x.shape[2:]), axis, 0)

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, axis).reshape(batch, size * chunks, *x.shape[3:])[:, :length]
        return in_own_rows(x)

    def in_own_rows(x: Array) -> Array:
        return x.reshape(*shape, *x.shape[2:])

    if chunks == 1:
        carry, results = chunk(start, tokens)
        return carry, jax.tree.map(in_own_rows, results)
    carry, results = lax.scan(chunk, start, jax.tree.map(split, tokens))
    return carry, jax.tree.map(join, results)
