"""An implementation of `ops.linear_recurrence`: the equation, token by token."""

import jax
import jax.numpy as jnp

import based_jax as bj


def register():
    bj.ops.register("linear_recurrence", "one_by_one", one_by_one, supports=cannot_run)


def cannot_run(q, k, v, log_decay, *, bonus=None, **options):
    """The reason why a call is left to others, or None."""
    return None if bonus is None else "has no bonus"


def one_by_one(
    q,
    k,
    v,
    log_decay,
    *,
    scale=None,
    initial_state=None,
    return_state=False,
    segment_ids=None,
    mask=None,
    **options,
):
    """S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   y_t = S_t^T q_t scale."""
    batch, length, _, width = q.shape
    heads, value_size = v.shape[2:]
    state = initial_state
    if state is None:
        state = bj.ops.init_linear_recurrence_state(batch, heads, width, value_size)
    positions, stream = bj.ops.advance(state.stream, batch, length, segment_ids, mask)
    begins = jnp.broadcast_to(positions.positions == 0, (batch, length))
    real = jnp.ones((batch, length), bool) if mask is None else mask

    def token(kv, inputs):
        q, k, v, decay, begins, real = inputs
        kept = jnp.where(begins[:, None, None, None], 0, decay[..., None] * kv)
        kv = jnp.where(real[:, None, None, None], kept + k[..., :, None] * v[..., None, :], kv)
        return kv, jnp.einsum("bhk,bhkv->bhv", q, kv)

    q, k = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (q, k))
    decay = jnp.exp(log_decay if log_decay.ndim == 4 else log_decay[..., None])
    decay = jnp.broadcast_to(decay, (batch, length, heads, width))
    inputs = jax.tree.map(lambda x: x.swapaxes(0, 1), (q, k, v, decay, begins, real))
    kv, y = jax.lax.scan(token, state.kv, inputs)
    y = (y.swapaxes(0, 1) * (width**-0.5 if scale is None else scale)).astype(v.dtype)
    return (y, bj.ops.LinearRecurrenceState(kv, stream)) if return_state else y
