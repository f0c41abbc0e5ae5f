"""Generate text: one compiled prefill, then one compiled loop over single tokens with the state donated.

    prefill   h, state = model.hidden(chunk of the prompt, state);   keep h of each row's last token
    decode    token ~ choose(unembed(h));   h, state = model.hidden(token, state);   repeat

Rows of one batch may have prompts of different lengths: the state holds each row's position.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.generate.capacity import capacity_for, with_capacity
from based_jax.generate.layer_streams import LayerStreams
from based_jax.generate.prompt import Prompt, Tokens, bucket, chunk_sizes, pad_to, read_prompt, read_tokens
from based_jax.generate.rows import row_count, take_rows
from based_jax.generate.sampling import Counts, RowSettings, Sampler, batch_settings, choose
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core import sharding
from based_jax.ops.core.padding import aligned
from based_jax.ops.core.products import in_loop_over_tokens
from based_jax.typing import Array, Bool, Float, Int, Mask, Params, State
from based_jax.validate import INT32_MAX, expect, expect_array, expect_integer


class Snapshot(NamedTuple):
    """A prefix and the model's state after it."""

    tokens: np.ndarray
    """(N,) int32"""
    state: State
    """one row, after the tokens"""
    hidden: Any
    """(1, D), the final norm's output at the last token"""


class Progress(NamedTuple):
    """The carry of the decoding loop."""

    state: State
    hidden: Float[Array, "B D"]
    """the final norm's output at each row's last token"""
    done: Bool[Array, " B"]
    """rows that have emitted a stop token"""
    step: Int[Array, ""]
    """number of tokens made so far"""
    counts: Counts | None
    """token counts of each row's text, if any row has penalties"""


class Rules(NamedTuple):
    """How tokens are chosen: array arguments of the compiled loop, so new values do not recompile it."""

    settings: RowSettings
    stop_tokens: np.ndarray
    pad_token: int


_SETTINGS = tuple(field.name for field in dataclasses.fields(Sampler))


