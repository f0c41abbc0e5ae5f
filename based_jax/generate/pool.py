"""Rows of text on the device: read prompts, decode all rows together. `generate` and the engine share this.

    text    what a model keeps of rows that it has read: state and last hidden vector
    pool    rows that are being decoded: texts, settings and limits; a free row costs its share of the
            arithmetic, and its output is ignored

Every leaf of a pool has the rows as its first axis, so a row is a pool of one, a new request is one copy
(`put_rows`), and a pool of another size is one gather (`take_rows`). All that differs between rows is data:
stops, limits and sampling settings are on the device, and a chunk of tokens needs no host synchronisation.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.generate.sampling import Choice, Counts, RowSettings, choose, report
from based_jax.generate.states import put_rows, take_rows
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core import sharding
from based_jax.ops.core.padding import aligned
from based_jax.ops.core.products import in_loop_over_tokens
from based_jax.ops.core.stream import Stream
from based_jax.typing import Array, Bool, Float, Int, Params, State


class Text(NamedTuple):
    """What a model keeps of rows that it has read."""

    state: State
    hidden: Float[Array, "B D"]
    """the final norm's output at each row's last token"""


class Pool(NamedTuple):
    """Rows that are being decoded."""

    text: Text
    settings: RowSettings
    counts: Counts | None
    """token counts for the penalties, only used in rows that have penalties; None if no row will have any"""
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


@functools.partial(jax.jit, static_argnames=("model", "batch", "capacity"))
def begin(model: LanguageModel, batch: int, capacity: int | None) -> Text:
    """Return rows before their first token.

    Compiled, because eager code may use one array for two leaves, which cannot be donated.
    """
    hidden = jnp.zeros((batch, model.config.embed_width), model.config.jnp_dtype)
    return Text(model.init_state(batch, capacity), hidden)


def read_chunk(
    model: LanguageModel,
    params: Params,
    text: Text,
    tokens: Int[Array, "B C"],
    lengths: Int[Array, " B"],
    offset: Int[Array, ""] | int = 0,
) -> tuple[Float[Array, "B C D"], Text]:
    """Read tokens offset ... offset + C of prompts of `lengths` tokens, padded on the right.

    Returns:
        The outputs of the final norm, and the rows after the chunk.
    """
    size = tokens.shape[1]
    mask = offset + jnp.arange(size)[None] < lengths[:, None]
    with aligned():
        h, state = model.apply(params, tokens, text.state, mask=mask, method="hidden")
    last = lengths - 1 - offset  # position in this chunk; the prompt may end before or after it
    hidden = jnp.take_along_axis(h, jnp.clip(last, 0, size - 1)[:, None, None], axis=1)[:, 0]
    return h, Text(state, jnp.where((last >= 0)[:, None], hidden, text.hidden))


@functools.partial(jax.jit, static_argnames=("model", "top_logprobs"))
def read(
    model: LanguageModel,
    params: Params,
    text: Text,
    tokens: Int[Array, "1 C"],
    count: Int[Array, ""],
    following: Int[Array, " C"] | None = None,
    top_logprobs: int = 0,
) -> tuple[Text, Choice | None]:
    """Read a chunk of one prompt, and score the token that follows each of its tokens if those are given.

    Nothing is donated: the text before a chunk may be in a cache.

    Args:
        tokens: the chunk, padded on the right.
        count: the number of its real tokens, at least one.
        following: the token after each of `tokens`.

    Returns:
        The row after the chunk, and the log-probabilities of `following`; the last ones belong to padding.
    """
    h, text = read_chunk(model, params, text, tokens, count[None])
    if following is None:
        return text, None
    logits: Any = model.apply(params, h[0], method="unembed")
    return text, report(logits[:, : model.config.vocab_size], following, top_logprobs)


def new_rows(
    text: Text,
    settings: RowSettings,
    counts: Counts | None,
    limit: int,
    stops: Sequence[int] | np.ndarray = (),
    *,
    top: bool = False,
    active: bool = True,
) -> Pool:
    """Return rows that have read their prompts and made no token; all have the same limit and stops."""
    column: Any = functools.partial(np.full, len(text.hidden))
    stopping: Any = np.tile(np.asarray(stops, np.int32), (len(text.hidden), 1))
    made, most = column(0, np.int32), column(limit, np.int32)
    return Pool(text, settings, counts, column(top), made, most, stopping, column(active))


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
    model: LanguageModel,
    params: Params,
    pool: Pool,
    most: int,
    pad_token: int = 0,
    *,
    chunk: int,
    top_logprobs: int | None = 0,
) -> tuple[Pool, Made]:
    """Make up to `most` <= chunk tokens per active row; end earlier when no row is active.

    Args:
        pad_token: what rows have after their last token, with log-probability 0.
        chunk: length of the arrays of tokens.
        top_logprobs: how many of the most likely tokens to report for each, where a row asks for them;
            None for no log-probabilities at all.
    """
    make = functools.partial(_decode, model, chunk, top_logprobs)
    return sharding.isolated(make, (params, pool, most, pad_token), {}, like=pool.text.hidden)


def _decode(
    model: LanguageModel,
    chunk: int,
    top_logprobs: int | None,
    params: Params,
    pool: Pool,
    most: Any,
    pad_token: Any,
) -> tuple[Pool, Made]:
    streams, begin, vocab_size = LayerStreams(pool.text.state), pool.step, model.config.vocab_size

    def unfinished(carry: Any) -> Any:
        index, pool, _ = carry
        return (index < most) & pool.active.any()

    def body(carry: Any) -> Any:
        index, pool, made = carry
        choice = next_choice(pool)
        # On a GPU `.at[:, index].set` would check in a launch of its own whether the index is in range.
        put = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=1)
        made = jax.tree.map(put, made, choice)
        with in_loop_over_tokens():
            pool = _advance(model, params, pool, choice.token, streams.within(pool.text.state, index))
        return index + 1, with_state(pool, streams.strip(pool.text.state)), made

    def next_choice(pool: Pool) -> Choice:
        logits: Any = model.apply(params, pool.text.hidden, method="unembed")
        # A free row must not make the others pay for its sampling.
        neutral = {"temperature": 0, "repetition": 1, "presence": 0, "frequency": 0}
        given = pool.settings._asdict()
        active = {name: jnp.where(pool.active, given[name], value) for name, value in neutral.items()}
        top = {"top_logprobs": top_logprobs, "top_rows": pool.top & pool.active}
        settings = pool.settings._replace(**active)
        return choose(logits, settings, pool.step, pool.counts, vocab_size=vocab_size, **top)

    def with_state(pool: Pool, state: Any) -> Pool:
        return pool._replace(text=pool.text._replace(state=state))

    shapes = jax.eval_shape(next_choice, pool)
    unfilled = jax.tree.map(lambda x: jnp.zeros((x.shape[0], chunk, *x.shape[1:]), x.dtype), shapes)
    pool = with_state(pool, streams.strip(pool.text.state))
    index, pool, made = lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), pool, unfilled))
    count = pool.step - begin
    is_made = jnp.arange(chunk) < count[:, None]
    made = made._replace(token=jnp.where(is_made, made.token, pad_token))
    if made.logprob is not None:
        made = made._replace(logprob=jnp.where(is_made, made.logprob, 0))
    return with_state(pool, streams.after(pool.text.state, index)), Made(made, count)


def _advance(model: LanguageModel, params: Params, pool: Pool, token: Int[Array, " B"], state: State) -> Pool:
    """Return the pool after one more token of every active row."""
    step = pool.step + pool.active.astype(jnp.int32)
    stopped = (token[:, None] == pool.stops).any(axis=1)
    active = pool.active & ~stopped & (step < pool.limit)
    # Free rows are advanced too, as kernels of a single step take no mask; their output is ignored.
    h, state = model.apply(params, token[:, None], state, method="hidden")
    counts = None if pool.counts is None else pool.counts.add(token, pool.active)
    return pool._replace(text=Text(state, h[:, 0]), counts=counts, step=step, active=active)


class Carried(NamedTuple):
    """A state in the loop: what its streams do not share."""

    arrays: list[Array]
    """the other leaves, in the order of the state"""
    broken: Bool[Array, " B"] | None
    """rows with a NaN or an infinity in some layer, so that their logits are NaN; None without streams"""


class LayerStreams:
    """The streams of a model's state before a loop over single tokens, which all layers share in the loop.

    Every layer's state records how far the rows have come, equally in all layers: the stream before the loop
    plus the number of tokens made. Carried layer by layer it would be computed layer by layer: on a GPU, two
    kernels each.
    """

    def __init__(self, state: State) -> None:
        self._leaves, self._tree = jax.tree.flatten(state, is_leaf=_is_stream)

    def strip(self, state: State) -> Carried:
        """Return the loop's carry for a state: the one before the loop, or a later one."""
        leaves = self._tree.flatten_up_to(state)
        broken = [leaf.broken for leaf in leaves if _is_stream(leaf)]
        arrays = [leaf for leaf in leaves if not _is_stream(leaf)]
        return Carried(arrays, functools.reduce(jnp.logical_or, broken) if broken else None)

    def within(self, carried: Carried, made: Int[Array, "..."]) -> State:
        """Return the state after `made` tokens, with the first layer's stream, computed once, in all."""
        first = next((leaf for leaf in self._leaves if _is_stream(leaf)), None)
        return self._restore(carried, made, [first if _is_stream(leaf) else leaf for leaf in self._leaves])

    def after(self, carried: Carried, made: Int[Array, "..."]) -> State:
        """Return the state after the loop: each stream from its own layer, whose memory it can reuse."""
        return self._restore(carried, made, self._leaves)

    def _restore(self, carried: Carried, made: Array, before: list[Any]) -> State:
        arrays = iter(carried.arrays)

        def moved(leaf: Any) -> Any:
            if not _is_stream(leaf):
                return next(arrays)
            return dataclasses.replace(leaf, length=leaf.length + made, broken=carried.broken)

        return jax.tree.unflatten(self._tree, [moved(leaf) for leaf in before])


def _is_stream(node: Any) -> bool:
    return isinstance(node, Stream)
