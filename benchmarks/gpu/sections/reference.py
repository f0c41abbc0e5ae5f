"""References: the definitions of the ops, with the arguments of the kernels. Use them under `jax.enable_x64`.

Nothing is shared with the kernels but the order of the features in a state.
"""

from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp

from based_jax import ops
from pallas_kernels import Rotary


def taylor_attention(
    q: Any, k: Any, v: Any, *, initial_state: Any = None, return_state: bool = False, **packing: Any
) -> Any:
    """Return what `pallas_kernels.taylor_attention` returns for these arguments, by the quadratic form."""
    how, real = _packed(q, **packing)
    state = initial_state and _state(*initial_state)
    y, last = ops.taylor_attention(q, k, v, initial_state=state, return_state=True, **how)
    y = jnp.where(real, y, 0)
    return (y, (last.kv, last.k)) if return_state else y


def window_attention(q: Any, k: Any, v: Any, *, left: int, **packing: Any) -> Any:
    """Return what `pallas_kernels.window_attention` returns: y (B, N, H, V), 0 at padding."""
    how, real = _packed(q, **packing)
    return jnp.where(real, ops.softmax_attention(q, k, v, left=left, **how), 0)


def _packed(q: Any, starts: Any = None, counts: Any = None) -> tuple[dict[str, Any], Any]:
    """Return arguments of `ops` for starts of segments and numbers of tokens, and which tokens are real."""
    how: dict[str, Any] = {"implementation": "reference"}
    if starts is None:
        return how, True
    mask = jnp.arange(q.shape[1]) < counts[:, None]
    # A segment that starts at -1 is that of the state, whose number is 0.
    return how | {"segment_ids": starts + 1, "mask": mask}, mask[..., None, None]


def taylor_step(q: Any, k: Any, v: Any, kv: Any, z: Any) -> tuple[Any, Any, Any]:
    """Return what `pallas_kernels.taylor_step` returns: y and the new state."""
    y, state = ops.taylor_step(q, k, v, _state(kv, z), implementation="reference")
    return y, state.kv, state.k


def window_step(
    q: Any, k: Any, v: Any, k_ring: Any, v_ring: Any, length: Any, rotary: Rotary | None
) -> tuple[Any, Any, Any]:
    """Return what `pallas_kernels.window_step` returns: y and the new rings."""
    cache = ops.KVCache(k_ring, v_ring, _after(length))
    turn: dict[str, Any] = {} if rotary is None else {f"rotary_{x}": y for x, y in asdict(rotary).items()}
    y, cache = ops.window_step(q, k, v, cache, implementation="reference", **turn)
    return y, cache.k, cache.v


def _state(kv: Any, z: Any) -> ops.LinearAttentionState:
    """Return the state of rows that have read a token: the next one may continue its segment."""
    return ops.LinearAttentionState(kv, z, _after(jnp.ones(len(kv), jnp.int32)))


def _after(length: Any) -> Any:
    """Return the stream of rows that have read so many tokens (B,)."""
    return replace(ops.init_stream(len(length)), length=length)
