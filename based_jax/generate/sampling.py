"""Sample tokens from logits: penalties, temperature, top-k, top-p, min-p; settings are per row.

    penalised  = logits, lowered for tokens that are already in the text
    scores     = penalised / temperature
    candidates = min_p(top_p(top_k(scores)))
    token      ~ softmax(candidates),   or the largest of `penalised` where the temperature is 0

The order is the usual one: the nucleus is taken among the top-k candidates, renormalised, as in the authors'
decoding; min-p is relative to the most likely token at this temperature (Nguyen et al. 2024, arXiv
2407.01082), so it does not depend on the tokens removed before.
The padded end of the vocabulary is cut off first, so it is never sampled.

Settings are arrays with an entry per row: one program serves all of them, and only does the work that the
batch's settings need. Settings without keys, where all rows are greedy, have a program of their own, in which
no token needs the choice whether to sample. A row's token depends on its own logits, settings and key, not on
the other rows.
"""

import dataclasses
import numbers
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Key

from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array

LARGEST_PENALTY = 1e20
"""Larger penalties, and factors below its inverse, could make float32 logits infinite."""


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
    min_p: float | None = None
    """sample among tokens with at least this share of the most likely one's probability; None is all"""
    repetition_penalty: float = 1.0
    """positive logits of tokens that are in the prompt or were made are divided by it, negative ones
    multiplied: above 1 these tokens become less likely (Keskar et al. 2019, section 4.1, for positive
    logits); in [1e-20, 1e20]"""
    presence_penalty: float = 0.0
    """subtracted from the logits of tokens that were made; like the next one as in OpenAI's API, which
    ignores the prompt, and in [-1e20, 1e20]"""
    frequency_penalty: float = 0.0
    """subtracted from a token's logit once for every time it was made"""

    def __post_init__(self) -> None:
        good = _is_real(self.temperature) and 0 <= self.temperature <= sys.float_info.max
        expect(good, "temperature", self.temperature, "a finite number, at least 0")
        if self.top_k is not None:
            whole = isinstance(self.top_k, numbers.Integral) and not isinstance(self.top_k, bool)
            expect(whole and self.top_k >= 1, "top_k", self.top_k, "None or an integer, at least 1")
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            good = share is None or (_is_real(share) and 0 < share <= 1)
            expect(good, name, share, "None or a number in (0, 1]")
        most = LARGEST_PENALTY
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            value, least = getattr(self, name), 1 / most if name == "repetition_penalty" else -most
            good = _is_real(value) and least <= value <= most
            expect(good, name, value, f"a number from {least:g} to {most:g}")

    @property
    def greedy(self) -> bool:
        """Whether no randomness is needed."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether `choose` needs the counts of the tokens in the text."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


SETTINGS = tuple(field.name for field in dataclasses.fields(Sampler))


class RowSettings(NamedTuple):
    """Keys and the fields of `Sampler` in its order, an entry per row: an argument of compiled programs."""

    keys: Key[Array, " B"] | None
    """None if every row is greedy"""
    temperature: Float[Array, " B"]
    """0 is greedy"""
    top_k: Int[Array, " B"]
    """0 is all"""
    top_p: Float[Array, " B"]
    """1 is all"""
    min_p: Float[Array, " B"]
    """0 is all"""
    repetition: Float[Array, " B"]
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]


def batch_settings(rng: Any, batch_size: int, **settings: Any) -> tuple[RowSettings, bool]:
    """Make the settings of a batch from those of `Sampler`: each is a value for all rows, or one per row.

    Returns:
        Settings of each row; whether any row has penalties.

    Raises:
        TypeError, ValueError: a wrong setting or key, or no key where a row samples.
    """
    columns = {}
    for name, value in settings.items():
        values = value.tolist() if hasattr(value, "tolist") else value
        is_column = isinstance(values, Sequence) and not isinstance(values, str)
        columns[name] = values if is_column else [values] * batch_size
        wanted = f"one value, or one for each of {batch_size} rows"
        expect(len(columns[name]) == batch_size, name, values, wanted)
    rows = zip(*columns.values(), strict=True)
    samplers = [Sampler(**dict(zip(columns, row, strict=True))) for row in rows]
    is_greedy = all(sampler.greedy for sampler in samplers)
    expect(is_greedy or rng is not None, "rng", rng, "jax.random.key(seed) when temperature > 0")
    keys = None if is_greedy else row_keys(rng, batch_size)
    return row_settings(samplers, keys), any(sampler.penalises for sampler in samplers)


def row_settings(samplers: Sequence[Sampler], keys: Key[Array, " B"] | None) -> RowSettings:
    """Stack the settings of a batch; `keys` are one per row (`row_keys`), None if every row is greedy."""

    def column(name: str) -> Array:
        dtype: Any = np.int32 if name == "top_k" else np.float32
        nothing = int(name == "top_p")
        largest = np.iinfo(dtype).max if dtype == np.int32 else np.finfo(dtype).max.item()
        values = (getattr(sampler, name) for sampler in samplers)
        fits = [nothing if v is None else max(-largest, min(v, largest)) for v in values]
        return jnp.asarray(np.array(fits, dtype))

    return RowSettings(keys, *map(column, SETTINGS))


class Counts(NamedTuple):
    """How often each token occurs in a row's text, for the penalties."""

    prompt: Int[Array, "B vocab"]
    output: Int[Array, "B vocab"]

    @classmethod
    def of_prompt(cls, tokens: Int[Array, "B N"], mask: Bool[Array, "B N"], vocab_size: int) -> "Counts":
        """Count the prompts' tokens; `mask` is True for real tokens."""
        none = jnp.zeros((tokens.shape[0], vocab_size), jnp.int32)
        return cls(_counted(none, tokens, mask), none)

    def add(self, token: Int[Array, " B"], active: Bool[Array, " B"]) -> "Counts":
        """Add one token to each of the `active` rows."""
        return self._replace(output=_counted(self.output, token, active))


