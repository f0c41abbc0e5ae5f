"""Generate text: one compiled prefill, then one compiled loop over single tokens with the state donated.

    prefill   h, state = model.hidden(chunk of the prompt, state);   keep h of each row's last token
    decode    token ~ choose(unembed(h));   h, state = model.hidden(token, state);   repeat

Rows of one batch may have prompts of different lengths: the state holds each row's position.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.generate.pool import Made, Pool, Text, begin, decode, new_rows, read_chunk
from based_jax.generate.prefix import Snapshot
from based_jax.generate.prompt import Prompt, Tokens, bucket, chunk_sizes, pad_to, read_prompt, read_tokens
from based_jax.generate.sampling import SETTINGS, Counts, batch_settings
from based_jax.generate.states import capacity_for, longest_text, row_count, take_rows, with_capacity
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core import sharding
from based_jax.typing import Array, Mask, Params
from based_jax.validate import INT32_MAX, expect, expect_array, expect_integer


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
    as many stop tokens reuse them. A state that grows with the text (full attention's) has a capacity of a
    power of two tokens, and another power compiles again; so do the first row that samples, the first
    penalties, which count tokens, and the first `return_logprobs`.

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
    expect_integer("pad_token", pad_token, -INT32_MAX - 1)
    total = int(max_new_tokens)
    penalties = repetition_penalty, presence_penalty, frequency_penalty
    sampling = dict(zip(SETTINGS, (temperature, top_k, top_p, min_p, *penalties), strict=True))
    ends = stop_tokens, attention_mask, prefill_chunk, prefix
    start = _prompted(model, params, prompt, total, rng, *ends, **sampling)
    sizes = {"chunk": bucket(total), "top_logprobs": 0 if return_logprobs else None}
    _, (made, _) = decode(model, params, start(), total, int(pad_token), **sizes)
    tokens = made.token[:, :total]
    return tokens if made.logprob is None else (tokens, made.logprob[:, :total])


@sharding.own_settings()
def stream(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float | Sequence[float] = 0.0,
    rng: Array | None = None,
    *,
    pad_token: int = 0,
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
    for name, value in (("max_new_tokens", max_new_tokens), ("chunk", chunk)):
        expect_integer(name, value, 1)
    expect_integer("pad_token", pad_token, -INT32_MAX - 1)
    total, size = int(max_new_tokens), int(chunk)
    start = _prompted(model, params, prompt, total, rng, temperature=temperature, **options)

    def make(pool: Pool, count: int) -> tuple[Pool, Made]:
        sizes = {"chunk": size, "top_logprobs": 0 if return_logprobs else None}
        return decode(model, params, pool, count, int(pad_token), **sizes)

    return _chunks(start, make, total, size)


def _chunks(
    start: Callable[[], Pool], make: Callable[[Pool, int], tuple[Pool, Made]], total: int, chunk: int
) -> Iterator[Any]:
    begin, count = 0, 1
    with sharding.own_settings():
        pool, made = make(start(), count)
    while True:
        with sharding.own_settings():  # but the caller's where this yields
            # Compute the next chunk while the caller uses this one.
            begin, following = begin + count, min(chunk, total - begin - count)
            ahead = make(pool, following) if following else None
            size = int(np.asarray(made.count).max())
            tokens, logprobs = jax.tree.map(np.asarray, (made.choice.token, made.choice.logprob))
        if size:
            yield tokens[:, :size] if logprobs is None else (tokens[:, :size], logprobs[:, :size])
        if size < count or ahead is None:
            return
        (pool, made), count = ahead, following


@sharding.own_settings()
def snapshot(
    model: LanguageModel, params: Params, tokens: Sequence[int], *, max_length: int | None = None
) -> Snapshot:
    """Read a prefix once, so that any number of texts continue from the state after it.

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        max_length: tokens that the state must hold, later ones included; only KV caches need it. Defaults to
            N. `with_capacity` enlarges a state later.

    Raises:
        TypeError, ValueError: `tokens` is empty, holds values outside of the vocabulary, or has more than
            `max_length` tokens or the model's longest text.
    """
    prompt = read_prompt([tokens], None, model.config.vocab_size)
    row = np.asarray(prompt.tokens[0])
    most = longest_text(model.config) or len(row)
    expect(len(row) <= most, "tokens", len(row), f"at most {most}, the model's longest text")
    max_length = len(row) if max_length is None else max_length
    expect_integer("max_length", max_length, 1)
    max_length = int(max_length)
    expect(max_length >= len(row), "max_length", max_length, f"at least {len(row)}, the number of tokens")
    mesh, chunks = sharding.explicit_mesh(params), chunk_sizes(len(row))
    text = sharding.placed(begin(model, 1, capacity_for(model, max_length)), mesh, like=None)
    text = _read(model, params, text, pad_to(prompt, sum(chunks)), chunks, mesh)
    return Snapshot(row, with_capacity(model, text.state, max_length), text.hidden)


def _prompted(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    total: int,
    rng: Array | None,
    stop_tokens: Sequence[int] = (),
    attention_mask: Any = None,
    prefill_chunk: int | None = None,
    prefix: Snapshot | None = None,
    **sampling: Any,
) -> Callable[[], Pool]:
    """Validate a call's arguments; return a function that reads the prompt."""
    if not isinstance(model, LanguageModel):
        what = "a LanguageModel and its variables; those of an nnx wrapper are `.module` and `.variables`"
        raise TypeError(f"model = {type(model).__name__}: expected {what}")
    config = model.config
    read = read_prompt(prompt, attention_mask, config.vocab_size, may_be_empty=prefix is not None)
    batch, length = read.tokens.shape
    before = 0
    if prefix is not None:
        if not isinstance(prefix, Snapshot):
            raise TypeError(f"prefix = {type(prefix).__name__}: expected None or a `snapshot`")
        before = len(prefix.tokens)
        expect_array("prefix.hidden", prefix.hidden, (1, config.embed_width), "floating")
        expect(row_count(prefix.state) == 1, "prefix.state", row_count(prefix.state), "one row")
    most = INT32_MAX - before - length
    expect(total <= most, "max_new_tokens", total, f"at most {most} after {before + length} tokens")
    if limit := longest_text(config):  # beyond it the model returns NaN
        read_before = f"less a prompt of {before + length} tokens, plus 1"
        most = f"at most {limit}, the model's longest text, {read_before}"
        expect(before + length + total - 1 <= limit, "max_new_tokens", total, most)
    stops = read_tokens("stop_tokens", stop_tokens, config.vocab_size)
    settings, penalises = batch_settings(rng, batch, **sampling)
    if settings.keys is not None:  # those of the caller must not be donated
        settings = settings._replace(keys=jnp.copy(settings.keys))
    if prefill_chunk is not None:
        expect_integer("prefill_chunk", prefill_chunk, 1)
    chunks = chunk_sizes(length, prefill_chunk)
    capacity = capacity_for(model, before + length + total)
    read = pad_to(read, sum(chunks))  # before counting, so that prompts of similar lengths share a program
    counts = _count(read, prefix, config.vocab_size) if penalises else None

    def start() -> Pool:
        mesh = sharding.explicit_mesh((params, prompt))  # donated arrays are sharded like the results
        text = begin(model, batch, capacity) if prefix is None else _repeat(model, prefix, batch, capacity)
        text = _read(model, params, sharding.placed(text, mesh, like=prompt), read, chunks, mesh)
        rows = new_rows(text, settings, counts, total, stops)
        return rows if mesh is None else sharding.placed(jax.tree.map(jnp.asarray, rows), mesh, like=prompt)

    return start


