"""The pool of an engine: requests as rows of one batch on the device, decoded together.

    row     a request after its prompt: state, last hidden vector, settings and limits
    pool    a batch of rows; a free row costs its share of the arithmetic, and its output is ignored

Every leaf of a pool has the rows as its first axis, so a row is a pool of one, a new request is one copy
(`put_rows`), and a pool of another size is one gather (`take_rows`). All that differs between requests is
data: stops, limits and sampling settings are on the device, and a chunk of tokens needs no host
synchronisation.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.generate.layer_streams import LayerStreams
from based_jax.generate.rows import put_rows, take_rows
from based_jax.generate.sampling import Choice, Counts, RowSettings, Sampler, choose, report, row_settings
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core.products import in_loop_over_tokens
from based_jax.typing import Array, Bool, Float, Int, Params, State


class Pool(NamedTuple):
    """Requests that are being decoded."""

    state: State
    hidden: Float[Array, "B D"]
    """the final norm's output at each row's last token"""
    settings: RowSettings
    counts: Counts
    """token counts for the penalties; only used in rows that have penalties"""
    top: Bool[Array, " B"]
    """whether to report the most likely tokens along with each token"""
    step: Int[Array, " B"]
    """number of tokens made so far"""
    limit: Int[Array, " B"]
    """most tokens to make"""
    stops: Int[Array, "B S"]
    """tokens that end a row, padded with -1"""
    active: Bool[Array, " B"]


class Made(NamedTuple):
    """The tokens of one chunk; row r has count[r] of them, a stop token included."""

    choice: Choice
    """arrays of `Choice`, with an axis of C tokens after that of the rows"""
    count: Int[Array, " B"]


@functools.partial(jax.jit, static_argnames=("model", "capacity", "stops"))
def empty(model: LanguageModel, params: Params, capacity: int, stops: int = 8) -> Pool:
    """Return a pool of one free row."""
    none = jnp.zeros((1,), jnp.int32)
    state = model.init_state(1, capacity)
    # A masked token changes nothing but dtypes: a float64 model's sums start as float32 and become wider.
    apply = functools.partial(model.apply, method="hidden")
    hidden, later = jax.eval_shape(apply, params, none[:, None], state, mask=none[:, None] > 0)
    return Pool(
        state=jax.tree.map(lambda now, then: now.astype(then.dtype), state, later),
        hidden=jnp.zeros((1, hidden.shape[-1]), hidden.dtype),
        settings=row_settings([Sampler()], None),
        counts=Counts(*jnp.zeros((2, 1, model.config.vocab_size), jnp.int32)),
        top=none > 0,
        step=none,
        limit=none,
        stops=jnp.full((1, stops), -1, jnp.int32),
        active=none > 0,
    )


@functools.partial(jax.jit, static_argnames=("model",))
def read(
    model: LanguageModel, params: Params, state: State, tokens: Int[Array, "1 N"], count: Int[Array, ""]
) -> tuple[State, Float[Array, "1 D"]]:
    """Read a chunk of one prompt.

    Nothing is donated: the state before a chunk may be in a cache.

    Args:
        state: one row.
        tokens: the chunk, padded on the right.
        count: the number of its real tokens, at least one.

    Returns:
        The state after the chunk, and the final norm's output at its last token.
    """
    _, state, last = _read(model, params, state, tokens, count)
    return state, last


@functools.partial(jax.jit, static_argnames=("model", "top_logprobs"))
def score(
    model: LanguageModel,
    params: Params,
    state: State,
    tokens: Int[Array, "1 N"],
    count: Int[Array, ""],
    *,
    following: Int[Array, " N"],
    top_logprobs: int,
) -> tuple[State, Float[Array, "1 D"], Choice]:
    """Read a chunk of one prompt as `read` does, and score the token that follows each of its tokens.

    Args:
        following: the token after each of `tokens`.

    Returns:
        What `read` returns, and the log-probabilities of `following`; the last ones belong to padding.
    """
    hidden, state, last = _read(model, params, state, tokens, count)
    logits: Any = model.apply(params, hidden[0], method="unembed")
    return state, last, report(logits[:, : model.config.vocab_size], following, top_logprobs)


def _read(model: LanguageModel, params: Params, state: State, tokens: Array, count: Array) -> Any:
    """Return the outputs of the final norm, the state after a chunk, and the output at its last token."""
    mask = jnp.arange(tokens.shape[1])[None] < count
    hidden, state = model.apply(params, tokens, state, mask=mask, method="hidden")
    return hidden, state, lax.dynamic_index_in_dim(hidden, count - 1, axis=1, keepdims=False)


@functools.partial(jax.jit, donate_argnames=("pool",))
def insert(pool: Pool, row: Pool, slot: Int[Array, ""]) -> Pool:
    """Return the pool with row `slot` replaced by a pool of one."""
    return put_rows(pool, row, slot[None])


@functools.partial(jax.jit, donate_argnames=("pool",))
def release(pool: Pool, slot: Int[Array, ""]) -> Pool:
    """Return the pool with row `slot` free."""
    return pool._replace(active=pool.active.at[slot].set(False))


@jax.jit
def regroup(pool: Pool, rows: Int[Array, " R"], count: Int[Array, ""]) -> Pool:
    """Return a pool of R rows: the first `count` are `rows`, the others free."""
    pool = take_rows(pool, rows)
    return pool._replace(active=pool.active & (jnp.arange(len(rows)) < count))


@functools.partial(jax.jit, static_argnames=("model", "chunk", "top_logprobs"), donate_argnames=("pool",))
def decode(
    model: LanguageModel, params: Params, pool: Pool, *, chunk: int, top_logprobs: int
) -> tuple[Pool, Made]:
    """Make up to `chunk` tokens per active row; end earlier when no row is active.

    Args:
        top_logprobs: how many of the most likely tokens to report for each, where a row asks for them.
    """

    streams = LayerStreams(pool.state)

    def unfinished(carry: Any) -> Any:
        index, pool, _ = carry
        return (index < chunk) & pool.active.any()

    def body(carry: Any) -> Any:
        index, pool, made = carry
        choice = next_choice(pool)
        made = jax.tree.map(lambda tokens, new: tokens.at[:, index].set(new), made, choice)
        pool = pool._replace(state=streams.within(pool.state, index))
        with in_loop_over_tokens():
            pool = _advance(model, params, pool, choice.token)
        return index + 1, pool._replace(state=streams.strip(pool.state)), made

    def next_choice(pool: Pool) -> Choice:
        logits: Any = model.apply(params, pool.hidden, method="unembed")
        # A free row must not make the others pay for its sampling.
        neutral = {"temperature": 0, "repetition": 1, "presence": 0, "frequency": 0}
        given = pool.settings._asdict()
        active = {name: jnp.where(pool.active, given[name], value) for name, value in neutral.items()}
        settings, sizes = pool.settings._replace(**active), {"vocab_size": model.config.vocab_size}
        top = {"top_logprobs": top_logprobs, "top_rows": pool.top & pool.active}
        return choose(logits, settings, pool.step, pool.counts, **sizes, **top)

    begin = pool.step
    shapes = jax.eval_shape(next_choice, pool)
    unfilled = jax.tree.map(lambda x: jnp.zeros((x.shape[0], chunk, *x.shape[1:]), x.dtype), shapes)
    pool = pool._replace(state=streams.strip(pool.state))
    index, pool, made = lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), pool, unfilled))
    return pool._replace(state=streams.after(pool.state, index)), Made(made, pool.step - begin)


def _advance(model: LanguageModel, params: Params, pool: Pool, token: Int[Array, " B"]) -> Pool:
    """Return the pool after one more token of every active row."""
    step = pool.step + pool.active
    stopped = (token[:, None] == pool.stops).any(axis=1)
    active = pool.active & ~stopped & (step < pool.limit)
    # Free rows are advanced too, as kernels of a single step take no mask; their output is ignored.
    hidden, state = model.apply(params, token[:, None], pool.state, method="hidden")
    counts = pool.counts.add(token, pool.active)
    return pool._replace(state=state, hidden=hidden[:, 0], counts=counts, step=step, active=active)