@jax.vmap  # indices of rows would gather the counts where the batch is sharded
def _counted(counts: Array, tokens: Array, real: Array) -> Array:
    """Add the real tokens of each row to its counts."""
    return counts.at[tokens].add(real.astype(jnp.int32))


class Choice(NamedTuple):
    """A token per row and its probability under the model; all but the token are None if nobody asks."""

    token: Int[Array, " B"]
    logprob: Any = None
    """float32 (B,): log softmax of the model's own logits, without penalties and temperature"""
    top_ids: Any = None
    """int32 (B, K): the K most likely tokens, most likely first"""
    top_logprobs: Any = None
    """float32 (B, K)"""


def choose(
    logits: Float[Array, "B padded_vocab"],
    settings: RowSettings,
    step: Int[Array, " B"],
    counts: Counts | None = None,
    *,
    vocab_size: int,
    top_logprobs: int | None = 0,
    top_rows: Bool[Array, " B"] | None = None,
) -> Choice:
    """Choose one token per row.

    Args:
        logits: one row per sequence; entries from `vocab_size` on are ignored.
        step: number of tokens that each row has made; the key of a token is fold_in(row's key, step).
        counts: tokens of each row's text; None for no penalties, whatever `settings` says.
        vocab_size: number of tokens that may be chosen.
        top_logprobs: K; None for no log-probabilities, which need two more passes over the vocabulary.
        top_rows: rows whose most likely tokens are needed; if there are none, all rows report zeros. None
            means all rows.
    """
    logits = logits[:, :vocab_size]
    penalised = adjusted(logits, settings, counts)
    token, keys = jnp.argmax(penalised, axis=-1), settings.keys
    if keys is not None:
        samples, greedy = settings.temperature > 0, token

        def sample() -> Array:
            return jnp.where(samples, _draw(candidates(penalised, settings), keys, step), greedy)

        token = lax.cond(samples.any(), sample, lambda: greedy)
    token = token.astype(jnp.int32)
    return Choice(token) if top_logprobs is None else report(logits, token, top_logprobs, top_rows)


def report(
    logits: Float[Array, "B vocab"],
    token: Int[Array, " B"],
    top_logprobs: int,
    top_rows: Bool[Array, " B"] | None = None,
) -> Choice:
    """Return the log-probabilities of tokens under the model's own logits; see `choose`."""
    logprobs = jax.nn.log_softmax(logits, axis=-1).astype(jnp.float32)
    most = min(top_logprobs, logits.shape[-1])

    def most_likely() -> tuple[Array, Array]:
        values, ids = lax.top_k(logprobs, most)
        return values, ids.astype(jnp.int32)

    def nothing() -> tuple[Array, Array]:
        values = jnp.zeros_like(logprobs[:, :most])
        return values, values.astype(jnp.int32)

    top, ids = (
        most_likely() if top_rows is None or not most else lax.cond(top_rows.any(), most_likely, nothing)
    )
    return Choice(token, jnp.take_along_axis(logprobs, token[:, None], axis=1)[:, 0], ids, top)


