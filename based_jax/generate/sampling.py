"""From logits to tokens: greedy, temperature, top-k, nucleus; every row with its own randomness.

    candidates = top_p(top_k(logits) / temperature);   token ~ softmax(candidates)

The order is the authors' (spec of Based, 9.6): the nucleus is taken among the top-k candidates, renormalised.
The padded end of the vocabulary is cut off first, so it can never be sampled.
"""

import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Key

from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How to choose the next token.

    Raises:
        ValueError: a setting out of its range.
    """

    temperature: float = 0.0
    """divides the logits; 0 takes the most likely token"""
    top_k: int | None = None
    """sample among this many most likely tokens; None is all"""
    top_p: float | None = None
    """sample among the fewest most likely tokens whose probabilities sum to at least this; None is all"""

    def __post_init__(self) -> None:
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        finite = _is_real(temperature) and math.isfinite(temperature)
        expect(finite and temperature >= 0, "temperature", temperature, "a finite number, at least 0")
        if top_k is not None:
            whole = isinstance(top_k, numbers.Integral) and not isinstance(top_k, bool)
            expect(whole and top_k >= 1, "top_k", top_k, "None or an integer, at least 1")
        if top_p is not None:
            expect(_is_real(top_p) and 0 < top_p <= 1, "top_p", top_p, "None or a number in (0, 1]")

    @property
    def greedy(self) -> bool:
        """True if no randomness is needed."""
        return self.temperature == 0


def next_tokens(
    logits: Float[Array, "B vocab"],
    keys: Key[Array, " B"] | None,
    *,
    vocab_size: int,
    temperature: Float[Array, ""] | float | None = None,
    top_k: int | None = None,
    top_p: Float[Array, ""] | float | None = None,
) -> Int[Array, " B"]:
    """Choose one token per row; a row's token depends on its own logits and key only.

    Args:
        logits: one row per sequence; entries from `vocab_size` on are ignored.
        keys: one key per row (`row_keys`, `step_keys`); unused when greedy.
        vocab_size: tokens that may be chosen.
        temperature: positive, or None for the most likely token. May be traced, as may top_p.
        top_k, top_p: see `Sampler`.

    Returns:
        int32 (B,).
    """
    logits = logits[:, :vocab_size]
    if temperature is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    scores, ids = candidates(logits, temperature, top_k, top_p)
    assert keys is not None
    chosen = jax.vmap(jax.random.categorical)(keys, scores)[:, None]
    chosen = chosen if ids is None else jnp.take_along_axis(ids, chosen, axis=1)
    return chosen[:, 0].astype(jnp.int32)


def candidates(
    logits: Float[Array, "B vocab"],
    temperature: Float[Array, ""] | float,
    top_k: int | None = None,
    top_p: Float[Array, ""] | float | None = None,
) -> tuple[Float[Array, "B C"], Int[Array, "B C"] | None]:
    """The tokens that may be sampled.

    Returns:
        scores: logits over temperature, -inf for tokens that may not.
        ids: the token that each score belongs to, most likely first; None if they are all in order.
    """
    # Only differences count; taken first, a tiny temperature cannot turn the largest into inf.
    logits = logits - logits.max(axis=-1, keepdims=True)
    ids = None
    if top_k is not None or top_p is not None:
        count = logits.shape[-1] if top_k is None else min(int(top_k), logits.shape[-1])
        logits, ids = lax.top_k(logits, count)
    scores = logits / temperature
    if top_p is not None:
        probabilities = jax.nn.softmax(scores, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities  # 0 for the most likely: it always stays
        scores = jnp.where(before < top_p, scores, -jnp.inf)
    return scores, ids


def row_keys(rng: Any, batch_size: int) -> Key[Array, " B"]:
    """One key per row: row r takes `fold_in(rng, r)`; (B,) keys are taken as they are.

    A row's tokens depend on its key only, so a row that is given the same key alone makes the same tokens.

    Args:
        rng: `jax.random.key(seed)`, or B of them; the older `jax.random.PRNGKey` arrays work too.

    Raises:
        TypeError, ValueError: not a key, or not B of them.
    """
    if not hasattr(rng, "dtype"):
        raise TypeError(f"rng = {rng!r}: expected jax.random.key(seed)")
    if not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        if rng.dtype != jnp.uint32 or rng.ndim == 0:
            raise TypeError(f"rng has dtype {rng.dtype}: expected jax.random.key(seed)")
        rng = jax.random.wrap_key_data(rng)
    if rng.ndim:
        expect_array("rng", rng, (batch_size,))
        return rng
    return jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(batch_size))


def step_keys(keys: Key[Array, " B"], step: Int[Array, ""] | int) -> Key[Array, " B"]:
    """The rows' keys for the token number `step`."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, step)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