@sharding.own_settings()
def generate(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float | Sequence[float] = 0.0,
    rng: Array | None = None,
    *,
    top_k: int | Sequence[int | None] | None = None,
    top_p: float | Sequence[float | None] | None = None,
    min_p: float | Sequence[float | None] | None = None,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    stop_tokens: Sequence[int] = (),
    attention_mask: Mask | np.ndarray | None = None,
    pad_token: int = 0,
    prefill_chunk: int | None = None,
    prefix: Snapshot | None = None,
    return_logprobs: bool = False,
) -> Any:
    """Continue prompts.

    Compiled programs per model and batch size: one decoding loop per bucket of `max_new_tokens` and one
    prefill for each of the three sizes in `prompt.CHUNKS`; prompts of other lengths, other settings, keys and
    stop tokens reuse them. A state that grows with the text (full attention's) has a capacity of a power of
    two tokens, and another power compiles again; so do the first penalties, which count tokens.

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        prompt: (B, N) integers, or B rows of any lengths.
        max_new_tokens: number of tokens to make per row.
        temperature: 0 takes the most likely token; otherwise the logits are divided by it and sampled. Like
            the other settings of `Sampler`, one value for all rows or a sequence with one per row.
        rng: `jax.random.key(seed)`, needed when temperature > 0. Row r uses fold_in(rng, r). With one key
            per row, shape (B,), a row makes the same tokens in any batch.
        top_k, top_p, min_p: which tokens may be sampled; see `Sampler`.
        repetition_penalty, presence_penalty, frequency_penalty: see `Sampler`.
        stop_tokens: a row that emits one of these emits `pad_token` from then on; the loop ends when every
            row has.
        attention_mask: (B, N) booleans, or 1 and 0 as tokenizers give: True for real tokens, which are one
            run in each row. Padding may be before, after or around them.
        pad_token: what stopped rows emit; may lie outside of the vocabulary, such as -1.
        prefill_chunk: number of prompt tokens to read at a time, instead of 512; the result is the same.
        prefix: a `snapshot` of a text that precedes every row; rows may then be empty.
        return_logprobs: also return each token's log-probability under the model.

    Returns:
        The new tokens, int32 (B, max_new_tokens). With `return_logprobs` also their log-probabilities under
        the model's own logits, without temperature and penalties, float32 of the same shape, 0 for padding.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    expect_integer("max_new_tokens", max_new_tokens, 1)
    total = int(max_new_tokens)
    cuts, penalties = (top_k, top_p, min_p), (repetition_penalty, presence_penalty, frequency_penalty)
    ends = (stop_tokens, attention_mask, pad_token, prefill_chunk, prefix)
    sampling = dict(zip(_SETTINGS, (temperature, *cuts, *penalties), strict=True))
    start, rules = _read(model, params, prompt, total, rng, *ends, **sampling)
    (tokens, logprobs), _, _ = _decode(model, params, start(), total, rules, size=bucket(total))
    return (tokens[:, :total], logprobs[:, :total]) if return_logprobs else tokens[:, :total]


def stream(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float | Sequence[float] = 0.0,
    rng: Array | None = None,
    *,
    return_logprobs: bool = False,
    chunk: int = 8,
    **options: Any,
) -> Iterator[Any]:
    """Continue prompts and yield the tokens as they are made.

    The chunks, joined along the length, are `generate`'s tokens. When every row has stopped the iterator
    ends, without the padding that `generate` adds. Arguments are checked at the call, not at the first chunk.

    Args:
        chunk: number of tokens per chunk and dispatch; the first chunk is the first token alone.
        options: the others of `generate`.

    Returns:
        Iterator over int32 (B, tokens); with `return_logprobs` over pairs of them and their
        log-probabilities.

    Raises:
        TypeError, ValueError: as `generate`.
    """
    expect_integer("max_new_tokens", max_new_tokens, 1)
    expect_integer("chunk", chunk, 1)
    total, size = int(max_new_tokens), int(chunk)
    start, rules = _read(model, params, prompt, total, rng, temperature=temperature, **options)

    def decode(progress: Progress, count: int) -> Any:
        return _decode(model, params, progress, count, rules, size=size)

    chunks = _chunks(start, decode, total, size)
    return chunks if return_logprobs else (tokens for tokens, _ in chunks)


def _chunks(
    start: Callable[[], Progress], decode: Callable[[Progress, int], Any], total: int, chunk: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    begin, count = 0, 1
    out, made, progress = decode(start(), count)
    while True:
        # Compute the next chunk while the caller uses this one.
        begin, following = begin + count, min(chunk, total - begin - count)
        ahead = decode(progress, following) if following else None
        (tokens, logprobs), size = map(np.asarray, out), int(made)
        if size:
            yield tokens[:, :size], logprobs[:, :size]
        if size < count or ahead is None:
            return
        (out, made, progress), count = ahead, following


def _read(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    total: int,
    rng: Array | None,
    stop_tokens: Sequence[int] = (),
    attention_mask: Any = None,
    pad_token: int = 0,
    prefill_chunk: int | None = None,
    prefix: Snapshot | None = None,
    **sampling: Any,
) -> tuple[Callable[[], Progress], Rules]:
    """Validate a call's arguments; return a function that reads the prompt, and the rules of sampling."""
    if not isinstance(model, LanguageModel):
        what = "a LanguageModel and its variables; those of an nnx wrapper are `.module` and `.variables`"
        raise TypeError(f"model = {type(model).__name__}: expected {what}")
    config = model.config
    read = read_prompt(prompt, attention_mask, config.vocab_size, may_be_empty=prefix is not None)
    batch, length = read.tokens.shape
    before = 0
    if prefix is not None:
        before = len(prefix.tokens)
        expect_array("prefix.hidden", prefix.hidden, (1, config.embed_width), "floating")
        expect(row_count(prefix.state) == 1, "prefix.state", row_count(prefix.state), "one row")
    most = INT32_MAX - before - length
    expect(total <= most, "max_new_tokens", total, f"at most {most} after {before + length} tokens")
    if config.max_positions:  # past the end of its table the model returns NaN
        limit = config.max_positions
        read_before = f"less a prompt of {before + length} tokens, plus 1"
        most = f"at most {limit} = max_positions of the model, {read_before}"
        expect(before + length + total - 1 <= limit, "max_new_tokens", total, most)
    stops = read_tokens("stop_tokens", stop_tokens, config.vocab_size)
    expect_integer("pad_token", pad_token, -INT32_MAX - 1)
    settings, penalises = batch_settings(rng, batch, **sampling)
    if prefill_chunk is not None:
        expect_integer("prefill_chunk", prefill_chunk, 1)
    chunks = chunk_sizes(length, prefill_chunk)
    padded = pad_to(read, sum(chunks))
    capacity = capacity_for(model, before + length + total)
    counts = _count(padded, prefix, config.vocab_size) if penalises else None

    def start() -> Progress:
        if prefix is None:
            progress = begin(model, batch, capacity)
        else:
            progress = _continue(model, prefix.state, prefix.hidden, batch, capacity)
        mesh = sharding.explicit_mesh((params, prompt))  # per-row arrays are sharded like the rows
        progress = sharding.placed(progress, mesh, like=prompt)
        for offset, end in itertools.pairwise(itertools.accumulate(chunks, initial=0)):
            part = padded.tokens[:, offset:end]
            if mesh is not None:
                part = sharding.placed(jnp.asarray(part), mesh, like=progress.hidden)
            progress = prefill(model, params, progress, part, padded.lengths, offset)
        return progress._replace(counts=sharding.placed(counts, mesh, like=prompt))

    return start, Rules(settings, stops, int(pad_token))