def adjusted(
    logits: Float[Array, "B vocab"], settings: RowSettings, counts: Counts | None
) -> Float[Array, "B vocab"]:
    """Return the logits with penalties applied; see `choose`. No work if no row has any."""
    if counts is None:
        return logits
    some = (settings.repetition != 1) | (settings.presence != 0) | (settings.frequency != 0)
    return lax.cond(some.any(), lambda: _penalise(logits, settings, counts), lambda: logits)


def candidates(logits: Float[Array, "B vocab"], settings: RowSettings) -> Float[Array, "B vocab"]:
    """Return (logits - largest) / temperature, -inf for tokens that may not be sampled.

    Tokens tied with the last candidate are candidates too. Rows of temperature 0 are meaningless.
    """
    column = jax.tree.map(lambda setting: setting[:, None], settings._replace(keys=None))
    # Only differences matter; subtracting first keeps a tiny temperature from turning the largest into inf.
    logits = logits - logits.max(axis=-1, keepdims=True)
    warm = jnp.maximum(column.temperature, jnp.finfo(jnp.float32).tiny)
    scores = logits / jnp.where(column.temperature > 0, warm, 1)

    def top_k() -> Array:
        count = jnp.where(column.top_k > 0, column.top_k, scores.shape[-1])
        return _most_likely(scores, jnp.ones_like(scores, jnp.int32), count)

    def top_p(scores: Array) -> Array:
        weights = jnp.exp(scores)
        nucleus = _most_likely(scores, weights, column.top_p * weights.sum(axis=-1, keepdims=True))
        return jnp.where(column.top_p < 1, nucleus, scores)  # rounding must not cut top_p = 1

    scores = lax.cond((settings.top_k > 0).any(), top_k, lambda: scores)
    scores = lax.cond((settings.top_p < 1).any(), top_p, lambda scores: scores, scores)
    return jnp.where(scores >= jnp.log(column.min_p), scores, -jnp.inf)  # the most likely token has 0


def row_keys(rng: Any, batch_size: int) -> Key[Array, " B"]:
    """Return one key per row: row r takes `fold_in(rng, r)`; (B,) keys are returned unchanged.

    A row's tokens depend on its key only, so a row with the same key makes the same tokens in any batch.

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


def _penalise(
    logits: Float[Array, "B vocab"], settings: RowSettings, counts: Counts
) -> Float[Array, "B vocab"]:
    repetition, presence, frequency = (setting[:, None] for setting in settings[-3:])
    # Division alone, as in the paper, would make a negative logit more likely.
    lowered = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(counts.prompt + counts.output > 0, lowered, logits)
    return logits - presence * (counts.output > 0) - frequency * counts.output


def _most_likely(
    scores: Float[Array, "B vocab"], weights: Array, target: Float[Array, "B 1"] | Int[Array, "B 1"]
) -> Float[Array, "B vocab"]:
    """Set all but the fewest most likely tokens whose weights sum to at least `target` to -inf.

    Scores are at most 0, where the bits of a float, read as an integer, are ordered: bisecting an interval of
    integers finds the last score in 31 sums. On a CPU sorting 50,000 scores took about 30 times as long.
    """
    bits = jnp.finfo(scores.dtype).bits
    order = lax.bitcast_convert_type(jnp.abs(scores), jnp.dtype(f"int{bits}"))
    none = lax.bitcast_convert_type(jnp.asarray(jnp.inf, scores.dtype), order.dtype)

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jnp.where(order <= middle, weights, 0).sum(axis=-1, keepdims=True) >= target
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    every = jnp.zeros_like(order[:, :1])
    _, last = lax.fori_loop(0, bits - 1, halve, (every, jnp.full_like(every, none)))
    return jnp.where(order <= last, scores, -jnp.inf)


def _draw(
    scores: Float[Array, "B vocab"], keys: Key[Array, " B"], step: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Draw a token for each row: invert the cumulative distribution at one uniform number."""

    def number(key: Array, step: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, step), dtype=scores.dtype)

    weights = jnp.exp(scores)
    reached = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0)
    # Below the total of the tokens that may be drawn, so that rounding never selects another one.
    target = jax.vmap(number)(keys, step)[:, None] * reached.max(axis=-1, keepdims=True)
    return jnp.argmax(reached > target, axis=-1)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