def _read(
    model: LanguageModel, params: Params, text: Text, prompt: Prompt, chunks: Sequence[int], mesh: Any = None
) -> Text:
    """Read a prompt, padded to the sum of the chunks, in chunks of these sizes."""
    for offset, end in itertools.pairwise(itertools.accumulate(chunks, initial=0)):
        part = prompt.tokens[:, offset:end]
        if mesh is not None:
            part = sharding.placed(jnp.asarray(part), mesh, like=text.hidden)
        text = prefill(model, params, text, part, prompt.lengths, offset)
    return text


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
def _repeat(model, prefix, batch, capacity):
    """Copy the prefix's state for every row: new arrays, as others may want to continue it too."""

    def repeat(state, hidden):
        state = state if capacity is None else with_capacity(model, state, capacity)
        every = jnp.zeros((batch,), jnp.int32)
        return Text(take_rows(state, every), hidden[every].astype(model.config.jnp_dtype))

    return sharding.isolated(repeat, (prefix.state, prefix.hidden), {})


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("text",))
def prefill(model, params, text, tokens, lengths, offset):
    """Read a chunk of prompts; see `read_chunk`."""

    def read(*arguments):
        return read_chunk(model, *arguments)[1]

    return sharding.isolated(read, (params, text, tokens, lengths, offset), {}, like=text.hidden)