def _count(prompt: Prompt, prefix: Snapshot | None, vocab_size: int) -> Counts:
    """Count how often each token occurs in the prompts and in the prefix before them."""
    tokens = jnp.asarray(prompt.tokens)
    real = jnp.arange(tokens.shape[1])[None] < prompt.lengths[:, None]
    counts = sharding.isolated(Counts.of_prompt, (tokens, real, vocab_size), {})
    if prefix is None:
        return counts
    before = np.bincount(np.asarray(prefix.tokens), minlength=vocab_size).astype(np.int32)
    return counts._replace(prompt=counts.prompt + before)


@functools.partial(jax.jit, static_argnames=("model", "batch", "capacity"))
def begin(model, batch, capacity):
    """Return the progress before the prompt, for `prefill`.

    Compiled, because eager code may use one array for two leaves, which cannot be donated.
    """
    hidden = jnp.zeros((batch, model.config.embed_width), model.config.jnp_dtype)
    return _progress(model.init_state(batch, capacity), hidden)


@functools.partial(jax.jit, static_argnames=("model", "batch", "capacity"))
def _continue(model, state, hidden, batch, capacity):
    """Copy the prefix's state for every row: new arrays, as others may want to continue it too."""

    def repeat(state, hidden):
        state = state if capacity is None else with_capacity(model, state, capacity)
        every = jnp.zeros((batch,), jnp.int32)
        return _progress(take_rows(state, every), hidden[every].astype(model.config.jnp_dtype))

    return sharding.isolated(repeat, (state, hidden), {})


def _progress(state: State, hidden: Array) -> Progress:
    return Progress(state, hidden, jnp.zeros(len(hidden), bool), jnp.zeros((), jnp.int32), None)


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("progress",))
def prefill(model, params, progress, tokens, lengths, offset):
    """Read tokens offset ... offset + C of prompts of `lengths` tokens."""
    read = functools.partial(read_chunk, model)
    return sharding.isolated(read, (params, progress, tokens, lengths, offset), {}, like=progress.hidden)


def read_chunk(model, params, progress, tokens, lengths, offset):
    size = tokens.shape[1]
    mask = offset + jnp.arange(size)[None] < lengths[:, None]
    with aligned():
        h, state = model.apply(params, tokens, progress.state, mask=mask, method="hidden")
    last = lengths - 1 - offset  # position in this chunk; the prompt may end before or after it
    hidden = jnp.take_along_axis(h, jnp.clip(last, 0, size - 1)[:, None, None], axis=1)[:, 0]
    hidden = jnp.where((last >= 0)[:, None], hidden, progress.hidden)
    return progress._replace(state=state, hidden=hidden)


@functools.partial(jax.jit, static_argnames=("model", "size"), donate_argnames=("progress",))
def _decode(model, params, progress, limit, rules, *, size):
    """Make up to `limit` <= size tokens, fewer if every row stops.

    Returns:
        tokens and their log-probabilities: (B, size), padded after those that were made; how many were made;
        the progress after them.
    """
    make = functools.partial(make_tokens, model, size)
    return sharding.isolated(make, (params, progress, limit, rules), {}, like=progress.hidden)


def make_tokens(model, size, params, progress, limit, rules):
    streams = LayerStreams(progress.state)

    def unfinished(carry):
        made, progress, _ = carry
        return (made < limit) & ~progress.done.all()

    def body(carry):
        made, (carried, hidden, done, step, counts), (tokens, logprobs) = carry
        logits = model.apply(params, hidden, method="unembed")
        steps = jnp.broadcast_to(step, done.shape)
        vocab_size = model.config.vocab_size
        chosen = choose(logits, rules.settings, steps, counts, vocab_size=vocab_size)
        token = chosen.token
        tokens = tokens.at[:, made].set(jnp.where(done, rules.pad_token, token))
        logprobs = logprobs.at[:, made].set(jnp.where(done, 0, chosen.logprob))
        done = done | (token[:, None] == rules.stop_tokens[None]).any(axis=1)
        counts = None if counts is None else counts.add(token)
        # Stopped rows continue with the token they would have made: padding may lie outside of the
        # vocabulary.
        with in_loop_over_tokens():
            h, state = model.apply(params, token[:, None], streams.within(carried, made), method="hidden")
        return made + 1, Progress(streams.strip(state), h[:, 0], done, step + 1, counts), (tokens, logprobs)

    batch = len(progress.hidden)
    out = jnp.full((batch, size), rules.pad_token, jnp.int32), jnp.zeros((batch, size), jnp.float32)
    progress = progress._replace(state=streams.strip(progress.state))
    made, progress, out = lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), progress, out))
    return out, made, progress._replace(state=streams.after(progress.state, made))
